//! The memory of one training iteration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{CudaIndex, Nanos, TensorCategory};

/// One device in one iteration, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationLevels {
    /// Greatest `allocated_bytes` seen.
    pub peak_allocated: i64,
    /// Whether that is proven: the allocator's peak rose to it, or every allocation was seen.
    pub exact: bool,
    /// The last `allocated_bytes` seen before the end.
    pub allocated: i64,
    /// Whether nothing was allocated or freed after that.
    pub allocated_is_exact: bool,
    /// Greatest `reserved_bytes` seen.
    pub peak_reserved: i64,
    /// Whether that is proven.
    pub peak_reserved_is_exact: bool,
    /// The last `reserved_bytes` seen before the end.
    pub reserved: i64,
    /// Whether nothing was reserved or released after that.
    pub reserved_is_exact: bool,
    /// Intermediate gradients: the peak of bytes requested while an autograd node ran and freed in
    /// the same backward pass. `None` in sampled recordings, or if no node allocated.
    pub intermediate: Option<u64>,
}

impl IterationLevels {
    pub(in crate::analysis) fn uncertain(self) -> IterationLevels {
        IterationLevels {
            exact: false,
            allocated_is_exact: false,
            peak_reserved_is_exact: false,
            reserved_is_exact: false,
            ..self
        }
    }
}

/// What ended an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IterationEnd {
    /// The next step was counted.
    #[default]
    Counted,
    /// The counting variable disappeared: its function returned.
    VariableGone,
    /// Nothing: the recording ended first, or the loop had ended unseen.
    NotSeen,
}

impl IterationEnd {
    /// Name in exports.
    pub fn name(self) -> &'static str {
        match self {
            IterationEnd::Counted => "counted",
            IterationEnd::VariableGone => "variable gone",
            IterationEnd::NotSeen => "not seen",
        }
    }
}

/// An iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iteration {
    /// The optimizer step at its end, the value of the loop variable, or its number.
    pub step: u64,
    /// The value of the epoch variable.
    pub epoch: Option<u64>,
    /// Steps included: more than one if several fell between two samples.
    pub steps: u64,
    /// Its begin.
    pub from: Nanos,
    /// Whether the begin was seen; otherwise the iteration may be longer.
    pub begin_is_known: bool,
    /// Its end.
    pub to: Nanos,
    /// What ended it.
    pub end: IterationEnd,
    /// Whether its end lies exactly between two events.
    pub ends_between_events: bool,
    /// By device.
    pub levels: BTreeMap<CudaIndex, IterationLevels>,
    /// The owners when most was allocated, by device.
    pub owned: BTreeMap<CudaIndex, OwnedInIteration>,
}

/// One owner snapshot of an iteration, in bytes per device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedInIteration {
    /// `allocated_bytes` at the snapshot.
    pub allocated: u64,
    /// Bytes of other tensors that autograd nodes returned, if known.
    pub results: Option<u64>,
    /// Feature maps: the most saved for backward, plus node results kept only by Python, of any
    /// snapshot in the iteration; if known.
    pub feature_maps: Option<u64>,
    /// By category; a missing one holds nothing.
    pub categories: BTreeMap<TensorCategory, u64>,
    /// Bytes outside known tensors: gradients inside the backward pass, workspaces.
    pub in_no_tensor: u64,
    /// Parameters and their gradients by name, if requested.
    pub parameters: BTreeMap<Arc<str>, ParameterBytes>,
}

impl OwnedInIteration {
    /// The feature maps in this snapshot.
    pub(in crate::analysis) fn feature_maps_now(&self) -> Option<u64> {
        let saved = self.categories.get(&TensorCategory::Saved).copied().unwrap_or_default();
        Some(saved + self.results?)
    }
}

/// A parameter, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterBytes {
    /// Its own.
    pub weight: u64,
    /// Its gradient; 0 without one.
    pub gradient: u64,
}
