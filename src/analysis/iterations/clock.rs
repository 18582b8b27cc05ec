//! What tells where a training iteration ends.

use rustc_hash::FxHashMap;

use crate::analysis::iterations::TAKEN_TOGETHER;
use crate::analysis::iterations::allocation_period::AllocationPeriod;
use crate::model::{
    AllocatorCounters, CudaIndex, Event, EventKind, MemoryKind, Metric, Nanos, Pool, StackId,
    StackSample, StackTable, ThreadId, TrainingStep,
};

/// A line of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerLine {
    /// Its file: the whole path, or the end of it.
    pub file: String,
    /// Its number.
    pub line: u32,
}

/// What tells where a training iteration ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IterationClock {
    /// The recorded steps: of an optimizer's counter or of a variable.
    #[default]
    Steps,
    /// A thread comes to this line, on whatever place of its stack.
    Marker(MarkerLine),
    /// So many allocations have been made.
    Period(AllocationPeriod),
}

/// A clock that runs.
#[derive(Debug, Default)]
pub(crate) struct RunningClock {
    clock: IterationClock,
    /// Whether a stack holds the marker, by the stack's number.
    marked: FxHashMap<StackId, bool>,
    /// Whether a thread was last seen at the marker.
    at_marker: FxHashMap<ThreadId, bool>,
    /// Times the marker was come to.
    passed: u64,
    /// The times of the last two samples.
    samples: (Nanos, Nanos),
    /// A step seen by a sample, and after what it was made.
    seen: Option<(TrainingStep, Nanos)>,
    /// Allocations seen one by one.
    allocations: i64,
}

impl RunningClock {
    pub(crate) fn new(clock: IterationClock) -> RunningClock {
        RunningClock { clock, ..RunningClock::default() }
    }

    pub(crate) fn clock(&self) -> &IterationClock {
        &self.clock
    }

    /// Each of these gives the step that was made, and a time after which it was.
    pub(crate) fn on_step(&mut self, step: TrainingStep) -> Option<(TrainingStep, Nanos)> {
        let sampled = self.samples.1;
        // Without samples, events are what is taken between two looks at the counter.
        let ago = step.uncertainty.map_or(TAKEN_TOGETHER, |within| within.0);
        let from = match step.uncertainty {
            None if sampled > Nanos(0) => sampled,
            _ => Nanos(step.time.0.saturating_sub(ago)),
        };
        (self.clock == IterationClock::Steps).then_some((step, from))
    }

    /// The counters that come with a sample may be of the time before the marker or after it: the step is given by the next one.
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

    /// After the counters were taken.
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

    /// Whether what was seen before a sample is of the iteration under way then: not while a step waits to be given.
    pub(crate) fn settles(&self) -> bool {
        self.seen.is_none()
    }

    /// Whether a thread that is on `stack` now has come to the marker.
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
