//! What counts the steps of training: a variable that was named, else the counter that optimizers keep for their first parameter.

use crate::model::{Category, DType, HolderMap, Nanos, Step, StepClock, Watched, WatchedSteps};
use crate::probe::RawStep;
use crate::python::{IntegerVariable, PythonReader};
use crate::target::{Addr, Memory, Process};

/// `torch.float32`, `float64`, `int64`, `int32`: what step counters are kept as.
const FLOAT32: DType = DType(6);
const FLOAT64: DType = DType(7);
const INT64: DType = DType(4);
const INT32: DType = DType(3);
/// No job has made more steps; as `float32` a counter stands still from 2²⁴ on.
const MOST_STEPS: f64 = 1e15;

/// Where a counter is, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptimizerCounter {
    at: Addr,
    dtype: DType,
}

impl OptimizerCounter {
    /// The first counter of an optimizer that lies in the process's own memory: those of fused and capturable optimizers
    /// lie on the GPU and cannot be read.
    pub(super) fn find(map: &HolderMap) -> Option<OptimizerCounter> {
        let counts = map.tensors.iter().filter(|row| {
            row.category == Category::OptimizerState
                && row.names.iter().any(|name| name.contains(".step["))
                && row.tensor.numel == Some(1)
                && row.tensor.device.is_some_and(|device| device.to_string() == "cpu")
        });
        let clock = |row: &crate::model::TensorRow| {
            let dtype = row.tensor.dtype;
            let data = row.tensor.storage.filter(|storage| storage.data != 0)?.data;
            let offset = u64::try_from(row.tensor.offset).ok()? * dtype.bytes()?;
            let known = [FLOAT32, FLOAT64, INT64, INT32].contains(&dtype);
            known.then_some(OptimizerCounter { at: Addr(data + offset), dtype })
        };
        counts.filter_map(clock).min_by_key(|clock| clock.at)
    }

    /// The steps made; `None` when what lies there is no counter any more.
    pub(super) fn read(&self, process: &Process) -> Option<u64> {
        let memory = process.memory();
        let memory: &dyn Memory = &memory;
        let word = match self.is_wide() {
            true => memory.u64(self.at).ok()?,
            false => memory.u32(self.at).ok()?.into(),
        };
        self.steps(word)
    }

    fn is_wide(&self) -> bool {
        matches!(self.dtype, FLOAT64 | INT64)
    }

    /// The steps that are kept as `word`.
    fn steps(&self, word: u64) -> Option<u64> {
        let value = match self.dtype {
            FLOAT32 => f64::from(f32::from_bits(word as u32)),
            FLOAT64 => f64::from_bits(word),
            INT64 => word as i64 as f64,
            _ => f64::from(word as i32),
        };
        let counts = value.fract() == 0.0 && (0.0..MOST_STEPS).contains(&value);
        counts.then_some(value as u64)
    }
}

/// How long steps wait for a variable that counts epochs, in nanoseconds.
const EPOCH_PATIENCE: u64 = 1_000_000_000;

/// Variables of the program that count.
pub(super) struct LoopVariables {
    step: IntegerVariable,
    epoch: Option<IntegerVariable>,
    /// When the loop was first seen to run, if it does.
    inside: Option<Nanos>,
    /// Whether an epoch was ever seen.
    has_epoch: bool,
}

impl LoopVariables {
    /// Those named; `None` where none is, or variables cannot be read.
    pub(super) fn find(
        python: Option<&PythonReader>,
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
        })
    }

    /// Where they are now; both have to be known.
    fn places(&mut self, time: Nanos) -> Places {
        if self.read(time).is_none() {
            return Places::Unknown;
        }
        let epoch = self.epoch.as_ref().filter(|_| self.has_epoch);
        match (self.step.watched(), epoch.map(IntegerVariable::watched)) {
            (Some(step), None) => Places::variables(step, None),
            (Some(step), Some(Some(epoch))) => Places::variables(step, Some(epoch)),
            _ => Places::Unreadable,
        }
    }

    fn read(&mut self, time: Nanos) -> Option<Step> {
        let step = self.step.read();
        let entered = step.map(|_| self.inside.unwrap_or(time));
        if entered != std::mem::replace(&mut self.inside, entered)
            && let Some(epoch) = &mut self.epoch
        {
            epoch.hurry();
        }
        let epoch = self.epoch.as_mut().map(IntegerVariable::read);
        let step = self.step.read().filter(|_| step.is_some())?;
        let again = self.epoch.as_mut().map(IntegerVariable::read);
        let is_known = epoch.flatten().is_some();
        self.has_epoch |= is_known;
        // One that is named and not there is given up only after a while: a single look may miss it.
        let waits = self.epoch.is_some() && !self.has_epoch;
        if waits && self.inside.is_some_and(|since| time.0 - since.0 < EPOCH_PATIENCE) {
            return None;
        }
        // An epoch that ends in between would be given a step of the other one.
        (epoch == again && is_known == self.has_epoch).then_some(Step {
            time,
            step,
            epoch: epoch.flatten(),
            clock: StepClock::Variable,
            within: None,
        })
    }
}

/// What the words mean that a program in the kernel reads to see the steps between the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) places: WatchedSteps,
    /// The optimizer's counter, if that is what counts.
    counter: Option<OptimizerCounter>,
}

/// Where the steps are counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Places {
    /// There.
    At(Counts),
    /// Not seen at this moment: as it was.
    Unknown,
    /// Nothing counts any more, or yet.
    Nowhere,
    /// Where only memspy itself can read it.
    Unreadable,
}

impl Places {
    fn variables(step: Watched, epoch: Option<Watched>) -> Places {
        Places::At(Counts { places: WatchedSteps { step, epoch }, counter: None })
    }
}

/// What counts the steps of a recording.
#[derive(Default)]
pub(super) struct Steps {
    variables: Option<LoopVariables>,
    counter: Option<OptimizerCounter>,
    last: Option<Step>,
}

impl Steps {
    /// Counts by variables from now on, and not by an optimizer's counter.
    pub(super) fn follow(&mut self, variables: Option<LoopVariables>) {
        self.variables = variables;
    }

    /// What a look at holders found.
    pub(super) fn found(&mut self, counter: Option<OptimizerCounter>) {
        self.counter = counter;
    }

    /// Where the steps are counted now.
    pub(super) fn places(&mut self, process: &Process, time: Nanos) -> Places {
        match (&mut self.variables, self.counter) {
            (Some(variables), _) => variables.places(time),
            (None, Some(counter)) if counter.read(process).is_some() => {
                let step = Watched::Word { at: counter.at.0, wide: counter.is_wide() };
                let places = WatchedSteps { step, epoch: None };
                Places::At(Counts { places, counter: Some(counter) })
            }
            (None, _) => {
                self.counter = None;
                Places::Nowhere
            }
        }
    }

    /// The step that was seen at an event in the words that `counts` tells of, where that is another one than at the last
    /// call; it was made at most `within` ago.
    pub(super) fn seen(
        &mut self,
        counts: &Counts,
        seen: &RawStep,
        time: Nanos,
        within: Option<Nanos>,
    ) -> Option<Step> {
        let (step, clock) = match counts.counter {
            Some(counter) => (counter.steps(seen.step)?, StepClock::Optimizer),
            None => (seen.step, StepClock::Variable),
        };
        let epoch = counts.places.epoch.map(|_| seen.epoch);
        self.take(Step { time, step, epoch, clock, within })
    }

    /// The step now, where that is another one than at the last call.
    pub(super) fn next(&mut self, process: &Process, time: Nanos) -> Option<Step> {
        let now = match (&mut self.variables, self.counter) {
            (Some(variables), _) => variables.read(time)?,
            (None, Some(counter)) => match counter.read(process) {
                Some(step) => Step { time, step, ..Step::default() },
                // What is no counter any more is looked for by the next look at holders.
                None => {
                    self.counter = None;
                    return None;
                }
            },
            (None, None) => return None,
        };
        self.take(now)
    }

    fn take(&mut self, now: Step) -> Option<Step> {
        let last = self.last.replace(now);
        let is_new = match (last, now.clock) {
            (None, _) => true,
            (Some(last), StepClock::Variable) => (last.step, last.epoch) != (now.step, now.epoch),
            // One that begins anew is another optimizer's, or none at all.
            (Some(last), StepClock::Optimizer) => last.step < now.step,
        };
        is_new.then_some(now)
    }
}
