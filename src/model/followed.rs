//! Counter deltas: counters that changed between two polls, with the stacks before and after.

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Growth of a pool's counters on one device.
///
/// Differences of running totals: negative only after a reset ([`FollowedChange::totals_reset`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CounterDelta {
    /// `allocation.POOL.allocated`.
    pub allocations: i64,
    /// `allocation.POOL.freed`.
    pub frees: i64,
    /// `allocated_bytes.POOL.allocated`: bytes after rounding.
    pub allocated_bytes: i64,
    /// `allocated_bytes.POOL.freed`: bytes after rounding.
    pub freed_bytes: i64,
    /// `requested_bytes.POOL.allocated`.
    pub requested_bytes: i64,
    /// `requested_bytes.POOL.freed`.
    pub freed_requested_bytes: i64,
}

/// A thread's Python stack at a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StackReading {
    /// One instant's stack, as far as can be checked from outside.
    Whole(StackId),
    /// The thread moved while its frames were copied, so the copy is dropped.
    Torn,
    /// The thread ran no Python.
    NoFrames,
    /// Not read in this poll.
    #[default]
    NotRead,
}

impl StackReading {
    /// The stack, if whole.
    pub fn stack(self) -> Option<StackId> {
        match self {
            StackReading::Whole(stack) => Some(stack),
            StackReading::Torn | StackReading::NoFrames | StackReading::NotRead => None,
        }
    }
}

/// Whether the kernel had the thread waiting at the polls before and after a delta.
///
/// Waiting: off the processor in a system call that sleeps or waits for a lock, a file, a socket or
/// a child. Waiting for the GIL or the allocator's lock does not count: it happens in the middle of
/// work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ThreadWait {
    /// At neither, or unknown.
    #[default]
    Unknown,
    /// At the poll before.
    Before,
    /// At the poll after.
    After,
    /// At both; it may have run in between.
    Both,
    /// It did not run in between, so it did not cause the delta.
    Throughout,
}

impl ThreadWait {
    /// At the polls before and after.
    pub fn sides(self) -> [bool; 2] {
        match self {
            ThreadWait::Unknown => [false, false],
            ThreadWait::Before => [true, false],
            ThreadWait::After => [false, true],
            ThreadWait::Both | ThreadWait::Throughout => [true, true],
        }
    }
}

impl From<[bool; 2]> for ThreadWait {
    fn from(sides: [bool; 2]) -> ThreadWait {
        match sides {
            [false, false] => ThreadWait::Unknown,
            [true, false] => ThreadWait::Before,
            [false, true] => ThreadWait::After,
            [true, true] => ThreadWait::Both,
        }
    }
}

/// A thread that may have caused a [`FollowedChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FollowedThread {
    /// The thread.
    pub thread: ThreadId,
    /// At [`FollowedChange::before`].
    pub before: StackReading,
    /// At [`FollowedChange::after`].
    pub after: StackReading,
    /// Whether it held the allocator's lock at one of these polls. Only its owner changes counters,
    /// so it caused this delta or a neighbour.
    pub held_lock: bool,
    /// Whether it waited at these polls.
    pub wait: ThreadWait,
}

impl FollowedThread {
    /// Before and after.
    pub fn sides(&self) -> [StackReading; 2] {
        [self.before, self.after]
    }

    /// Its whole stacks.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + use<> {
        self.sides().into_iter().filter_map(StackReading::stack)
    }
}

/// A counter delta of one device between two polls.
///
/// One system call copies counters, then stacks, then counters again, so the stacks after show the
/// whole delta. The stacks before may fall into its first microseconds: then counters differ after
/// the stacks, and `others_possible` is set (with one or two threads only if one was in the
/// allocator at the first copy).
///
/// If polls found half-changed counters, `before` is the last of them, and `others_possible` is set
/// if blocks changed earlier. A device's deltas have no gaps; time without polls falls into the
/// next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedChange {
    /// Start of the poll that copied the stacks before, with the old counters. Counters are polled
    /// more often than stacks, so several deltas may share two polls.
    pub before: Nanos,
    /// End of the poll that copied the stacks after.
    pub after: Nanos,
    /// The device's number in the target.
    pub device: CudaIndex,
    /// The small pool (blocks of up to 1 MiB).
    pub small: CounterDelta,
    /// The large pool.
    pub large: CounterDelta,
    /// `allocated_bytes.POOL.current` after the delta: small, large.
    pub live: [i64; 2],
    /// At most [`FollowedChange::MAX_THREADS`], in the reader's order. Earlier versions left out
    /// threads that waited at both polls.
    pub threads: Vec<FollowedThread>,
    /// Whether an unlisted thread may have caused it (no Python, new, beyond the maximum), or a
    /// listed one at another line: the counters changed during the copy of the stacks before, which
    /// is long with many threads.
    pub others_possible: bool,
    /// Whether pools did not add up over many polls: the rest is in the next delta.
    pub counters_torn: bool,
    /// Whether the program reset the totals: deltas are then lower limits, counted since.
    pub totals_reset: bool,
    /// Addresses read after this delta; `None`: not read, or the target changed them.
    pub addresses: Option<Box<FollowedAddresses>>,
}

/// Addresses allocated and freed between two reads of the allocator's tables.
///
/// An address allocated and freed in between is in neither list; one freed and allocated again is
/// in both only if it has another block now. So addresses may be fewer than allocations and frees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedAddresses {
    /// Deltas of the device covered, this one the last.
    pub changes: u32,
    /// Blocks present only after, by address.
    pub allocated: Vec<AddressedBlock>,
    /// Addresses present only before, in order.
    pub freed: Vec<u64>,
}

impl FollowedAddresses {
    /// Maximum length of a list.
    pub const MAX: usize = 1 << 12;
}

/// An allocated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddressedBlock {
    /// Its address on the device.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes requested.
    pub requested: u64,
}

impl FollowedChange {
    /// Empty, on the first device.
    #[cfg(test)]
    pub(crate) fn empty() -> FollowedChange {
        FollowedChange {
            before: Nanos(0),
            after: Nanos(0),
            device: CudaIndex(0),
            small: CounterDelta::default(),
            large: CounterDelta::default(),
            live: [0; 2],
            threads: Vec::new(),
            others_possible: false,
            counters_torn: false,
            totals_reset: false,
            addresses: None,
        }
    }

    /// Maximum number of threads.
    pub const MAX_THREADS: usize = 8;

    /// Blocks allocated.
    pub fn allocations(&self) -> i64 {
        self.small.allocations.saturating_add(self.large.allocations)
    }

    /// Blocks freed.
    pub fn frees(&self) -> i64 {
        self.small.frees.saturating_add(self.large.frees)
    }

    /// Whether it is exactly one allocation or one free: its bytes are a block's size.
    pub fn is_single(&self) -> bool {
        !self.counters_torn
            && !self.totals_reset
            && self.allocations().saturating_add(self.frees()) == 1
    }
}

/// Some milliseconds of deltas, ordered by [`FollowedChange::after`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedChanges {
    /// The deltas.
    pub changes: Vec<FollowedChange>,
}

/// Totals of the poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowTotals {
    /// Number of polls.
    pub polls: u64,
    /// Time of consecutive polls without sleep, in nanoseconds: divided by `polls`, their mean
    /// distance.
    pub polling_nanos: u64,
    /// Processor time of the poller, in nanoseconds.
    pub cpu_nanos: u64,
    /// 99th percentile of a poll, in nanoseconds; 0: unknown.
    pub slow_poll_nanos: u64,
    /// Counter deltas.
    pub changes: u64,
    /// Deltas of one allocation or one free.
    pub single_changes: u64,
    /// Deltas with the same whole stack before and after in every candidate thread.
    pub steady_changes: u64,
    /// Rests while counters moved: the poller had used its share of the processor, or its polls
    /// delayed the target.
    pub held_back: u64,
}
