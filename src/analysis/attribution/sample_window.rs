//! Which threads of a sample may be allocating.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::host_only::HostStacks;
use crate::analysis::attribution::waiting::{WaitFacts, WaitingPlaces};
use crate::analysis::autograd::EngineFrames;
use crate::model::{Nanos, StackId, StackTable, ThreadActivity, ThreadId, ThreadSample};

/// Weight divided among the threads at one end; divisible by 1 to 8.
pub(crate) const END_WEIGHT: u64 = 840;

/// Which threads get memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadChoice {
    /// Only threads with the GIL.
    pub gil_only: bool,
    /// Also idle threads.
    pub idle_too: bool,
}

impl ThreadChoice {
    pub(crate) fn filter(self, mut thread: ThreadSample) -> Option<ThreadSample> {
        if self.idle_too && thread.activity == ThreadActivity::Idle {
            thread.activity = ThreadActivity::Active;
        }
        (thread.gil || !self.gil_only).then_some(thread)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    pub(crate) time: Nanos,
    pub(crate) sampled: bool,
    pub(crate) threads: Vec<ThreadSample>,
}

impl SampleWindow {
    /// Threads that are not idle; all if all are.
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

    pub(crate) fn at_work_alone(&self) -> Option<StackId> {
        let mut busy = self.threads.iter().filter(|t| t.activity != ThreadActivity::Idle);
        let (Some(only), None) = (busy.next(), busy.next()) else { return None };
        Some(only.stack)
    }

    /// Stacks that may have allocated between this sample and `other`, with weights of about
    /// [`END_WEIGHT`] in all. Empty without threads; [`AllocationOrigin::NotSeen`] if none can have
    /// allocated.
    ///
    /// Waiting threads, host-only ones (`waiting.rs`), and those asleep at both samples are left
    /// out. The best class counts: active or waiting for the autograd engine, else unknown. In it
    /// the main thread goes first: most PyTorch programs allocate there. If it waits for the
    /// engine, an engine thread that runs Python (a hook, a recomputed checkpoint) goes first.
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
            // It has just woken, or will sleep.
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
        // Too many: weights would not add up.
        if chosen.len() as u64 > END_WEIGHT {
            return vec![(AllocationOrigin::NoStack, END_WEIGHT)];
        }
        let weight = (END_WEIGHT / chosen.len() as u64).max(1);
        chosen.iter().map(|t| (AllocationOrigin::Stack(t.thread, t.stack), weight)).collect()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct StackFacts<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) engine: &'a EngineFrames,
    pub(crate) host_only: &'a HostStacks,
    pub(crate) places: &'a WaitingPlaces,
    /// Number of callers.
    pub(crate) depths: &'a [u32],
}

impl<'a> StackFacts<'a> {
    fn waits(self) -> WaitFacts<'a> {
        let StackFacts { stacks, engine, host_only, places, .. } = self;
        WaitFacts { stacks, engine, host_only, places }
    }

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

/// Stacks that may have allocated between two samples, half for each end; an end without any leaves
/// its half to the other. If neither has any, a thread that slept at two stacks was below their
/// common one.
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
        && let Some((thread, stack)) = moved_thread(begin, end, known)
    {
        seen = vec![(AllocationOrigin::Below(thread, stack), END_WEIGHT)];
    }
    seen
}

/// The only thread that moved, else the main one, with its common stack.
fn moved_thread(
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
