//! What counts the steps of training: a variable that was named, else the counter that optimizers keep for their first parameter.

use crate::model::{Category, DType, HolderMap, Nanos, Step, StepClock};
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
        let value = match self.dtype {
            FLOAT32 => f64::from(f32::from_le_bytes(memory.bytes(self.at).ok()?)),
            FLOAT64 => f64::from_le_bytes(memory.bytes(self.at).ok()?),
            INT64 => i64::from_le_bytes(memory.bytes(self.at).ok()?) as f64,
            _ => f64::from(i32::from_le_bytes(memory.bytes(self.at).ok()?)),
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
        })
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
