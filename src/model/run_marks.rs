//! What a watched run marks beside its allocation history: where its parts begin and end.

use std::collections::BTreeMap;

use super::gpu::CudaIndex;
use super::history::HistoryFrame;

/// What begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunMarkKind {
    /// A backward pass begins.
    Backward,
    /// It ends.
    BackwardEnd,
    /// An optimizer's step begins.
    Optimizer,
    /// It ends.
    OptimizerEnd,
    /// A model changes to evaluation (`Module.eval`).
    Evaluation,
    /// It changes to training (`Module.train`).
    Training,
}

/// A mark, placed between two allocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMark {
    /// What begins or ends.
    pub kind: RunMarkKind,
    /// Allocations before it, by device; a device without any is absent.
    pub allocations: BTreeMap<CudaIndex, u64>,
    /// The Python stack of a call of `backward()`, innermost first.
    pub stack: Vec<HistoryFrame>,
}

impl RunMark {
    /// Allocations of a device before it.
    pub fn before(&self, device: CudaIndex) -> u64 {
        self.allocations.get(&device).copied().unwrap_or(0)
    }
}
