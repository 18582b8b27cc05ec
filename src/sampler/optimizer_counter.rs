//! The step counter in an optimizer's tensors.

use crate::abi::CounterLocation;
use crate::model::{DType, OwnershipSnapshot, TensorCategory};
use crate::target::{Addr, Memory, Process};

/// `torch.float32`, `float64`, `int64`, `int32`.
const FLOAT32: DType = DType(6);
const FLOAT64: DType = DType(7);
const INT64: DType = DType(4);
const INT32: DType = DType(3);
/// More than any job runs; a `float32` counter stops at 2²⁴.
const MAX_STEPS: f64 = 1e15;

/// Bytes of a `c10::StorageImpl`; the data pointer is its third or fourth word.
const STORAGE_HEAD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptimizerCounter {
    at: Addr,
    dtype: DType,
    /// Words that prove this is still the counter: malloc overwrites them when tensor or storage is
    /// freed.
    checks: [WordCheck; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WordCheck {
    at: Addr,
    word: u64,
}

impl WordCheck {
    fn holds(&self, memory: &dyn Memory) -> bool {
        memory.u64(self.at) == Ok(self.word)
    }
}

impl OptimizerCounter {
    /// The first counter in host memory. Fused and capturable optimizers count on the GPU, where it
    /// cannot be read.
    pub(super) fn find(
        snapshot: &OwnershipSnapshot,
        process: &Process,
    ) -> Option<OptimizerCounter> {
        let memory = process.memory();
        let memory: &dyn Memory = &memory;
        let counts = snapshot.tensors.iter().filter(|row| {
            row.category == TensorCategory::OptimizerState
                && row.names.iter().any(|name| name.contains(".step["))
                && row.tensor.numel == Some(1)
                && row.tensor.device.is_some_and(|device| device.to_string() == "cpu")
        });
        let clock = |row: &crate::model::TensorRow| {
            let dtype = row.tensor.dtype;
            let storage = row.tensor.storage.filter(|storage| storage.data != 0)?;
            let offset = u64::try_from(row.tensor.offset).ok()? * dtype.bytes()?;
            let known = [FLOAT32, FLOAT64, INT64, INT32].contains(&dtype);
            // The vtable of its `TensorImpl`, and the data pointer of its `StorageImpl`.
            let tensor = Addr(row.tensor.at);
            let head = memory.vec(Addr(storage.at), STORAGE_HEAD).ok()?;
            let points = |word: &[u8]| word == storage.data.to_ne_bytes();
            let pointer = 8 * head.chunks_exact(8).position(points)? as u64;
            let checks = [
                WordCheck { at: tensor, word: memory.u64(tensor).ok()? },
                WordCheck { at: Addr(storage.at) + pointer, word: storage.data },
            ];
            let at = Addr(storage.data + offset);
            known.then_some(OptimizerCounter { at, dtype, checks })
        };
        counts.filter_map(clock).min_by_key(|clock| clock.at)
    }

    pub(super) fn read(&self, process: &Process) -> Option<u64> {
        let memory = process.memory();
        let memory: &dyn Memory = &memory;
        let word = match self.is_wide() {
            true => memory.u64(self.at).ok()?,
            false => memory.u32(self.at).ok()?.into(),
        };
        self.checks.iter().all(|check| check.holds(memory)).then_some(())?;
        self.steps(word)
    }

    pub(super) fn watched(&self) -> CounterLocation {
        let [WordCheck { at, word }, _] = self.checks;
        CounterLocation::Word { at: self.at.0, wide: self.is_wide(), check_at: at.0, check: word }
    }

    fn is_wide(&self) -> bool {
        matches!(self.dtype, FLOAT64 | INT64)
    }

    pub(super) fn steps(&self, word: u64) -> Option<u64> {
        let value = match self.dtype {
            FLOAT32 => f64::from(f32::from_bits(word as u32)),
            FLOAT64 => f64::from_bits(word),
            INT64 => word as i64 as f64,
            _ => f64::from(word as i32),
        };
        let counts = value.fract() == 0.0 && (0.0..MAX_STEPS).contains(&value);
        counts.then_some(value as u64)
    }
}
