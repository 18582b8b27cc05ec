//! Variables that count steps and epochs.

use crate::abi::WatchedSteps;
use crate::model::{Nanos, StepSource, TrainingStep};
use crate::python::{IntegerVariable, InterpreterReader};
use crate::target::Process;

/// Nanoseconds that steps wait for a named epoch.
const EPOCH_TIMEOUT: u64 = 1_000_000_000;

pub(super) struct LoopVariables {
    step: IntegerVariable,
    epoch: Option<IntegerVariable>,
    inside: Option<Nanos>,
    has_epoch: bool,
    /// When the step was last seen; cleared once reported as over.
    known: Option<Nanos>,
    missed: [Option<Nanos>; 2],
}

/// A variable is gone after this many failed searches in a row.
const GONE_AFTER: u32 = 2;

impl LoopVariables {
    pub(super) fn find(
        python: Option<&InterpreterReader>,
        process: &Process,
        step: Option<&str>,
        epoch: Option<&str>,
    ) -> Option<LoopVariables> {
        let variable = |name: &str| python?.integer_variable(process, name);
        Some(LoopVariables {
            step: variable(step?)?,
            epoch: epoch.and_then(variable),
            inside: None,
            has_epoch: false,
            known: None,
            missed: [None; 2],
        })
    }

    pub(super) fn watched(&self) -> Option<WatchedSteps> {
        let epoch = self.epoch.as_ref().filter(|_| self.has_epoch);
        let epoch = epoch.map(|epoch| epoch.location().ok_or(()));
        Some(WatchedSteps { step: self.step.location()?, epoch: epoch.transpose().ok()? })
    }

    pub(super) fn observe(&mut self, time: Nanos) {
        self.known = self.known.max(Some(time));
        self.missed = [None; 2];
    }

    /// When the variable was last seen; returned once.
    pub(super) fn gone(&mut self) -> Option<Nanos> {
        match self.step.searches_missed() {
            GONE_AFTER.. => self.known.take(),
            _ => None,
        }
    }

    /// When the variable was last known absent or unchanged.
    pub(super) fn known_until(&self) -> Option<Nanos> {
        self.known.max(self.missed[0])
    }

    pub(super) fn read(&mut self, time: Nanos) -> Option<TrainingStep> {
        let missed = self.step.searches_missed();
        let read = self.read_both(time);
        if self.step.searches_missed() > missed {
            self.missed = [self.missed[1], Some(time)];
        }
        read
    }

    fn read_both(&mut self, time: Nanos) -> Option<TrainingStep> {
        let step = self.step.read();
        let entered = step.map(|_| self.inside.unwrap_or(time));
        if entered != std::mem::replace(&mut self.inside, entered)
            && let Some(epoch) = &mut self.epoch
        {
            epoch.retry_now();
        }
        let epoch = self.epoch.as_mut().map(IntegerVariable::read);
        let step = self.step.read().filter(|_| step.is_some())?;
        let again = self.epoch.as_mut().map(IntegerVariable::read);
        let is_known = epoch.flatten().is_some();
        self.has_epoch |= is_known;
        // A single search may miss a named variable.
        let waits = self.epoch.is_some() && !self.has_epoch;
        if waits && self.inside.is_some_and(|since| time.0 - since.0 < EPOCH_TIMEOUT) {
            return None;
        }
        // The epoch may have ended in between.
        (epoch == again && is_known == self.has_epoch).then_some(TrainingStep {
            time,
            step,
            epoch: epoch.flatten(),
            clock: StepSource::Variable,
            ..TrainingStep::default()
        })
    }
}
