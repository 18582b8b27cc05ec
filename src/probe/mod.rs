//! Places uprobes and USDT probes in a target.
//!
//! Turns a [`AttachPlan`] into [`RingRecord`] events and counts losses.
//! May import `model`, `abi` and `target`. Only this room uses BPF and perf events.
//! Never names a frame (`python` does), never changes the target's memory, never blocks.
//! Start reading at [`AttachedProbes`]; the kernel's programs are in cuda/probe.bpf.c.

mod attach;
mod availability;
mod bpf_probes;
mod constants;
mod driver;
mod error;
mod keeper;
mod perf_probes;
mod placement;
mod plan;
mod program;
mod ring;
mod ring_events;
mod step_counter;
mod syscall;
mod targets;
mod trap;
mod uprobe;

pub use attach::AttachedProbes;
pub use availability::{Availability, detect, try_way};
pub use error::PlacementError;
pub use keeper::{KEEP_PROBES, allow_keeper, keep_probes, try_keeper};
pub use placement::Attachment;
pub use plan::{AttachPlan, RING_BYTES};
pub use ring::RingDecoder;
pub use ring_events::{
    NativeCopy, ProgramTime, RawEvent, RawNode, RawStep, RingCounts, RingRecord, StackKey,
};
pub use trap::{TRAP_ELSEWHERE, trap_time};
