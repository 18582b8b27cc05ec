//! Decides where a training iteration ends.

use rustc_hash::FxHashMap;

use crate::analysis::iterations::TAKEN_TOGETHER;
use crate::analysis::iterations::allocation_period::AllocationPeriod;
use crate::model::{
    AllocatorCounters, CudaIndex, Event, EventKind, MemoryKind, Metric, Nanos, Pool, StackId,
    StackSample, StackTable, ThreadId, TrainingStep,
};

/// A line of the program; `file` is its path or the end of it.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerLine {
    pub file: String,
    pub line: u32,
}

/// What ends a training iteration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IterationClock {
    /// Steps of an optimizer's counter or a loop variable.
    #[default]
    Steps,
    /// A thread reaches this line, anywhere on its stack.
    Marker(MarkerLine),
    /// A number of allocations.
    Period(AllocationPeriod),
}

#[derive(Debug, Default)]
pub(crate) struct RunningClock {
    clock: IterationClock,
    marked: FxHashMap<StackId, bool>,
    /// Whether each thread was last at the marker.
    at_marker: FxHashMap<ThreadId, bool>,
    passed: u64,
    /// Of the last two samples.
    samples: (Nanos, Nanos),
    /// Of a sample, with a time before it.
    seen: Option<(TrainingStep, Nanos)>,
    allocations: i64,
}

impl RunningClock {
    pub(crate) fn new(clock: IterationClock) -> RunningClock {
        RunningClock { clock, ..RunningClock::default() }
    }

    pub(crate) fn clock(&self) -> &IterationClock {
        &self.clock
    }

    /// Returns a step, and a time before it.
    pub(crate) fn on_step(&mut self, step: TrainingStep) -> Option<(TrainingStep, Nanos)> {
        let sampled = self.samples.1;
        // Without samples, the step lies within the last batch of events.
        let ago = step.uncertainty.map_or(TAKEN_TOGETHER, |within| within.0);
        let from = match step.uncertainty {
            None if sampled > Nanos(0) => sampled,
            _ => Nanos(step.time.0.saturating_sub(ago)),
        };
        (self.clock == IterationClock::Steps).then_some((step, from))
    }

    /// Returned with the next sample: this one's counters may precede the marker.
    pub(crate) fn on_sample(
        &mut self,
        sample: &StackSample,
        stacks: &StackTable,
    ) -> Option<(TrainingStep, Nanos)> {
        let seen = self.seen.take();
        self.samples = (self.samples.1, sample.time);
        let mut came = false;
        for thread in &sample.threads {
            came |= self.comes(thread.thread, thread.stack, stacks);
        }
        self.seen = self.passed(came, sample.time).map(|step| (step, self.samples.0));
        seen
    }

    pub(crate) fn on_event(
        &mut self,
        event: &Event,
        stacks: &StackTable,
    ) -> Option<(TrainingStep, Nanos)> {
        let EventKind::Allocated { memory_kind: MemoryKind::Torch(device), .. } = event.change
        else {
            return None;
        };
        if let IterationClock::Period(period) = self.clock {
            if period.device != device {
                return None;
            }
            self.allocations += 1;
            let step = period.step(self.allocations, event.time)?;
            return Some((TrainingStep { uncertainty: Some(Nanos(0)), ..step }, event.time));
        }
        let site = event.site.and_then(|site| stacks.get_site(site))?;
        let came = self.comes(site.thread, site.stack?, stacks);
        let step = self.passed(came, event.time)?;
        Some((TrainingStep { uncertainty: Some(Nanos(0)), ..step }, event.time))
    }

    pub(crate) fn on_counters(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        counters: &AllocatorCounters,
    ) -> Option<(TrainingStep, Nanos)> {
        match self.clock {
            IterationClock::Period(period) if !period.by_event && period.device == device => {
                let made = counters.stat(Metric::Allocation, Pool::All).allocated;
                Some((period.step(made, time)?, time))
            }
            _ => None,
        }
    }

    pub(crate) fn settles(&self) -> bool {
        self.seen.is_none()
    }

    fn comes(&mut self, thread: ThreadId, stack: StackId, stacks: &StackTable) -> bool {
        let IterationClock::Marker(marker) = &self.clock else { return false };
        let marked = *self.marked.entry(stack).or_insert_with(|| {
            stacks.frames(stack).any(|frame| {
                let function = stacks.get_function(frame.function);
                frame.line == marker.line
                    && function.is_some_and(|function| marker.is_in(&function.file))
            })
        });
        let before = self.at_marker.insert(thread, marked);
        marked && before == Some(false)
    }

    fn passed(&mut self, came: bool, time: Nanos) -> Option<TrainingStep> {
        if !came {
            return None;
        }
        self.passed += 1;
        Some(TrainingStep { time, step: self.passed, ..TrainingStep::default() })
    }
}

impl MarkerLine {
    fn is_in(&self, file: &str) -> bool {
        match file.strip_suffix(&*self.file) {
            Some(before) => {
                before.is_empty() || before.ends_with('/') || self.file.starts_with('/')
            }
            None => false,
        }
    }
}
