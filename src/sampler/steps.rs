//! Counts training steps by a named variable, else the optimizer's counter, else a counting
//! object.

use super::loop_variables::LoopVariables;
use super::optimizer_counter::OptimizerCounter;
use crate::abi::WatchedSteps;
use crate::model::{CountingObject, Nanos, StepCounterKind, StepSource, TrainingStep};
use crate::probe::RawStep;
use crate::python::{IntegerAttribute, InterpreterReader};
use crate::target::Process;

/// Words that the kernel program reads to see steps between events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterMeaning {
    pub(super) places: WatchedSteps,
    counter: Option<OptimizerCounter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StepLocations {
    /// With the step that memspy reads there now.
    At(Box<CounterMeaning>, TrainingStep),
    /// Unreadable at this moment: unchanged.
    Unknown,
    /// Nothing counts yet, or any more.
    Nowhere,
    Unreadable,
}

#[derive(Default)]
pub(super) struct StepTracker {
    variables: Option<LoopVariables>,
    counter: Option<OptimizerCounter>,
    object: Option<(StepSource, IntegerAttribute)>,
    counted: Option<Nanos>,
    last: Option<TrainingStep>,
    was_read: bool,
}

impl StepTracker {
    /// Counts by variables, not the optimizer's counter.
    pub(super) fn follow(&mut self, variables: Option<LoopVariables>) {
        self.variables = variables;
    }

    pub(super) fn found(&mut self, counter: Option<OptimizerCounter>) {
        if counter.is_some() {
            self.object = None;
        }
        if self.variables.is_none() && counter.is_some() && counter != self.counter {
            (self.last, self.counted) = (None, None);
        }
        self.counter = counter;
    }

    /// Keeps the first object while it is found.
    pub(super) fn found_objects(
        &mut self,
        python: Option<&InterpreterReader>,
        process: &Process,
        found: &[CountingObject],
    ) {
        let known = self.object.as_ref().map(|(_, attribute)| attribute.object());
        let first = found.first().map(|first| first.kind);
        let is_kept = found.iter().any(|it| Some(it.object) == known && Some(it.kind) == first);
        if self.variables.is_some() || self.counter.is_some() || is_kept {
            return;
        }
        self.object = found.first().and_then(|first| {
            let (clock, name) = match first.kind {
                StepCounterKind::Trainer => (StepSource::Trainer, "global_step"),
                StepCounterKind::Scheduler => (StepSource::Scheduler, "last_epoch"),
            };
            Some((clock, python?.integer_attribute(process, first.object, name)?))
        });
        (self.last, self.counted) = (None, None);
    }

    pub(super) fn last(&self) -> Option<TrainingStep> {
        self.last
    }

    /// Until when the last step, or none, is known to have run.
    pub(super) fn known_until(&self) -> Option<Nanos> {
        match &self.variables {
            Some(variables) => variables.known_until(),
            None => self.counted,
        }
    }

    pub(super) fn locations(&mut self, process: &Process, time: Nanos) -> StepLocations {
        let Some(step) = self.read(process, time) else {
            return if self.variables.is_some() {
                StepLocations::Unknown
            } else {
                StepLocations::Nowhere
            };
        };
        let places = match (&self.variables, self.counter) {
            (Some(variables), _) => variables.watched(),
            (None, Some(counter)) => Some(WatchedSteps { step: counter.watched(), epoch: None }),
            (None, None) => None,
        };
        let counter = self.counter.filter(|_| self.variables.is_none());
        match places {
            Some(places) => StepLocations::At(Box::new(CounterMeaning { places, counter }), step),
            None => StepLocations::Unreadable,
        }
    }

    /// The step at an event at most `within` ago, if it is new.
    pub(super) fn at_event(
        &mut self,
        counts: &CounterMeaning,
        seen: &RawStep,
        time: Nanos,
        within: Option<Nanos>,
    ) -> Option<TrainingStep> {
        let (step, clock) = match counts.counter {
            Some(counter) => (counter.steps(seen.step)?, StepSource::Optimizer),
            None => (seen.step, StepSource::Variable),
        };
        match (&mut self.variables, clock) {
            (Some(variables), StepSource::Variable) => variables.observe(time),
            _ => self.counted = self.counted.max(Some(time)),
        }
        let epoch = counts.places.epoch.map(|_| seen.epoch);
        self.on_step(TrainingStep { time, step, epoch, clock, uncertainty: within, is_over: false })
    }

    /// The step if it is new, or the end of the last one.
    pub(super) fn next(&mut self, process: &Process, time: Nanos) -> Option<TrainingStep> {
        let until = self.known_until();
        let read = self.read(process, time);
        let was_read = std::mem::replace(&mut self.was_read, read.is_some());
        let Some(now) = read else { return self.over(time) };
        // If the last call could read the counter, its time is exact.
        let until = until.filter(|_| !was_read);
        let within = until.map(|until| Nanos(time.0.saturating_sub(until.0).max(1)));
        self.on_step(TrainingStep { uncertainty: within, ..now })
    }

    /// The last step's end if its variable is gone; returned once.
    pub(super) fn over(&mut self, time: Nanos) -> Option<TrainingStep> {
        let known = self.variables.as_mut()?.gone()?;
        let last = self.last.take()?;
        let within = Some(Nanos(time.0.saturating_sub(known.0).max(1)));
        Some(TrainingStep { time, uncertainty: within, is_over: true, ..last })
    }

    fn read(&mut self, process: &Process, time: Nanos) -> Option<TrainingStep> {
        if let Some(variables) = &mut self.variables {
            let step = variables.read(time)?;
            variables.observe(time);
            return Some(step);
        }
        // The next owner snapshot searches for another counter.
        if let Some(counter) = self.counter {
            let read = counter.read(process);
            self.counter = self.counter.filter(|_| read.is_some());
            self.counted = self.counted.max(read.map(|_| time));
            return read.map(|step| TrainingStep { time, step, ..TrainingStep::default() });
        }
        let (clock, object) = self.object.as_mut()?;
        let (clock, read) = (*clock, object.read());
        self.counted = self.counted.max(read.map(|_| time));
        read.map(|step| TrainingStep { time, step, clock, ..TrainingStep::default() })
    }

    pub(super) fn on_step(&mut self, now: TrainingStep) -> Option<TrainingStep> {
        let last = self.last.replace(now);
        let is_new = match (last, now.clock) {
            (None, _) => true,
            (Some(last), StepSource::Variable) => (last.step, last.epoch) != (now.step, now.epoch),
            // A count that restarts belongs to another optimizer, or to none.
            (Some(last), _) => last.step < now.step || last.clock != now.clock,
        };
        is_new.then_some(now)
    }
}
