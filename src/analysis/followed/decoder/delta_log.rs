//! The deltas of a recording, kept for decoding.

use std::ops::Range;

use rustc_hash::FxHashSet;

use crate::analysis::attribution::AllocationOrigin;
use crate::model::{
    CounterDelta, FollowedChange, StackId, StackReading, StackTable, ThreadId, ThreadWait,
};

/// Deltas kept (some 150 bytes each); later ones are not decoded.
const MAX_DELTAS: usize = 1 << 20;

/// Nanoseconds within which a thread that is seen at one stack twice was not elsewhere.
const STAYS_WITHIN: u64 = 100_000;

/// Polls at most so far apart saw all places where a thread was, in nanoseconds.
const NEAR: u64 = 20_000;

/// What polls saw of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeenStack {
    Stack(StackId),
    /// It waits for the autograd engine's threads.
    WaitsForEngine(StackId),
    NoFrames,
    Unread,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SeenThread {
    pub(super) thread: ThreadId,
    /// Before and after the delta.
    pub(super) sides: [SeenStack; 2],
    pub(super) held_lock: bool,
    pub(super) wait: ThreadWait,
}

impl SeenThread {
    /// Whether it waited all the time.
    pub(super) fn waited(&self) -> bool {
        self.wait == ThreadWait::Throughout
    }
}

/// Growth of a pool's totals: never negative.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolGrowth {
    pub(super) allocations: u32,
    pub(super) frees: u32,
    pub(super) requested_bytes: u64,
    pub(super) freed_requested_bytes: u64,
}

impl From<&CounterDelta> for PoolGrowth {
    fn from(of: &CounterDelta) -> PoolGrowth {
        let count = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
        let bytes = |bytes: i64| bytes.max(0) as u64;
        PoolGrowth {
            allocations: count(of.allocations),
            frees: count(of.frees),
            requested_bytes: bytes(of.requested_bytes),
            freed_requested_bytes: bytes(of.freed_requested_bytes),
        }
    }
}

#[derive(Debug)]
pub(super) struct LoggedDelta {
    /// Nanoseconds of the polls.
    pub(super) before: u64,
    pub(super) after: u64,
    /// Small and large.
    pub(super) pools: [PoolGrowth; 2],
    threads: Range<u32>,
    /// A thread that is not listed may have made it, or one elsewhere.
    pub(super) others_possible: bool,
}

impl LoggedDelta {
    pub(super) fn allocations(&self) -> usize {
        self.pools.iter().map(|pool| pool.allocations as usize).sum()
    }
}

/// Deltas in order, with the threads that polls saw.
#[derive(Debug, Default)]
pub(in crate::analysis::followed) struct DeltaLog {
    pub(super) deltas: Vec<LoggedDelta>,
    threads: Vec<SeenThread>,
    calls: SeenCalls,
}

/// Stacks that only call what allocates.
#[derive(Debug, Default)]
struct SeenCalls {
    seen: FxHashSet<StackId>,
    /// Polls saw deeper stacks.
    callers: FxHashSet<StackId>,
    /// An allocation was made there: polls near each other saw nothing else.
    sites: FxHashSet<StackId>,
}

impl SeenCalls {
    fn see(&mut self, stack: StackId, stacks: &StackTable) {
        if self.seen.insert(stack) {
            let callers = stacks.callers(stack).skip(1);
            callers.take_while(|caller| self.callers.insert(*caller)).for_each(drop);
        }
    }
}

impl DeltaLog {
    pub(in crate::analysis::followed) fn add(
        &mut self,
        change: &FollowedChange,
        is_waiting: impl Fn(StackId) -> bool,
        stacks: &StackTable,
    ) {
        if self.deltas.len() >= MAX_DELTAS {
            return;
        }
        let side = |reading: StackReading| match reading {
            StackReading::Whole(stack) if is_waiting(stack) => SeenStack::WaitsForEngine(stack),
            StackReading::Whole(stack) => SeenStack::Stack(stack),
            StackReading::NoFrames => SeenStack::NoFrames,
            StackReading::Torn | StackReading::NotRead => SeenStack::Unread,
        };
        let is_one = change.after.0.saturating_sub(change.before.0) <= STAYS_WITHIN
            && change.allocations() == 1
            && !change.others_possible;
        for thread in &change.threads {
            thread.stacks().for_each(|stack| self.calls.see(stack, stacks));
            if let StackReading::Whole(stack) = thread.after
                && is_one
                && thread.before == thread.after
            {
                self.calls.sites.insert(stack);
            }
        }
        let first = self.threads.len() as u32;
        self.threads.extend(change.threads.iter().map(|thread| SeenThread {
            thread: thread.thread,
            sides: thread.sides().map(side),
            held_lock: thread.held_lock,
            wait: thread.wait,
        }));
        self.deltas.push(LoggedDelta {
            before: change.before.0,
            after: change.after.0,
            pools: [(&change.small).into(), (&change.large).into()],
            threads: first..self.threads.len() as u32,
            others_possible: change.others_possible || change.counters_torn,
        });
    }

    pub(in crate::analysis::followed) fn len(&self) -> usize {
        self.deltas.len()
    }

    /// Forgets all but the last deltas, which with their allocations are at most `most`.
    pub(in crate::analysis::followed) fn keep_last(&mut self, most: usize) {
        let mut left = most;
        let kept = self.deltas.iter().rev().take_while(|delta| {
            let needed = delta.allocations().saturating_add(1);
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            fits
        });
        let dropped = self.deltas.len() - kept.count();
        let start =
            self.deltas.get(dropped).map_or(self.threads.len() as u32, |it| it.threads.start);
        self.deltas.drain(..dropped);
        self.threads.drain(..start as usize);
        for delta in &mut self.deltas {
            delta.threads = delta.threads.start - start..delta.threads.end - start;
        }
    }

    pub(super) fn threads(&self, of: &LoggedDelta) -> &[SeenThread] {
        self.threads.get(of.threads.start as usize..of.threads.end as usize).unwrap_or_default()
    }

    /// Where threads stood around the only allocation of a delta, if the polls lie so near each
    /// other that it was nowhere else.
    pub(super) fn stood(&self, of: &LoggedDelta) -> Option<Vec<AllocationOrigin>> {
        let is_near = of.after.saturating_sub(of.before) <= NEAR;
        if !is_near || of.others_possible || of.allocations() != 1 {
            return None;
        }
        let mut stood = Vec::new();
        for seen in self.threads(of).iter().filter(|seen| !seen.waited()) {
            for side in seen.sides {
                let (SeenStack::Stack(stack) | SeenStack::WaitsForEngine(stack)) = side else {
                    return None;
                };
                let origin = AllocationOrigin::Stack(seen.thread, stack);
                if !stood.contains(&origin) {
                    stood.push(origin);
                }
            }
        }
        Some(stood)
    }

    /// Whether a site may be where its thread only waits: it was there at polls that lie far
    /// apart, and did not hold the allocator's lock.
    pub(super) fn may_only_wait(&self, origin: AllocationOrigin, of: &LoggedDelta) -> bool {
        let AllocationOrigin::Stack(thread, stack) = origin else { return false };
        let stood = [SeenStack::Stack(stack); 2];
        of.after.saturating_sub(of.before) > STAYS_WITHIN
            && self
                .threads(of)
                .iter()
                .any(|seen| seen.thread == thread && seen.sides == stood && !seen.held_lock)
    }

    /// Whether what was allocated at this stack was allocated deeper.
    pub(super) fn only_calls(&self, stack: StackId) -> bool {
        self.calls.callers.contains(&stack) && !self.calls.sites.contains(&stack)
    }

    pub(super) fn all_threads(&self) -> &[SeenThread] {
        &self.threads
    }

    /// The stack in a thread that polls saw there.
    pub(super) fn origin(
        &self,
        stack: StackId,
        of: &LoggedDelta,
        usual: ThreadId,
    ) -> AllocationOrigin {
        let (ran, waited) = (SeenStack::Stack(stack), SeenStack::WaitsForEngine(stack));
        let shows = |seen: &&SeenThread| seen.sides.iter().any(|it| [ran, waited].contains(it));
        let thread = self.threads(of).iter().find(shows).map_or(usual, |seen| seen.thread);
        AllocationOrigin::Stack(thread, stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FollowedThread, Frame, Function, Nanos};

    #[test]
    fn a_call_that_polls_see_deeper_is_no_site_unless_the_program_stayed_there() {
        let mut stacks = StackTable::new();
        let function = stacks.function(Function::of_test("f", 9));
        let [line, inner] = [1, 2].map(|line| stacks.frame(Frame { function, line }));
        let call = stacks.stack(None, line);
        let deeper = stacks.stack(Some(call), inner);
        let change = |before, after| FollowedChange {
            after: Nanos(5_000),
            small: CounterDelta { allocations: 1, allocated_bytes: 512, ..CounterDelta::default() },
            threads: vec![FollowedThread {
                thread: ThreadId(0),
                before: StackReading::Whole(before),
                after: StackReading::Whole(after),
                held_lock: false,
                wait: ThreadWait::default(),
            }],
            ..FollowedChange::empty()
        };
        let mut log = DeltaLog::default();
        log.add(&change(call, deeper), |_| false, &stacks);
        assert_eq!([call, deeper].map(|stack| log.only_calls(stack)), [true, false]);
        log.add(&change(call, call), |_| false, &stacks);
        assert!(!log.only_calls(call), "its line allocates, too");
    }
}
