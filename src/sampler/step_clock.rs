//! The clock of training: the step counter that optimizers keep for their first parameter.

use crate::model::{Category, DType, HolderMap};
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
pub(super) struct StepClock {
    at: Addr,
    dtype: DType,
}

impl StepClock {
    /// The first counter of an optimizer that lies in the process's own memory: those of fused and capturable optimizers
    /// lie on the GPU and cannot be read.
    pub(super) fn find(map: &HolderMap) -> Option<StepClock> {
        let counts = map.tensors.iter().filter(|row| {
            row.category == Category::OptimizerState
                && row.names.iter().any(|name| name.contains(".step["))
                && row.tensor.numel == 1
                && row.tensor.device.is_some_and(|device| device.to_string() == "cpu")
        });
        let clock = |row: &crate::model::TensorRow| {
            let dtype = row.tensor.dtype;
            let data = row.tensor.storage.filter(|storage| storage.data != 0)?.data;
            let offset = u64::try_from(row.tensor.offset).ok()? * dtype.bytes()?;
            let known = [FLOAT32, FLOAT64, INT64, INT32].contains(&dtype);
            known.then_some(StepClock { at: Addr(data + offset), dtype })
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
