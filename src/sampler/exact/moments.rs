//! The moment of the training step, by recent events.

use std::collections::BTreeMap;

use crate::model::{CudaIndex, EventKind, MemoryKind};
use crate::probe::RawEvent;
use crate::sampler::step_shape::StepMoment;

#[derive(Debug, Default)]
pub(super) struct Moments {
    allocations: i64,
    levels: BTreeMap<CudaIndex, i64>,
    is_backward: bool,
}

impl Moments {
    pub(super) fn observe(&mut self, raw: &RawEvent) {
        if let EventKind::Allocated {
            memory_kind: MemoryKind::Torch(device),
            levels: Some(levels),
            ..
        } = raw.change
        {
            self.allocations += 1;
            self.is_backward |= raw.node.is_some();
            self.levels.insert(device, levels.allocated);
        }
    }

    pub(super) fn take(&mut self) -> StepMoment {
        StepMoment {
            allocations: self.allocations,
            level: self.levels.values().sum(),
            is_backward: std::mem::take(&mut self.is_backward),
        }
    }
}
