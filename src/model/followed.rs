//! Counter deltas: changes of the allocator's counters between two polls, with the stacks before
//! and after.

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Growth of the counters of one pool of one device.
///
/// All six are differences of running totals of `torch.cuda.memory_stats`, so never negative unless
/// the program reset these totals in between ([`FollowedChange::totals_reset`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CounterDelta {
    /// Blocks allocated: `allocation.POOL.allocated`.
    pub allocations: i64,
    /// Blocks freed: `allocation.POOL.freed`.
    pub frees: i64,
    /// Bytes of the blocks allocated, after rounding: `allocated_bytes.POOL.allocated`.
    pub allocated_bytes: i64,
    /// Bytes of the blocks freed, after rounding: `allocated_bytes.POOL.freed`.
    pub freed_bytes: i64,
    /// Bytes requested by the allocations: `requested_bytes.POOL.allocated`.
    pub requested_bytes: i64,
    /// Bytes once requested for the blocks freed: `requested_bytes.POOL.freed`.
    pub freed_requested_bytes: i64,
}

/// What a poll knows of one thread's Python stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StackReading {
    /// The thread's stack at one instant of the poll, proven as far as can be checked from outside.
    Whole(StackId),
    /// The thread moved while its frames were copied: the copy may be inconsistent, so it is
    /// dropped.
    Torn,
    /// The thread ran no Python.
    NoFrames,
    /// The stack was not read in this poll.
    #[default]
    NotRead,
}

impl StackReading {
    /// The whole stack, if there is one.
    pub fn stack(self) -> Option<StackId> {
        match self {
            StackReading::Whole(stack) => Some(stack),
            StackReading::Torn | StackReading::NoFrames | StackReading::NotRead => None,
        }
    }
}

/// The kernel's word on a thread at the polls before and after a delta.
///
/// A thread waits when it is off the processor, in a system call that sleeps or waits for a lock, a
/// file, a socket or a child. A thread that waits for the GIL or the allocator's lock does not
/// count: it takes these in the middle of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ThreadWait {
    /// It waited at neither, or unknown.
    #[default]
    Unknown,
    /// It waited at the poll before the delta.
    Before,
    /// It waited at the poll after the delta.
    After,
    /// It waited at both, and may have run in between.
    Both,
    /// It did not run from the poll before to the poll after, so it did not cause the delta itself.
    Throughout,
}

impl ThreadWait {
    /// Whether it waited before and after.
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
    /// Its stack at the poll [`FollowedChange::before`].
    pub before: StackReading,
    /// Its stack at the poll [`FollowedChange::after`].
    pub after: StackReading,
    /// Whether it held the device's allocator lock at one of these polls. Changing the counters
    /// requires this lock, so the thread caused this delta or one right next to it.
    pub held_lock: bool,
    /// Whether it waited at these two polls.
    pub wait: ThreadWait,
}

impl FollowedThread {
    /// Its stacks before and after.
    pub fn sides(&self) -> [StackReading; 2] {
        [self.before, self.after]
    }

    /// Its whole stacks, before and after.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + use<> {
        self.sides().into_iter().filter_map(StackReading::stack)
    }
}

/// A counter delta of one device: old counters at one poll, new ones at a later poll.
///
/// A poll copies, in this order, in one system call: the counters of all devices, the stacks of the
/// followed threads, and the counters again. So the change happened after `before` copied its
/// counters and before `after` did. The stack of `after` was copied after the change was complete.
/// The stack of `before` was copied before the change or in its first microseconds. In the second
/// case the counters differed after the stacks, and `others_possible` is set (with one or two
/// threads only if a thread was inside the allocator at the first copy of the counters).
///
/// Polls in between may have found the counters half changed; `before` is then the last of these,
/// since its stack is nearest to the change. If blocks changed before that, `others_possible` is
/// set.
///
/// The deltas of one device have no gaps: their sum since the first poll is the total change of the
/// counters. What happened without polls (the poller slept, or had no processor) is in the next
/// delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedChange {
    /// Start of the poll that copied the stacks before; the counters were still the old ones.
    /// Counters are copied more often than stacks, so several deltas can lie between the same two
    /// polls.
    pub before: Nanos,
    /// End of the poll that copied the stacks after.
    pub after: Nanos,
    /// The device, as the target numbers it.
    pub device: CudaIndex,
    /// Growth of the small pool's counters (blocks of up to 1 MiB).
    pub small: CounterDelta,
    /// Growth of the large pool's counters.
    pub large: CounterDelta,
    /// Live bytes after the change, in the small and in the large pool:
    /// `allocated_bytes.POOL.current`.
    pub live: [i64; 2],
    /// The polled threads, at most [`FollowedChange::MAX_THREADS`], in the reader's order. Earlier
    /// versions left out threads that waited at both polls.
    pub threads: Vec<FollowedThread>,
    /// Whether an unlisted thread may have caused it (without Python, new, or beyond the maximum),
    /// or a listed one elsewhere: the counters changed while the stacks before were copied, which
    /// takes long with many threads.
    pub others_possible: bool,
    /// Whether the counters stayed inconsistent over many polls (pools that do not add up): what
    /// this delta lacks is in the next one.
    pub counters_torn: bool,
    /// Whether the program reset the running totals meanwhile: the deltas are then lower limits,
    /// counted since the reset.
    pub totals_reset: bool,
    /// Addresses allocated and freed, read after this change; `None`: not read, or the target did
    /// not keep still.
    pub addresses: Option<Box<FollowedAddresses>>,
}

/// Addresses allocated and freed between two reads of the allocator's tables.
///
/// An address allocated and freed between the reads is in neither list. One freed and allocated
/// again is in both if that was seen (the allocator has another block there), else in neither. So
/// there may be fewer addresses than allocations and frees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedAddresses {
    /// The number of the device's deltas covered: this one and those before it.
    pub changes: u32,
    /// Blocks present only after them, by address.
    pub allocated: Vec<AddressedBlock>,
    /// Addresses present only before them, in order.
    pub freed: Vec<u64>,
}

impl FollowedAddresses {
    /// Most addresses in either list.
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
    /// An empty delta of the first device, for tests.
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

    /// Most threads listed with one delta.
    pub const MAX_THREADS: usize = 8;

    /// Blocks allocated.
    pub fn allocations(&self) -> i64 {
        self.small.allocations.saturating_add(self.large.allocations)
    }

    /// Blocks freed.
    pub fn frees(&self) -> i64 {
        self.small.frees.saturating_add(self.large.frees)
    }

    /// Whether it is exactly one allocation or one free, so that its bytes are the size of one
    /// block.
    pub fn is_single(&self) -> bool {
        !self.counters_torn
            && !self.totals_reset
            && self.allocations().saturating_add(self.frees()) == 1
    }
}

/// Some milliseconds of deltas in time order (of [`FollowedChange::after`]).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedChanges {
    /// The deltas.
    pub changes: Vec<FollowedChange>,
}

/// Totals of a recording's poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowTotals {
    /// Number of polls.
    pub polls: u64,
    /// Nanoseconds spent on consecutive polls, without sleeping: divided by `polls`, their mean
    /// distance.
    pub polling_nanos: u64,
    /// Processor time of the polling thread in nanoseconds.
    pub cpu_nanos: u64,
    /// One poll in a hundred took longer than this many nanoseconds; 0: unknown.
    pub slow_poll_nanos: u64,
    /// Counter deltas seen.
    pub changes: u64,
    /// Deltas of exactly one allocation or one free.
    pub single_changes: u64,
    /// Deltas in which every candidate thread had the same whole stack before and after.
    pub steady_changes: u64,
    /// Rests while the counters moved: the poller had used up its share of the processor, or its
    /// polls made the target wait.
    pub held_back: u64,
}
