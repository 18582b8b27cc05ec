//! What counts the steps of training: a variable that was named, else the counter that optimizers keep for their first parameter,
//! else an object of the program that counts them.

use super::loop_variables::LoopVariables;
use super::optimizer_counter::OptimizerCounter;
use crate::abi::WatchedSteps;
use crate::model::{CountingKind, CountingObject, Nanos, StepSource, TrainingStep};
use crate::probe::RawStep;
use crate::python::{IntegerAttribute, PythonReader};
use crate::target::Process;

/// What the words mean that a program in the kernel reads to see the steps between the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterMeaning {
    pub(super) places: WatchedSteps,
    /// The optimizer's counter, if that is what counts.
    counter: Option<OptimizerCounter>,
}

/// Where the steps are counted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StepLocations {
    /// There, and the step that memspy itself reads there.
    At(Box<CounterMeaning>, TrainingStep),
    /// Not seen at this moment: as it was.
    Unknown,
    /// Nothing counts any more, or yet.
    Nowhere,
    /// Where only memspy itself can read it.
    Unreadable,
}

/// What counts the steps of a recording.
#[derive(Default)]
pub(super) struct StepTracker {
    variables: Option<LoopVariables>,
    counter: Option<OptimizerCounter>,
    object: Option<(StepSource, IntegerAttribute)>,
    /// When the counter was last read.
    counted: Option<Nanos>,
    last: Option<TrainingStep>,
    /// Whether the last call for the next step could read what counts.
    was_read: bool,
}

impl StepTracker {
    /// Counts by variables from now on, and not by an optimizer's counter.
    pub(super) fn follow(&mut self, variables: Option<LoopVariables>) {
        self.variables = variables;
    }

    /// What a look at owners found.
    pub(super) fn found(&mut self, counter: Option<OptimizerCounter>) {
        if counter.is_some() {
            self.object = None;
        }
        if self.variables.is_none() && counter.is_some() && counter != self.counter {
            // Another one's count has nothing to do with the last.
            (self.last, self.counted) = (None, None);
        }
        self.counter = counter;
    }

    /// Objects that a look at owners found to count; the first is taken, and kept while it is among them.
    pub(super) fn found_objects(
        &mut self,
        python: Option<&PythonReader>,
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
                CountingKind::Trainer => (StepSource::Trainer, "global_step"),
                CountingKind::Scheduler => (StepSource::Scheduler, "last_epoch"),
            };
            Some((clock, python?.integer_attribute(process, first.object, name)?))
        });
        (self.last, self.counted) = (None, None);
    }

    /// The last step that was told of.
    pub(super) fn last(&self) -> Option<TrainingStep> {
        self.last
    }

    /// Until when it is known that the step that was told last was under way, or that none was.
    pub(super) fn known_until(&self) -> Option<Nanos> {
        match &self.variables {
            Some(variables) => variables.known_until(),
            None => self.counted,
        }
    }

    /// Where the steps are counted now.
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

    /// The step that was seen at an event in the words that `counts` tells of, where that is another one than at the last
    /// call; it was made at most `within` ago.
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

    /// The step now, where that is another one than at the last call; or that the last one is over.
    pub(super) fn next(&mut self, process: &Process, time: Nanos) -> Option<TrainingStep> {
        let until = self.known_until();
        let read = self.read(process, time);
        let was_read = std::mem::replace(&mut self.was_read, read.is_some());
        let Some(now) = read else { return self.over(time) };
        // The last call tells when it was made, if it could read what counts.
        let until = until.filter(|_| !was_read);
        let within = until.map(|until| Nanos(time.0.saturating_sub(until.0).max(1)));
        self.on_step(TrainingStep { uncertainty: within, ..now })
    }

    /// That the last step is over, if the variable that counted is there no more; told once.
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
        // What is no counter any more is looked for by the next look at owners.
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

    /// Takes a step; gives it back where it is another one than the last.
    pub(super) fn on_step(&mut self, now: TrainingStep) -> Option<TrainingStep> {
        let last = self.last.replace(now);
        let is_new = match (last, now.clock) {
            (None, _) => true,
            (Some(last), StepSource::Variable) => (last.step, last.epoch) != (now.step, now.epoch),
            // One that begins anew is another optimizer's, or none at all.
            (Some(last), _) => last.step < now.step || last.clock != now.clock,
        };
        is_new.then_some(now)
    }
}
