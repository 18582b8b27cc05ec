//! Counter deltas between polls, with stacks.

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
    /// One instant's stack, as far as an outside check shows.
    Whole(StackId),
    /// Dropped: the thread moved during the copy.
    Torn,
    /// The thread ran no Python.
    NoFrames,
    /// Not read by this poll.
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
    /// It did not run in between, so did not cause the delta.
    Throughout,
}

impl ThreadWait {
    /// Before and after.
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
    /// It held the allocator's lock at one of these polls. Only its owner changes counters,
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
/// if blocks changed earlier. A device's deltas have no gaps: the next one covers time without
/// polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedChange {
    /// Start of the poll with the stacks before and the old counters. Counters are polled more
    /// often than stacks, so deltas may share polls.
    pub before: Nanos,
    /// End of the poll with the stacks after.
    pub after: Nanos,
    /// The device's number in the target.
    pub device: CudaIndex,
    /// The small pool (blocks up to 1 MiB).
    pub small: CounterDelta,
    /// The large pool.
    pub large: CounterDelta,
    /// `allocated_bytes.POOL.current` after the delta: small, large.
    pub live: [i64; 2],
    /// At most [`FollowedChange::MAX_THREADS`], in the reader's order. Earlier versions left out
    /// threads that waited at both polls.
    pub threads: Vec<FollowedThread>,
    /// An unlisted thread (no Python, new, beyond the maximum) may have caused it, or a
    /// listed one at another line: the counters changed while the stacks before were copied, which
    /// takes long with many threads.
    pub others_possible: bool,
    /// Pools did not add up over many polls: the next delta has the rest.
    pub counters_torn: bool,
    /// The program reset the totals: deltas are lower limits, counted since.
    pub totals_reset: bool,
    /// Addresses read after this delta; `None`: not read, or the target changed them.
    pub addresses: Option<Box<FollowedAddresses>>,
}

/// Addresses allocated and freed between two reads of the allocator's tables.
///
/// Those allocated and freed in between are in neither list; one freed and allocated again is in
/// both, if its block is another. So there may be fewer addresses than allocations and frees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedAddresses {
    /// Deltas of the device covered, up to this one.
    pub changes: u32,
    /// Blocks present only after, by address.
    pub allocated: Vec<AddressedBlock>,
    /// Addresses present only before, sorted.
    pub freed: Vec<u64>,
}

impl FollowedAddresses {
    /// Maximum length of a list.
    pub const MAX: usize = 1 << 12;
}

/// An allocated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[allow(missing_docs)]
pub struct AddressedBlock {
    pub address: u64,
    pub size: u64,
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

    /// Whether it is one allocation or one free: its bytes are a block's size.
    pub fn is_single(&self) -> bool {
        !self.counters_torn
            && !self.totals_reset
            && self.allocations().saturating_add(self.frees()) == 1
    }
}

/// Some milliseconds of deltas, ordered by [`FollowedChange::after`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct FollowedChanges {
    pub changes: Vec<FollowedChange>,
}

/// Totals of the poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowTotals {
    /// Number of polls.
    pub polls: u64,
    /// Nanoseconds of consecutive polls without sleep; divided by `polls`: their mean distance.
    pub polling_nanos: u64,
    /// Processor time of the poller, in nanoseconds.
    pub cpu_nanos: u64,
    /// 99th percentile of a poll's nanoseconds; 0: unknown.
    pub slow_poll_nanos: u64,
    /// Counter deltas.
    pub changes: u64,
    /// Deltas of a single allocation or free.
    pub single_changes: u64,
    /// Deltas with equal whole stacks before and after in every candidate thread.
    pub steady_changes: u64,
    /// Rests while counters moved: the poller had used up its processor share, or delayed the
    /// target.
    pub held_back: u64,
}
