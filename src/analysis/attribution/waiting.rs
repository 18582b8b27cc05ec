//! Who waits did not allocate: the one rule for samples and for followed changes.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::host_only::HostOnlyStacks;
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::model::{
    FollowedChange, FollowedThread, StackId, StackReading, StackTable, ThreadId, ThreadWait,
};

/// A stack on which a thread waited so often is one where threads wait.
const MIN_WAITS: u32 = 2;
/// Where threads work as well, they are seen to at least once in so many waits.
const WAITS_A_WORK: u32 = 8;
/// Stacks remembered.
const MAX_STACKS: usize = 1 << 16;

/// What tells whether a thread can have allocated where it was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitFacts<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) engine: &'a EngineFrames,
    pub(crate) host_only: &'a HostOnlyStacks,
    pub(crate) places: &'a WaitingPlaces,
}

impl WaitFacts<'_> {
    /// Whether a thread waits there for the autograd engine, whose threads allocate on its behalf.
    pub(crate) fn is_for_engine(self, stack: StackId) -> bool {
        self.engine.is_waiting(self.stacks, stack)
    }

    /// Whether a line on which a thread `waits`, or does not, can be the one that allocated beside this reading of its stack.
    ///
    /// A thread that sleeps, or waits for a lock, a queue, a socket, a child or another rank, allocates nothing there: where it
    /// allocated meanwhile, it had left that line or had not come to it. So it is where it wakes up, or is about to wait.
    pub(crate) fn may_allocate(self, stack: StackId, waits: bool) -> bool {
        let waits_there = if waits { !self.places.has_work(stack) } else { self.places.has(stack) };
        !self.host_only.has(stack) && (!waits_there || self.is_for_engine(stack))
    }

    /// Whether a thread that was listed beside a change cannot have made it, wherever it went: it did not run meanwhile, or it works
    /// on the host's memory only. The engine's threads allocate for one that waits for them, whether it runs or not.
    pub(crate) fn cannot_have_allocated(self, thread: &FollowedThread) -> bool {
        !thread.held_lock
            && !thread.stacks().any(|stack| self.is_for_engine(stack))
            && (thread.wait == ThreadWait::Throughout
                || thread.stacks().any(|stack| self.host_only.has(stack)))
    }
}

/// On which stacks threads were seen to wait, and on which to work.
#[derive(Debug, Default)]
pub(crate) struct WaitingPlaces {
    counts: FxHashMap<StackId, PlaceCounts>,
    /// Where each thread waits: one wait counts once, however often it is seen.
    waiting: FxHashMap<ThreadId, StackId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PlaceCounts {
    waits: u32,
    works: u32,
}

impl WaitingPlaces {
    /// A thread was seen to wait there.
    pub(crate) fn waits(&mut self, thread: ThreadId, stack: StackId) {
        if self.waiting.insert(thread, stack) != Some(stack)
            && let Some(counts) = self.counts(stack)
        {
            counts.waits = counts.waits.saturating_add(1);
        }
    }

    /// A thread was seen elsewhere, or not to wait.
    pub(crate) fn goes_on(&mut self, thread: ThreadId) {
        self.waiting.remove(&thread);
    }

    /// A thread that does not wait was seen at work there, and may have allocated.
    pub(crate) fn works(&mut self, stack: StackId) {
        if let Some(counts) = self.counts(stack) {
            counts.works = counts.works.saturating_add(1);
        }
    }

    /// Takes the threads of a change. Who does not wait may want to go on and not get the GIL: that it works is not known.
    pub(crate) fn see(&mut self, change: &FollowedChange) {
        for thread in &change.threads {
            for (reading, waits) in thread.sides().into_iter().zip(thread.wait.sides()) {
                match reading {
                    StackReading::Whole(stack) if waits => self.waits(thread.thread, stack),
                    _ => self.goes_on(thread.thread),
                }
            }
        }
    }

    fn counts(&mut self, stack: StackId) -> Option<&mut PlaceCounts> {
        let has_room = self.counts.len() < MAX_STACKS || self.counts.contains_key(&stack);
        has_room.then(|| self.counts.entry(stack).or_default())
    }

    /// Whether threads wait there, and do nothing else.
    fn has(&self, stack: StackId) -> bool {
        self.counts.get(&stack).is_some_and(|of| of.waits >= MIN_WAITS && !of.are_of_work())
    }

    /// Whether threads work there, though they wait as well: for the device, as a rule.
    fn has_work(&self, stack: StackId) -> bool {
        self.counts.get(&stack).is_some_and(PlaceCounts::are_of_work)
    }
}

impl PlaceCounts {
    fn are_of_work(&self) -> bool {
        self.works.saturating_mul(WAITS_A_WORK) > self.waits
    }
}
