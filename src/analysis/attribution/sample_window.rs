//! One instant of the recording: the threads seen, and which of them may have been allocating.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::host_only::HostOnlyStacks;
use crate::analysis::attribution::waiting::{WaitFacts, WaitingPlaces};
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::model::{Nanos, StackId, StackTable, ThreadActivity, ThreadId, ThreadSample};

/// Weight that one end of an interval spreads over the threads charged; divisible by 1 to 8.
pub(crate) const END_WEIGHT: u64 = 840;

/// Which threads memory may be charged to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadChoice {
    /// Only those that hold the GIL.
    pub gil_only: bool,
    /// Idle ones as if they were at work.
    pub idle_too: bool,
}

impl ThreadChoice {
    /// What counts of a thread; `None` when it is left out.
    pub(crate) fn filter(self, mut thread: ThreadSample) -> Option<ThreadSample> {
        if self.idle_too && thread.activity == ThreadActivity::Idle {
            thread.activity = ThreadActivity::Active;
        }
        (thread.gil || !self.gil_only).then_some(thread)
    }
}

/// One instant.
#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    /// When.
    pub(crate) time: Nanos,
    /// Whether the threads were looked at.
    pub(crate) sampled: bool,
    /// The threads read.
    pub(crate) threads: Vec<ThreadSample>,
}

impl SampleWindow {
    /// Threads whose lines are charged with what the device's counters did: all that are not idle; when
    /// every thread is idle, all of them.
    pub(crate) fn at_work<'a>(
        &'a self,
        stacks: &'a StackTable,
        engine: &'a EngineFrames,
    ) -> impl Iterator<Item = &'a ThreadSample> {
        let busy = |t: &ThreadSample| {
            t.activity != ThreadActivity::Idle || engine.is_waiting(stacks, t.stack)
        };
        let any = self.threads.iter().any(busy);
        self.threads.iter().filter(move |t| !any || busy(t))
    }

    /// Where the only thread stands that may be at work.
    pub(crate) fn at_work_alone(&self) -> Option<StackId> {
        let mut busy = self.threads.iter().filter(|t| t.activity != ThreadActivity::Idle);
        let (Some(only), None) = (busy.next(), busy.next()) else { return None };
        Some(only.stack)
    }

    /// The threads whose stack at this instant may be the one that allocated between it and the one of `other` (the same
    /// for what was allocated right then), with weights that add up to about [`END_WEIGHT`]; empty when no thread was
    /// seen, [`AllocationOrigin::NotSeen`] when none of those seen can have done it.
    ///
    /// A thread that waits allocates nothing, and no more does one that feeds the host's memory only (`waiting.rs`). One that slept in the kernel at both instants was elsewhere when it allocated: where it slept is
    /// not where. Of the others the best class that has a thread is taken: active ones and those that wait for the
    /// autograd engine; those of unknown activity. Within it the main thread is preferred, as PyTorch programs allocate
    /// there far more often than anywhere else; without it all share alike. One exception: while the preferred thread
    /// waits for the engine, an engine thread that runs Python itself (a hook, a recomputed checkpoint) knows better what
    /// is being allocated.
    pub(crate) fn allocating(
        &self,
        other: &SampleWindow,
        known: StackFacts<'_>,
    ) -> Vec<(AllocationOrigin, u64)> {
        let stacks = known.stacks;
        let waits = |t: &ThreadSample| known.engine.is_waiting(stacks, t.stack);
        let slept: FxHashMap<ThreadId, &ThreadSample> = other
            .threads
            .iter()
            .filter(|t| t.activity != ThreadActivity::Active && !waits(t))
            .map(|t| (t.thread, t))
            .collect();
        let woke_here = |t: &ThreadSample| {
            let before = slept.get(&t.thread);
            before.is_some_and(|b| b.stack == t.stack && b.activity == ThreadActivity::Idle)
        };
        let class = |t: &ThreadSample| match t.activity {
            activity if !known.waits().may_allocate(t.stack, activity == ThreadActivity::Idle) => {
                None
            }
            // It has just woken up, or is about to sleep.
            ThreadActivity::Active if woke_here(t) => None,
            ThreadActivity::Active => Some(0),
            _ if waits(t) => Some(0),
            ThreadActivity::Unknown | ThreadActivity::Idle => {
                (!slept.contains_key(&t.thread)).then_some(1)
            }
        };
        if self.threads.is_empty() {
            return Vec::new();
        }
        let Some(best) = self.threads.iter().filter_map(class).min() else {
            return vec![(AllocationOrigin::NotSeen, END_WEIGHT)];
        };
        let mut chosen: Vec<&ThreadSample> =
            self.threads.iter().filter(|t| class(t) == Some(best)).collect();
        let name_starts = |t: &ThreadSample, start: &str| {
            stacks
                .get_thread(t.thread)
                .and_then(|t| t.name.as_deref())
                .is_some_and(|n| n.starts_with(start))
        };
        let is_main = |t: &ThreadSample| stacks.get_thread(t.thread).is_some_and(|t| t.main);
        if chosen.len() > 1 {
            let engine_threads = |t: &&ThreadSample| name_starts(t, "pt_autograd") && !waits(t);
            if chosen.iter().any(|t| waits(t)) && chosen.iter().any(engine_threads) {
                chosen.retain(engine_threads);
            } else if chosen.iter().any(|t| is_main(t)) {
                chosen.retain(|t| is_main(t));
            }
        }
        // Of this many none can be told from the others, and their weights would not add up.
        if chosen.len() as u64 > END_WEIGHT {
            return vec![(AllocationOrigin::NoStack, END_WEIGHT)];
        }
        let weight = (END_WEIGHT / chosen.len() as u64).max(1);
        chosen.iter().map(|t| (AllocationOrigin::Stack(t.thread, t.stack), weight)).collect()
    }
}

/// What is known of stacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackFacts<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) engine: &'a EngineFrames,
    pub(crate) host_only: &'a HostOnlyStacks,
    pub(crate) places: &'a WaitingPlaces,
    /// How many callers each has, by number.
    pub(crate) depths: &'a [u32],
}

impl<'a> StackFacts<'a> {
    /// What tells who cannot have allocated.
    fn waits(self) -> WaitFacts<'a> {
        let StackFacts { stacks, engine, host_only, places, .. } = self;
        WaitFacts { stacks, engine, host_only, places }
    }

    /// The innermost stack that two stacks have in common.
    pub(crate) fn common(self, a: StackId, b: StackId) -> Option<StackId> {
        let depth = |s: StackId| self.depths.get(s.0 as usize).copied().unwrap_or(0);
        let up = |s: StackId| self.stacks.get_stack(s).and_then(|n| n.parent);
        let (mut a, mut b) = (a, b);
        while a != b {
            let (depth_a, depth_b) = (depth(a), depth(b));
            if depth_a >= depth_b {
                a = up(a)?;
            }
            if depth_b >= depth_a {
                b = up(b)?;
            }
        }
        Some(a)
    }
}

/// Who may have allocated between two instants: half of it stands for each end. An end at which nobody can have done it
/// leaves its half to the other. Where nobody can at either, but a thread sleeps in one place and then in another, it was
/// somewhere below what both stacks have in common.
pub(crate) fn allocating_between(
    begin: &SampleWindow,
    end: &SampleWindow,
    known: StackFacts<'_>,
) -> Vec<(AllocationOrigin, u64)> {
    let mut seen = begin.allocating(end, known);
    seen.extend(end.allocating(begin, known));
    if seen.iter().any(|(origin, _)| *origin != AllocationOrigin::NotSeen) {
        seen.retain(|(origin, _)| *origin != AllocationOrigin::NotSeen);
    } else if !seen.is_empty()
        && let Some((thread, stack)) = went_on(begin, end, known)
    {
        seen = vec![(AllocationOrigin::Below(thread, stack), END_WEIGHT)];
    }
    seen
}

/// The thread that did something between two instants at which all slept, and what it stayed in: the main one if it did,
/// else the only one.
fn went_on(
    begin: &SampleWindow,
    end: &SampleWindow,
    known: StackFacts<'_>,
) -> Option<(ThreadId, StackId)> {
    let before: FxHashMap<ThreadId, StackId> =
        begin.threads.iter().map(|t| (t.thread, t.stack)).collect();
    let moved: Vec<(ThreadId, StackId, StackId)> = end
        .threads
        .iter()
        .filter(|t| !known.host_only.has(t.stack))
        .filter_map(|t| Some((t.thread, *before.get(&t.thread)?, t.stack)))
        .filter(|(_, from, to)| from != to)
        .collect();
    let is_main = |thread: ThreadId| known.stacks.get_thread(thread).is_some_and(|t| t.main);
    let main = moved.iter().find(|(thread, ..)| is_main(*thread));
    let (thread, from, to) = match (main, &moved[..]) {
        (Some(main), _) => *main,
        (None, [only]) => *only,
        (None, _) => return None,
    };
    Some((thread, known.common(from, to)?))
}
