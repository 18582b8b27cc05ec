//! What probes deliver: addresses and numbers of the target, not yet named.

use crate::abi::BpfFrame;
use crate::model::{EventKind, StackSource};
use crate::target::DWARF_REGISTERS;

/// Number by which the kernel's program knows a stack; 0 for none.
pub type StackKey = u64;

/// The autograd node that a thread evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RawNode {
    /// Its vtable pointer: tells the class.
    pub vtable: u64,
    /// For a node written in Python: type object of its `THPFunction`; else 0.
    pub python_type: u64,
    /// Stack of the forward call that created it; 0 when that was not seen.
    pub forward: StackKey,
}

/// An event as a probe saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEvent {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub time: u64,
    /// What happened; the levels are in it.
    pub change: EventKind,
    /// Thread id as this machine's initial pid namespace numbers it.
    pub os_thread: u32,
    /// `pthread_self()` of the thread; 0 when unknown.
    pub python_id: u64,
    /// Its stack; 0 for none.
    pub stack: StackKey,
    /// Where the stack came from.
    pub source: StackSource,
    /// Whether the stack was deeper than was followed.
    pub truncated: bool,
    /// Whether a page of the stack could not be read.
    pub faulted: bool,
    /// The autograd node being evaluated.
    pub node: Option<RawNode>,
    /// The copy of the thread's stack.
    pub native: NativeCopy,
}

/// What became of the copy of a thread's stack, from which its frames of C and C++ code are unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NativeCopy {
    /// None was asked for.
    #[default]
    NotTaken,
    /// It found no room.
    Lost,
    /// It has this number: a [`RingRecord::NativeStack`], which comes no later than the next look into the rings.
    Number(u32),
}

/// What counts the steps of training has changed: seen at the event that follows, before all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStep {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub time: u64,
    /// The number of the places read, as [`Probe::watch`](super::AttachedProbes::watch) was told.
    pub place: u32,
    /// Whether it is the first seen there: then it may have begun before.
    pub is_first: bool,
    /// What counts the steps, as it lies in memory.
    pub step: u64,
    /// What counts epochs; 0 where nothing does.
    pub epoch: u64,
}

/// What is in the ring.
#[derive(Debug, Clone, PartialEq)]
pub enum RingRecord<'a> {
    /// An event.
    Event(RawEvent),
    /// A step of training.
    Step(RawStep),
    /// The frames of a stack, innermost first; may come after events that use it.
    Stack {
        /// Its number.
        key: StackKey,
        /// Its frames.
        frames: &'a [BpfFrame],
        /// Whether it is deeper than that.
        truncated: bool,
    },
    /// A code object at its first use, as it was at that moment: stretches of memory by address.
    Code {
        /// Its address.
        code: u64,
        /// Copies of it, its name, file name and line table (its begin).
        spans: &'a [(u64, &'a [u8])],
    },
    /// The registers of a thread at an event, and its stack.
    NativeStack {
        /// Its number, as [`RawEvent::native`] has it.
        number: u32,
        /// By their numbers in DWARF: the stack pointer is 7, the place of the instruction 16.
        registers: [u64; DWARF_REGISTERS],
        /// The stack from the stack pointer on.
        stack: &'a [u8],
        /// Whether its outer part was left out.
        is_cut: bool,
    },
    /// A code object died; its address may be used again.
    CodeFreed {
        /// Its address.
        code: u64,
    },
}

/// What the probes counted, since they were attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeCounts {
    /// Events that found no room.
    pub lost: u64,
    /// Descriptions of stacks or code objects that found no room; they come again at the next use.
    pub lost_descriptions: u64,
}

/// How often the programs in the kernel ran since they were attached, and how long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgramTime {
    /// All runs.
    pub runs: u64,
    /// Runs that were timed: a random part of them.
    pub timed: u64,
    /// Nanoseconds that these took.
    pub nanos: u64,
}

impl ProgramTime {
    /// Nanoseconds that one run takes on average; `None` when none was timed.
    pub fn of_one_run(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.nanos as f64 / self.timed as f64)
    }
}
