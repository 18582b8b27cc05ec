//! Sampled stacks for events without a stack.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::{StackId, ThreadActivity, ThreadId, ThreadSample};

const MAX_SAMPLES: usize = 128;

/// Samples in a row may miss a thread.
const MAX_MISSED_SAMPLES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct SampledStacks {
    /// Each with its start (CLOCK_MONOTONIC, nanoseconds). A waiting thread has no stack: it will
    /// allocate elsewhere.
    samples: VecDeque<(u64, FxHashMap<ThreadId, Option<StackId>>)>,
}

impl SampledStacks {
    pub(super) fn on_sample(&mut self, time: u64, threads: &[ThreadSample]) {
        let mut stacks = match self.samples.len() {
            MAX_SAMPLES.. => self.samples.pop_front().map(|(_, stacks)| stacks).unwrap_or_default(),
            _ => FxHashMap::default(),
        };
        stacks.clear();
        let stack = |sample: &ThreadSample| {
            (sample.activity != ThreadActivity::Idle).then_some(sample.stack)
        };
        stacks.extend(threads.iter().map(|sample| (sample.thread, stack(sample))));
        self.samples.push_back((time, stacks));
    }

    /// From the last sample before `time` that has the thread; `Some(None)` if it waited.
    pub(super) fn last(&self, thread: ThreadId, time: u64) -> Option<Option<StackId>> {
        let before = self.samples.partition_point(|(at, _)| *at <= time);
        let samples = self.samples.range(..before).rev().take(MAX_MISSED_SAMPLES);
        samples.filter_map(|(_, stacks)| stacks.get(&thread).copied()).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sample_before_an_event_counts() {
        let mut stacks = SampledStacks::default();
        let thread = ThreadId(1);
        for time in 0..200 {
            let stack = StackId(time as u32);
            let sample =
                ThreadSample { thread, stack, gil: true, activity: ThreadActivity::Active };
            stacks.on_sample(10 * time, &[sample]);
        }
        assert_eq!(stacks.last(thread, 1995), Some(Some(StackId(199))));
        assert_eq!(stacks.last(thread, 1989), Some(Some(StackId(198))));
        stacks.on_sample(2000, &[]);
        assert_eq!(stacks.last(thread, 2005), Some(Some(StackId(199))));
        assert_eq!(stacks.last(thread, 700), None);
        assert_eq!(stacks.last(ThreadId(2), 1995), None);
    }

    #[test]
    fn a_waiting_thread_has_no_allocation_site() {
        let mut stacks = SampledStacks::default();
        let thread = ThreadId(1);
        for (time, activity) in [(10, ThreadActivity::Active), (20, ThreadActivity::Idle)] {
            let stack = StackId(time as u32);
            stacks.on_sample(time, &[ThreadSample { thread, stack, gil: false, activity }]);
        }
        assert_eq!(stacks.last(thread, 15), Some(Some(StackId(10))));
        assert_eq!(stacks.last(thread, 25), Some(None));
    }
}
