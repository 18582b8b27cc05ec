//! What probes deliver: addresses and numbers, no names.

use crate::abi::BpfFrame;
use crate::model::{EventKind, StackSource};
use crate::target::DWARF_REGISTERS;

/// A stack's key in the BPF program; 0: none.
pub type StackKey = u64;

/// The autograd node that a thread evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RawNode {
    /// Identifies the class.
    pub vtable: u64,
    /// A Python node's type object (`THPFunction`), or 0.
    pub python_type: u64,
    /// Stack of the creating forward call; 0: unseen.
    pub forward: StackKey,
}

/// An event as a probe saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEvent {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// What happened, with the levels.
    pub change: EventKind,
    /// Its id in the machine's initial pid namespace.
    pub os_thread: u32,
    /// `pthread_self()`; 0: unknown.
    pub python_id: u64,
    /// Its stack; 0: none.
    pub stack: StackKey,
    /// Source of the stack.
    pub source: StackSource,
    /// The stack is deeper than the walk.
    pub truncated: bool,
    /// A page of it was unreadable.
    pub faulted: bool,
    /// The evaluated autograd node.
    pub node: Option<RawNode>,
    /// The copy of the thread's stack.
    pub native: NativeCopy,
}

/// A copied stack, for native frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NativeCopy {
    /// Not requested.
    #[default]
    NotTaken,
    /// The ring was full.
    Lost,
    /// Its number; the [`RingRecord::NativeStack`] comes with the next read at the latest.
    Number(u32),
}

/// A step counter changed before the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStep {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// The number given to [`AttachedProbes::watch`](super::AttachedProbes::watch).
    pub place: u32,
    /// First value seen: the step may have begun earlier.
    pub is_first: bool,
    /// The step counter's value.
    pub step: u64,
    /// The epoch counter's value; 0 without one.
    pub epoch: u64,
}

/// A record of the ring.
#[derive(Debug, Clone, PartialEq)]
pub enum RingRecord<'a> {
    /// An event.
    Event(RawEvent),
    /// A training step.
    Step(RawStep),
    /// A stack's frames; may come after events that use it.
    Stack {
        /// Its key.
        key: StackKey,
        /// Innermost first.
        frames: &'a [BpfFrame],
        /// The stack is deeper.
        truncated: bool,
    },
    /// A code object at its first use.
    Code {
        /// Its address.
        code: u64,
        /// The object, name, file name and start of the line table.
        spans: &'a [(u64, &'a [u8])],
    },
    /// A thread's registers and stack at an event.
    NativeStack {
        /// The number in [`RawEvent::native`].
        number: u32,
        /// By DWARF number: 7 is the stack pointer, 16 the instruction pointer.
        registers: [u64; DWARF_REGISTERS],
        /// The stack from the stack pointer on.
        stack: &'a [u8],
        /// Its outer part is missing.
        is_cut: bool,
    },
    /// A code object died; its address may be reused.
    CodeFreed {
        /// Its address.
        code: u64,
    },
}

/// Counts since the probes were placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingCounts {
    /// Events lost in a full ring.
    pub lost: u64,
    /// Lost descriptions of stacks or code objects; they come again at the next use.
    pub lost_descriptions: u64,
}

/// Runs of the kernel programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgramTime {
    /// All runs.
    pub runs: u64,
    /// Timed runs, a random part.
    pub timed: u64,
    /// Nanoseconds of the timed runs.
    pub nanos: u64,
}

impl ProgramTime {
    /// Average of a run in nanoseconds.
    pub fn of_one_run(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.nanos as f64 / self.timed as f64)
    }
}
