//! A training iteration: what is known of its memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{CudaIndex, Nanos, TensorCategory};

/// One device in one iteration, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationLevels {
    /// Greatest `allocated_bytes` seen.
    pub peak_allocated: i64,
    /// Whether that is the peak itself: the allocator's high-water mark rose to it, or every allocation was seen.
    pub exact: bool,
    /// `allocated_bytes` at its end, as last seen before it.
    pub allocated: i64,
    /// Whether nothing was allocated or freed between that and the end.
    pub allocated_is_exact: bool,
    /// Greatest `reserved_bytes` seen.
    pub peak_reserved: i64,
    /// Whether that is the peak itself.
    pub peak_reserved_is_exact: bool,
    /// `reserved_bytes` at its end, as last seen before it.
    pub reserved: i64,
    /// Whether nothing was reserved or given back between that and the end.
    pub reserved_is_exact: bool,
    /// Intermediate gradients: the most bytes asked for that blocks held at once which were allocated while an autograd node
    /// was evaluated, and freed by the backward pass before the iteration ended. `None` where that is not known (sampled
    /// recordings), and where no node was seen to allocate.
    pub intermediate: Option<u64>,
}

impl IterationLevels {
    /// The same, nothing of it certain.
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
    /// The variable that counted was there no more: its function returned.
    VariableGone,
    /// Nothing that was seen: the recording ended, and the iteration was still under way or the loop over long ago.
    NotSeen,
}

impl IterationEnd {
    /// As exports call it.
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
    /// The optimizer's step that it ended with, the value that the loop's variable had in it, else its number.
    pub step: u64,
    /// The value that the epoch's variable had in it.
    pub epoch: Option<u64>,
    /// How many steps it stands for: more than one where several fell between two samples.
    pub steps: u64,
    /// Its begin.
    pub from: Nanos,
    /// Whether it was seen to begin, and not found under way: else it may be longer, and have waited for something first.
    pub begin_is_known: bool,
    /// Its end.
    pub to: Nanos,
    /// What that was.
    pub end: IterationEnd,
    /// Whether its end is known to lie exactly between two events.
    pub ends_between_events: bool,
    /// By device.
    pub levels: BTreeMap<CudaIndex, IterationLevels>,
    /// What the look at owners in it saw that found most allocated, by device.
    pub owned: BTreeMap<CudaIndex, OwnedInIteration>,
}

/// What a look at owners in an iteration saw on a device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedInIteration {
    /// `allocated_bytes` at that look.
    pub allocated: u64,
    /// Bytes among the other tensors that are results of autograd nodes; `None` where the recording does not tell.
    pub results: Option<u64>,
    /// Feature maps: the most that any look in the iteration saw of what is saved for the backward pass, and of results of
    /// nodes that only Python keeps. `None` where the recording does not tell the latter.
    pub feature_maps: Option<u64>,
    /// By category; those missing hold nothing.
    pub categories: BTreeMap<TensorCategory, u64>,
    /// Blocks in no tensor that Python or the graph knows: gradients on their way through the backward pass, work spaces.
    pub in_no_tensor: u64,
    /// The bytes of each parameter and of its gradient, by the parameter's name; only if they were asked for.
    pub parameters: BTreeMap<Arc<str>, ParameterBytes>,
}

impl OwnedInIteration {
    /// What is saved for the backward pass, and results of nodes that only Python keeps, at this look.
    pub(in crate::analysis) fn feature_maps_now(&self) -> Option<u64> {
        let saved = self.categories.get(&TensorCategory::Saved).copied().unwrap_or_default();
        Some(saved + self.results?)
    }
}

/// A parameter in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterBytes {
    /// Its own.
    pub weight: u64,
    /// Those of its gradient; 0 when it has none.
    pub gradient: u64,
}
