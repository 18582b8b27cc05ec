//! Followed changes: each step of the allocator's counters that a fast poll saw, with the stacks on either side of it.

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// By how much the counters of one pool of one device grew in one step.
///
/// All six are differences of running totals of `torch.cuda.memory_stats` and so never negative, unless the program
/// reset these totals in between ([`FollowedChange::totals_reset`]).
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
    /// Bytes asked for by the allocations: `requested_bytes.POOL.allocated`.
    pub requested_bytes: i64,
    /// Bytes that had been asked for by the blocks freed: `requested_bytes.POOL.freed`.
    pub freed_requested_bytes: i64,
}

/// What a poll knows of the Python stack of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StackReading {
    /// The thread's stack at one instant of the poll, proven as far as can be checked from outside.
    Whole(StackId),
    /// The thread moved while its frames were copied, or its frames were copied at more than one instant: what was copied
    /// may be no stack at all, so it is not told.
    Torn,
    /// The thread executed no Python.
    NoFrames,
    /// The stack was not looked at in this poll.
    #[default]
    NotRead,
}

impl StackReading {
    /// The stack, if one was read whole.
    pub fn stack(self) -> Option<StackId> {
        match self {
            StackReading::Whole(stack) => Some(stack),
            StackReading::Torn | StackReading::NoFrames | StackReading::NotRead => None,
        }
    }
}

/// What the kernel said of a thread at the two polls beside a change.
///
/// A thread waits when it is off the processor, in a system call that sleeps, or that waits for a lock, a file, a socket or a
/// child. It does not count as waiting where it wants the GIL or the allocator's lock: it takes these in the middle of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ThreadWait {
    /// It waited at neither, or nothing is known of it.
    #[default]
    Unknown,
    /// It waited at the poll before the change.
    Before,
    /// It waited at the poll after the change.
    After,
    /// It waited at both, and may have run in between.
    Both,
    /// It did not run from the poll before the change to the one after it: whatever it waits for, it did not make the change itself.
    Throughout,
}

impl ThreadWait {
    /// Whether it waited before the change, and after it.
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

/// A thread that may have made a [`FollowedChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FollowedThread {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack at the poll [`FollowedChange::before`].
    pub before: StackReading,
    /// Its stack at the poll [`FollowedChange::after`].
    pub after: StackReading,
    /// Whether this thread held the lock of the device's allocator at one of these two polls. Whoever changes the counters
    /// holds this lock: a thread that was seen with it beside a change made this change or one right next to it.
    pub held_lock: bool,
    /// Whether it waited at these two polls.
    pub wait: ThreadWait,
}

impl FollowedThread {
    /// What is known of its stack before the change, and after it.
    pub fn sides(&self) -> [StackReading; 2] {
        [self.before, self.after]
    }

    /// Its stacks on both sides, as far as they were read.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + use<> {
        self.sides().into_iter().filter_map(StackReading::stack)
    }
}

/// One step of the allocation counters of one device: they were the old ones at one poll and the new ones at a later poll.
///
/// A poll copies, in this order, in one system call: the counters of all devices, the stacks of the followed threads, and the
/// counters once more.
/// So the change happened after the counters of the poll `before` were copied and before those of the poll `after` were.
/// The stack of `after` was copied after the change was complete; the stack of `before` was copied before the change,
/// or in the first microseconds of the time in which it happened: then the counters were others behind the stacks, and
/// `others_possible` is set (with one or two threads unless somebody was inside the allocator when the counters were copied first).
///
/// Between the polls `before` and `after` there may have been others that found the counters half changed (the target stood
/// in the midst of a change); `before` is then the last of these, for its stack is the one nearest to the change. Where
/// blocks changed hands ahead of this one, `others_possible` is set.
///
/// The steps of one device join without a gap: the sum of all deltas since the first poll is what the counters have
/// changed by since then. What happened while nothing was polled (the poller slept, or had no processor) is in the next
/// step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedChange {
    /// When the poll began that copied the stacks before it: the counters were those of before it then. The counters are copied more often than the stacks, so several
    /// changes can lie between the same two polls.
    pub before: Nanos,
    /// When the poll ended that copied the stacks after it.
    pub after: Nanos,
    /// Which device, as the target numbers it.
    pub device: CudaIndex,
    /// By how much the counters of the small pool (blocks of up to 1 MiB) changed.
    pub small: CounterDelta,
    /// By how much the counters of the large pool changed.
    pub large: CounterDelta,
    /// Bytes allocated to the program after the change, in the small and in the large pool: `allocated_bytes.POOL.current`.
    pub live: [i64; 2],
    /// The threads that were polled, at most [`FollowedChange::MAX_THREADS`], in the order of the reader. Recordings of earlier
    /// versions do not list threads that waited at both polls.
    pub threads: Vec<FollowedThread>,
    /// Whether a thread that is not listed may have made it: one without Python, one that has just begun, one more than can
    /// be listed. And whether a listed one may have made it elsewhere: the counters changed while the stacks before it were
    /// copied, which takes long where there are many threads.
    pub others_possible: bool,
    /// Whether the counters did not fit together when they were read (pools that do not add up) and stayed so over many
    /// polls: what is missing in this step is in the next one.
    pub counters_torn: bool,
    /// Whether the program reset the running totals in this step: the deltas are then lower limits, taken from what is new
    /// since the reset.
    pub totals_reset: bool,
    /// Which addresses were given out and taken back, as read after this change; `None` where that was not read, or the target
    /// did not keep still for it.
    pub addresses: Option<Box<FollowedAddresses>>,
}

/// What became of the addresses that the allocator has given to the program, between two readings of its tables of them.
///
/// An address that was given out and taken back between the two readings is in neither list. One that was taken back and given out again is in both
/// where that was seen, as it is where the block is another one to the allocator, and else in neither: then the changes have more allocations and frees than there are addresses here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedAddresses {
    /// In how many changes of the device: the one it is told with, and those before it.
    pub changes: u32,
    /// The blocks that the program has after them and had not before, by address.
    pub allocated: Vec<AddressedBlock>,
    /// The addresses that it had before them and has not after, in order.
    pub freed: Vec<u64>,
}

impl FollowedAddresses {
    /// Most addresses in either list.
    pub const MAX: usize = 1 << 12;
}

/// A block that was allocated, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddressedBlock {
    /// Its address on the device.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// The bytes asked for.
    pub requested: u64,
}

impl FollowedChange {
    /// Nothing happened on the first device: what a test begins with.
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

    /// Most threads listed with one change.
    pub const MAX_THREADS: usize = 8;

    /// Blocks allocated in it.
    pub fn allocations(&self) -> i64 {
        self.small.allocations.saturating_add(self.large.allocations)
    }

    /// Blocks freed in it.
    pub fn frees(&self) -> i64 {
        self.small.frees.saturating_add(self.large.frees)
    }

    /// Whether it is exactly one allocation or one free: its bytes are then the exact size of one block.
    pub fn is_single(&self) -> bool {
        !self.counters_torn
            && !self.totals_reset
            && self.allocations().saturating_add(self.frees()) == 1
    }
}

/// Followed changes in time order (of [`FollowedChange::after`]), some milliseconds of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedChanges {
    /// The changes.
    pub changes: Vec<FollowedChange>,
}

/// Sums over what a poller did in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowTotals {
    /// Polls made.
    pub polls: u64,
    /// Time in which polls were made one after the other, without sleeping, in nanoseconds: divided by `polls` this is how
    /// far apart the polls were.
    pub polling_nanos: u64,
    /// Time of a processor that the polling thread used, in nanoseconds.
    pub cpu_nanos: u64,
    /// One poll in a hundred took longer than this many nanoseconds; 0 when unknown.
    pub slow_poll_nanos: u64,
    /// Steps of the counters seen.
    pub changes: u64,
    /// Steps of exactly one allocation or one free.
    pub single_changes: u64,
    /// Steps in which every thread that may have made it had the same whole stack before and after.
    pub steady_changes: u64,
    /// How often the poller slept although the counters moved: it had used up its share of the processor, or its polls made the
    /// target wait.
    pub held_back: u64,
}
