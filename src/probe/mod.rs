//! Probes: uprobes and USDT in a target become allocation events with the stacks that made them.
//!
//! Turns `FrameWalk`, `BackwardWalk` and `LevelsAt` (where things are) into [`Raw`] events, losses counted.
//! May import `model` and `target`; alone knows BPF and perf events.
//! Never names a frame (that is `python`), never changes the target's memory, never blocks.
//! Start reading at [`raw`].

pub mod raw;

pub use raw::{ProbeCounts, Raw, RawEvent, RawNode, StackKey};
