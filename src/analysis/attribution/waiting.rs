//! A waiting thread does not allocate.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::host_only::HostStacks;
use crate::analysis::autograd::EngineFrames;
use crate::model::{FollowedChange, FollowedThread, StackId, StackTable, ThreadId, ThreadWait};

/// In nanoseconds. In a longer time a thread can leave, allocate elsewhere and come back.
pub(in crate::analysis) const CANDIDATES_WITHIN: u64 = 100_000;
/// Threads wait at a stack if at least one visit in this many waits.
const VISITS_A_WAIT: u32 = 64;
/// They also work there if more than one allocation comes with this many waits.
const WAITS_A_WORK: u32 = 8;
const MAX_STACKS: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitFacts<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) engine: &'a EngineFrames,
    pub(crate) host_only: &'a HostStacks,
    pub(crate) places: &'a WaitingPlaces,
}

impl WaitFacts<'_> {
    /// The engine's threads allocate for the waiting thread.
    pub(crate) fn is_for_engine(self, stack: StackId) -> bool {
        self.engine.is_waiting(self.stacks, stack)
    }

    /// A thread that waits (lock, sleep, queue, socket, child, rank), just woke or will soon wait
    /// allocated elsewhere.
    pub(crate) fn may_allocate(self, stack: StackId, waits: bool) -> bool {
        let waits_there = if waits { !self.places.has_work(stack) } else { self.places.has(stack) };
        !self.host_only.has(stack) && (!waits_there || self.is_for_engine(stack))
    }

    /// It did not run, or only works on host memory. Engine threads allocate for a thread that
    /// waits for them.
    pub(crate) fn cannot_have_allocated(self, thread: &FollowedThread) -> bool {
        !thread.held_lock
            && !thread.stacks().any(|stack| self.is_for_engine(stack))
            && (thread.wait == ThreadWait::Throughout
                || thread.stacks().any(|stack| self.host_only.has(stack)))
    }
}

/// Stacks at which threads wait or work.
///
/// On a busy machine, a woken thread may long lack a processor or the GIL. The kernel says it runs,
/// so its stack's history counts as well.
#[derive(Debug, Default)]
pub(crate) struct WaitingPlaces {
    counts: FxHashMap<StackId, PlaceCounts>,
    /// Each thread's stack, and whether it waited there.
    visits: FxHashMap<ThreadId, (StackId, bool)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PlaceCounts {
    /// Arrivals, and those with a wait.
    visits: u32,
    waits: u32,
    /// Allocations at the stack.
    works: u32,
}

impl WaitingPlaces {
    pub(crate) fn see(&mut self, thread: ThreadId, stack: StackId, waits: bool) {
        let known = self.visits.get(&thread).filter(|visit| visit.0 == stack);
        let (is_new, waited) = known.map_or((true, false), |visit| (false, visit.1));
        self.visits.insert(thread, (stack, waited || waits));
        if self.counts.len() < MAX_STACKS || self.counts.contains_key(&stack) {
            let counts = self.counts.entry(stack).or_default();
            counts.visits = counts.visits.saturating_add(u32::from(is_new));
            counts.waits = counts.waits.saturating_add(u32::from(waits && !waited));
        }
    }

    /// A wait for the autograd engine (`is_for_engine`) does not count.
    pub(crate) fn see_change(
        &mut self,
        change: &FollowedChange,
        is_for_engine: impl Fn(StackId) -> bool,
    ) {
        for thread in &change.threads {
            for (reading, waits) in thread.sides().into_iter().zip(thread.wait.sides()) {
                match reading.stack() {
                    Some(stack) => {
                        self.see(thread.thread, stack, waits && !is_for_engine(stack));
                    }
                    None => _ = self.visits.remove(&thread.thread),
                }
            }
            // A thread that holds the allocator's lock allocates where it stays.
            let near = change.after.0.saturating_sub(change.before.0) <= CANDIDATES_WITHIN;
            if thread.held_lock
                && (near && thread.before == thread.after)
                && let Some(stack) = thread.after.stack()
            {
                self.works(stack);
            }
        }
    }

    /// A thread allocated there: no other can have, or it held the allocator's lock.
    pub(crate) fn works(&mut self, stack: StackId) {
        if let Some(counts) = self.counts.get_mut(&stack) {
            counts.works = counts.works.saturating_add(1);
        }
    }

    /// Whether threads only wait at this stack.
    pub(crate) fn has(&self, stack: StackId) -> bool {
        self.counts.get(&stack).is_some_and(|of| {
            of.waits > 0 && of.waits.saturating_mul(VISITS_A_WAIT) >= of.visits && !of.are_of_work()
        })
    }

    /// Whether threads also allocate at this stack: then their waits are mostly for the device.
    fn has_work(&self, stack: StackId) -> bool {
        self.counts.get(&stack).is_some_and(PlaceCounts::are_of_work)
    }
}

impl PlaceCounts {
    fn are_of_work(&self) -> bool {
        self.works.saturating_mul(WAITS_A_WORK) > self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Frame, Function, Nanos, StackReading};

    const THREAD: ThreadId = ThreadId(0);
    const LINE: StackId = StackId(7);
    const ELSEWHERE: StackId = StackId(8);

    /// Whether the line can have allocated while the thread waits, and while it does not.
    fn may(visits: &[bool], works: u32) -> [bool; 2] {
        let mut places = WaitingPlaces::default();
        for waits in visits {
            places.see(THREAD, LINE, *waits);
            places.see(THREAD, ELSEWHERE, false);
        }
        (0..works).for_each(|_| places.works(LINE));
        let (stacks, engine) = (StackTable::new(), EngineFrames::default());
        let host_only = HostStacks::default();
        let places = &places;
        let facts = WaitFacts { stacks: &stacks, engine: &engine, host_only: &host_only, places };
        [true, false].map(|waits| facts.may_allocate(LINE, waits))
    }

    #[test]
    fn a_waiting_or_waking_thread_does_not_allocate() {
        assert_eq!(may(&[], 0), [false, true]);
        assert_eq!(may(&[true], 0), [false, false]);
        let mostly_runnable = [&[true][..], &[false; 63]].concat();
        assert_eq!(may(&mostly_runnable, 0), [false, false]);
        let hardly_ever = [&[true][..], &[false; 64]].concat();
        assert_eq!(may(&hardly_ever, 0), [false, true]);
    }

    /// A copy to the device waits until it is done.
    #[test]
    fn a_line_that_waits_for_its_own_work_allocates() {
        assert_eq!(may(&[true; 8], 1), [false, false]);
        assert_eq!(may(&[true; 8], 2), [true, true]);
    }

    #[test]
    fn a_wait_counts_once_even_if_seen_often() {
        let mut places = WaitingPlaces::default();
        (0..99).for_each(|_| places.see(THREAD, LINE, true));
        assert!(places.has(LINE));
        places.works(LINE);
        assert!(!places.has(LINE));
    }

    #[test]
    fn a_thread_that_did_not_run_cannot_have_allocated() {
        let mut stacks = StackTable::new();
        let file = "/site-packages/torch/autograd/graph.py".into();
        let function = Function { file, ..Function::of_test("_engine_run_backward", 860) };
        let mut engine = EngineFrames::default();
        engine.observe(&function);
        let function = stacks.function(function);
        let frame = stacks.frame(Frame { function, line: 869 });
        let backward = stacks.stack(None, frame);
        let (host_only, places) = (HostStacks::default(), WaitingPlaces::default());
        let facts =
            WaitFacts { stacks: &stacks, engine: &engine, host_only: &host_only, places: &places };
        let cannot = |stack, wait, held_lock| {
            let [before, after] = [StackReading::Whole(stack); 2];
            let thread = FollowedThread { thread: THREAD, before, after, held_lock, wait };
            facts.cannot_have_allocated(&thread)
        };
        assert!(cannot(LINE, ThreadWait::Throughout, false));
        assert!(!cannot(LINE, ThreadWait::Both, false), "it may have run in between");
        assert!(!cannot(LINE, ThreadWait::Throughout, true), "it has the allocator's lock");
        assert!(!cannot(backward, ThreadWait::Throughout, false));
        assert!(facts.may_allocate(backward, true));
        let mut seen = WaitingPlaces::default();
        let change = FollowedChange {
            after: Nanos(1),
            threads: vec![FollowedThread {
                thread: THREAD,
                before: StackReading::Whole(backward),
                after: StackReading::Whole(backward),
                held_lock: false,
                wait: ThreadWait::Both,
            }],
            ..FollowedChange::empty()
        };
        seen.see_change(&change, |stack| engine.is_waiting(&stacks, stack));
        assert!(!seen.has(backward));
    }
}
