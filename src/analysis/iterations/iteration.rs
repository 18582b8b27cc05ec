//! The memory of one training iteration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{CudaIndex, Nanos, TensorCategory};

/// One device in one iteration, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationLevels {
    /// Greatest `allocated_bytes` seen.
    pub peak_allocated: i64,
    /// Proven: the allocator's peak rose to it, or all allocations were seen.
    pub exact: bool,
    /// The last `allocated_bytes` before the end.
    pub allocated: i64,
    /// Nothing changed after that.
    pub allocated_is_exact: bool,
    /// Greatest `reserved_bytes` seen.
    pub peak_reserved: i64,
    /// It is proven.
    pub peak_reserved_is_exact: bool,
    /// The last `reserved_bytes` before the end.
    pub reserved: i64,
    /// As for `allocated`.
    pub reserved_is_exact: bool,
    /// Peak of requested bytes that autograd nodes allocated and the same backward pass freed
    /// (intermediate gradients). `None` if sampled, or without nodes.
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
    /// Its variable disappeared: the function returned.
    VariableGone,
    /// The recording ended first, or the loop ended unseen.
    NotSeen,
}

impl IterationEnd {
    /// Its name in exports.
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
    /// The optimizer step, the loop variable, or a number.
    pub step: u64,
    /// Value of the epoch variable.
    pub epoch: Option<u64>,
    /// Steps it covers: several may fall between two samples.
    pub steps: u64,
    /// Its start.
    pub from: Nanos,
    /// If not, it may have begun earlier.
    pub begin_is_known: bool,
    /// Its end.
    pub to: Nanos,
    /// What ended it.
    pub end: IterationEnd,
    /// It ended exactly between two events.
    pub ends_between_events: bool,
    /// By device.
    pub levels: BTreeMap<CudaIndex, IterationLevels>,
    /// Each device's owner snapshot with most allocated.
    pub owned: BTreeMap<CudaIndex, IterationOwners>,
}

/// An owner snapshot of one device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IterationOwners {
    /// `allocated_bytes` at the snapshot.
    pub allocated: u64,
    /// Results of autograd nodes in other tensors, if known.
    pub results: Option<u64>,
    /// Feature maps: the most saved for backward, and node results that only Python keeps, in any
    /// snapshot.
    pub feature_maps: Option<u64>,
    /// A missing category has no bytes.
    pub categories: BTreeMap<TensorCategory, u64>,
    /// In no known tensor: backward gradients, workspaces.
    pub in_no_tensor: u64,
    /// Parameters and gradients by name, if requested.
    pub parameters: BTreeMap<Arc<str>, ParameterBytes>,
}

impl IterationOwners {
    pub(in crate::analysis) fn feature_maps_now(&self) -> Option<u64> {
        let saved = self.categories.get(&TensorCategory::Saved).copied().unwrap_or_default();
        Some(saved + self.results?)
    }
}

/// A parameter, in bytes; without a gradient, that is 0.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterBytes {
    pub weight: u64,
    pub gradient: u64,
}
