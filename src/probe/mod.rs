//! Probes: uprobes and USDT in a target become allocation events with the stacks that made them.
//!
//! Turns a [`Plan`] (what to probe and where things are) into [`Raw`] events, losses counted.
//! May import `model` and `target`; alone knows BPF and perf events.
//! Never names a frame (that is `python`), never changes the target's memory, never blocks.
//! Start reading at [`Probe`]; the programs in the kernel are cuda/probe.bpf.c.

mod attach;
mod constants;
mod driver;
mod error;
mod found;
mod outlook;
mod placed;
mod plan;
mod program;
mod raw;
mod ring;
mod samples;
mod syscall;
mod uprobe;
mod watching;

pub use attach::Probe;
pub use error::ProbeError;
pub use outlook::{Offer, offer, try_way};
pub use placed::Link;
pub use plan::{Plan, RING_BYTES};
pub use program::why_not_built;
pub use raw::{ProbeCounts, Raw, RawEvent, RawNode, RawStep, StackKey};
