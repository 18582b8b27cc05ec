//! One instant of the recording: the threads seen, and which of them may have been allocating.

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::model::{Nanos, StackTable, ThreadActivity, ThreadSample};

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

    /// The threads that may have allocated at this instant, with weights that add up to about
    /// [`END_WEIGHT`]; empty when no thread was seen.
    ///
    /// The best class that has a thread is taken: active ones and those that wait for the autograd
    /// engine; those of unknown activity; idle ones. Within it the main thread is preferred, as
    /// PyTorch programs allocate there far more often than anywhere else; without it all share
    /// alike. One exception: while the preferred thread waits for the engine, an engine thread that
    /// runs Python itself (a hook, a recomputed checkpoint) knows better what is being allocated.
    pub(crate) fn allocating(
        &self,
        stacks: &StackTable,
        engine: &EngineFrames,
    ) -> Vec<(AllocationOrigin, u64)> {
        let waits = |t: &ThreadSample| engine.is_waiting(stacks, t.stack);
        let class = |t: &ThreadSample| match t.activity {
            ThreadActivity::Active => 0,
            _ if waits(t) => 0,
            ThreadActivity::Unknown => 1,
            ThreadActivity::Idle => 2,
        };
        let Some(best) = self.threads.iter().map(class).min() else {
            return Vec::new();
        };
        let mut chosen: Vec<&ThreadSample> =
            self.threads.iter().filter(|t| class(t) == best).collect();
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
        // Of so many none can be told from the others, and their weights would not add up.
        if chosen.len() as u64 > END_WEIGHT {
            return vec![(AllocationOrigin::NoStack, END_WEIGHT)];
        }
        let weight = (END_WEIGHT / chosen.len() as u64).max(1);
        chosen.iter().map(|t| (AllocationOrigin::Stack(t.thread, t.stack), weight)).collect()
    }
}
