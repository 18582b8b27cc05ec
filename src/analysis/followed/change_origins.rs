//! Who can have made a delta, by the polls around it, and where the program was.

use rustc_hash::FxHashSet;

use crate::analysis::attribution::{AllocationOrigin, BlockGroup, CANDIDATES_WITHIN, WaitFacts};
use crate::analysis::autograd::EngineFrames;
use crate::analysis::followed::free_sites::FreeSite;
use crate::analysis::followed::lock_holders::LockHolders;
use crate::model::{
    CounterDelta, FollowedChange, FollowedThread, Pool, StackId, StackReading, StackTable, ThreadId,
};

/// A stack seen at two polls at most so far apart was most likely there all the time, in
/// nanoseconds.
const STAYED_WITHIN: u64 = 20_000;
/// In this time a thread that waits for the autograd engine has not gone elsewhere and come back:
/// one backward pass would have had to end and the next to begin.
const STAYS_WITHIN: u64 = 1_000_000;

/// The kind of the only block that was allocated, whatever was freed.
pub(super) fn allocated_kind(small: &CounterDelta, large: &CounterDelta) -> Option<BlockGroup> {
    let (pool, delta) =
        if small.allocations > 0 { (Pool::Small, small) } else { (Pool::Large, large) };
    let size = delta.allocated_bytes.max(0) as u64;
    let kind = BlockGroup { size, requested: delta.requested_bytes.max(0) as u64, pool };
    (small.allocations.saturating_add(large.allocations) == 1).then_some(kind)
}

/// The calls in which a change was made: the stacks at its two ends, without the lines of their
/// innermost functions.
pub(super) fn free_site(origins: &[AllocationOrigin], stacks: &StackTable) -> FreeSite {
    let call = |origin: &AllocationOrigin| match *origin {
        AllocationOrigin::Stack(thread, stack) => {
            let parent = stacks.get_stack(stack)?.parent?;
            Some(AllocationOrigin::Below(thread, parent))
        }
        _ => None,
    };
    match origins {
        [one] => [call(one), None],
        [before @ AllocationOrigin::Stack(thread, _), after @ AllocationOrigin::Stack(of, _)]
            if thread == of =>
        {
            [call(before), call(after).filter(|c| Some(*c) != call(before))]
        }
        _ => [None; 2],
    }
}

/// Who can have made a change.
#[derive(Debug)]
pub(super) struct ChangeSources {
    /// The candidates, each once.
    pub(super) origins: Vec<AllocationOrigin>,
    /// Their threads, and those whose stacks could not be read.
    pub(super) threads: Vec<ThreadId>,
    /// Whether all stacks of those that can have made it could be read: else there may be another
    /// candidate.
    pub(super) is_whole: bool,
    /// Whether a thread that waits may have made it where it was not seen: it had left the line on
    /// which it waits, or had not come to it.
    pub(super) waited: bool,
}

impl ChangeSources {
    /// The only candidate, if polls near each other saw it at one stack.
    pub(super) fn stayed(&self, apart: u64) -> Option<AllocationOrigin> {
        match self.origins[..] {
            [origin @ AllocationOrigin::Stack(..)]
                if self.is_whole && !self.waited && apart <= STAYED_WITHIN =>
            {
                Some(origin)
            }
            _ => None,
        }
    }
}

/// Whether the only candidate may have been elsewhere in between: it was seen at one stack at two
/// polls that lie far apart.
pub(super) fn may_have_left(
    origin: AllocationOrigin,
    apart: u64,
    engine: &EngineFrames,
    stacks: &StackTable,
) -> bool {
    match origin {
        _ if apart <= CANDIDATES_WITHIN => false,
        AllocationOrigin::Stack(_, stack) => {
            !(engine.is_waiting(stacks, stack) && apart <= STAYS_WITHIN)
        }
        _ => true,
    }
}

/// Who can have made a delta.
pub(super) fn allocation_sources(
    change: &FollowedChange,
    facts: WaitFacts<'_>,
    locks: &LockHolders,
) -> ChangeSources {
    let waits = |thread: &FollowedThread| thread.stacks().any(|stack| facts.is_for_engine(stack));
    let without_frames = |thread: &FollowedThread| {
        thread.sides().into_iter().all(|reading| reading == StackReading::NoFrames)
    };
    let listed = || change.threads.iter().filter(|thread| !facts.cannot_have_allocated(thread));
    let is_idle = |thread: &&FollowedThread| places(thread, facts).iter().all(Option::is_none);
    let owners: Vec<&FollowedThread> = listed().filter(|t| t.held_lock).collect();
    let waiting: Vec<&FollowedThread> = listed().filter(|t| waits(t)).collect();
    let all_others = || listed().filter(|t| !waits(t) && !without_frames(t));
    let (idle, others): (Vec<&FollowedThread>, Vec<&FollowedThread>) =
        all_others().partition(is_idle);
    let has_owner = !owners.is_empty();
    let chosen = match owners[..] {
        // C++ code of the engine, for which a thread waits.
        [owner] if without_frames(owner) => waiting,
        [_] => owners,
        _ if others.is_empty() => waiting,
        _ => others,
    };
    let apart = change.after.0.saturating_sub(change.before.0);
    let mut origins: Vec<AllocationOrigin> = Vec::new();
    let may_be = |thread: &&FollowedThread| locks.may_allocate(thread.thread);
    // In a longer time it can have woken up, allocated, and come back.
    let mut waited = !has_owner && apart > CANDIDATES_WITHIN && idle.iter().any(may_be);
    let mut is_whole = true;
    let mut threads = Vec::new();
    for thread in chosen {
        if places(thread, facts).iter().any(Option::is_some) {
            threads.push(thread.thread);
        }
        for place in places(thread, facts) {
            let Some(reading) = place else {
                waited |= may_be(&thread);
                continue;
            };
            let Some(stack) = reading.stack() else {
                is_whole = false;
                continue;
            };
            let origin = AllocationOrigin::Stack(thread.thread, stack);
            if !origins.contains(&origin) {
                origins.push(origin);
            }
        }
    }
    // Of one that others held the lock beside, time and again, it is unlikely.
    if threads.iter().any(|thread| locks.may_allocate(*thread)) {
        threads.retain(|thread| locks.may_allocate(*thread));
    }
    ChangeSources { origins, threads, is_whole, waited }
}

/// The only thread that went from one place where it waits to another, and the call that it stayed
/// in: it made the delta below that.
pub(super) fn went_on(change: &FollowedChange, facts: WaitFacts<'_>) -> Option<AllocationOrigin> {
    let moved = |thread: &&FollowedThread| {
        !facts.cannot_have_allocated(thread) && thread.before != thread.after
    };
    let mut moving = change.threads.iter().filter(moved);
    let (Some(thread), None) = (moving.next(), moving.next()) else { return None };
    let (before, after) = (thread.before.stack()?, thread.after.stack()?);
    let callers: FxHashSet<StackId> = facts.stacks.callers(before).collect();
    let common = facts.stacks.callers(after).find(|stack| callers.contains(stack))?;
    Some(AllocationOrigin::Below(thread.thread, common))
}

/// What was read of a thread where it can have made a change: `None` for the side on which it
/// waited.
fn places(thread: &FollowedThread, facts: WaitFacts<'_>) -> [Option<StackReading>; 2] {
    // Where it has the allocator's lock and does not leave its line, it waits in the middle of an
    // allocation.
    let allocates = thread.held_lock && thread.before == thread.after;
    let [before, after] = thread.wait.sides();
    [(thread.before, before), (thread.after, after)].map(|(reading, waits)| {
        let may = |stack| allocates || facts.may_allocate(stack, waits);
        reading.stack().map_or(!waits, may).then_some(reading)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::attribution::{HostStacks, WaitingPlaces};
    use crate::model::Nanos;
    use crate::model::ThreadWait;

    /// Who is charged for a change beside which these threads were seen, each at two stacks, polls
    /// so many microseconds apart.
    fn charged(threads: &[([u32; 2], ThreadWait)], micros: u64) -> (Vec<AllocationOrigin>, bool) {
        let (stacks, engine) = (StackTable::new(), EngineFrames::default());
        let (host_only, places) = (HostStacks::default(), WaitingPlaces::default());
        let facts =
            WaitFacts { stacks: &stacks, engine: &engine, host_only: &host_only, places: &places };
        let listed = (0..).zip(threads).map(|(thread, (sides, wait))| {
            let [before, after] = sides.map(|stack| StackReading::Whole(StackId(stack)));
            let thread = ThreadId(thread);
            FollowedThread { thread, before, after, held_lock: false, wait: *wait }
        });
        let change = FollowedChange {
            after: Nanos(1_000 * micros),
            threads: listed.collect(),
            ..FollowedChange::empty()
        };
        let found = allocation_sources(&change, facts, &LockHolders::default());
        (found.origins, found.waited)
    }

    fn at(thread: u32, stack: u32) -> AllocationOrigin {
        AllocationOrigin::Stack(ThreadId(thread), StackId(stack))
    }

    #[test]
    fn who_waits_at_both_polls_gets_nothing_where_another_thread_is_seen() {
        let works = ([5, 5], ThreadWait::Unknown);
        assert_eq!(charged(&[([1, 1], ThreadWait::Both), works], 50), (vec![at(1, 5)], false));
        let slept = ([1, 1], ThreadWait::Throughout);
        assert_eq!(charged(&[slept, works], 9_000), (vec![at(1, 5)], false));
        // In milliseconds it can have woken up, allocated elsewhere, and come back.
        assert_eq!(charged(&[([1, 1], ThreadWait::Both), works], 9_000), (vec![at(1, 5)], true));
    }

    #[test]
    fn where_only_threads_that_wait_are_seen_nobody_is_charged() {
        let both = ([1, 1], ThreadWait::Both);
        assert_eq!(charged(&[both, ([2, 2], ThreadWait::Throughout)], 9_000), (vec![], true));
        assert_eq!(charged(&[both], 50).0, vec![]);
    }

    #[test]
    fn a_thread_that_waits_on_one_side_allocated_on_the_other_or_was_not_seen() {
        let wakes = [([1, 5], ThreadWait::Before)];
        assert_eq!(charged(&wakes, 9_000), (vec![at(0, 5)], true));
        assert_eq!(charged(&[([5, 1], ThreadWait::After)], 50), (vec![at(0, 5)], true));
    }
}
