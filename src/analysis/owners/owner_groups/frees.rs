//! What a group's reference would free.

use super::{OwnerGroup, OwnerKind};
use crate::model::{OwnershipSnapshot, RetainedReference, TensorCategory};
use crate::ownership::reference_of;

/// What would come back on the group's device if its one reference went: all that the reference
/// keeps, also what is not the group's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerFrees {
    /// The reference, as in names; `None` for garbage, which has none.
    pub reference: Option<String>,
    /// Bytes that come back with it.
    pub at_once: u64,
    /// Further bytes, after `gc.collect()`.
    pub after_collect: u64,
    /// An object of C that goes with it may hold more.
    pub is_least: bool,
}

impl OwnerFrees {
    /// At once and after `gc.collect()`.
    pub fn all(&self) -> u64 {
        self.at_once.saturating_add(self.after_collect)
    }

    /// `None` if not known.
    pub(super) fn of(snapshot: &OwnershipSnapshot, group: &OwnerGroup) -> Option<OwnerFrees> {
        if group.kind == OwnerKind::Garbage {
            let after_collect = group.size.bytes;
            return Some(OwnerFrees {
                reference: None,
                at_once: 0,
                after_collect,
                is_least: false,
            });
        }
        let name = reference(group)?;
        let known = snapshot.retained_by(&name)?;
        // In a job with GPUs, what the host gets back is not asked.
        let has_gpu =
            || snapshot.tensors.iter().filter_map(|row| row.tensor.device).any(|it| it.is_cuda());
        if !group.device.is_cuda() && has_gpu() {
            return None;
        }
        let freed = known.on(group.device);
        Some(OwnerFrees {
            reference: Some(name),
            at_once: freed.at_once,
            after_collect: freed.after_collect,
            is_least: known.is_least,
        })
    }
}

fn reference(group: &OwnerGroup) -> Option<String> {
    match group.kind {
        OwnerKind::Variable | OwnerKind::Graph => reference_of(&group.owner).map(str::to_owned),
        // Gradients go with `zero_grad()`; the model stays.
        OwnerKind::Model if group.category == TensorCategory::Gradient => {
            Some(RetainedReference::of_gradients(&group.owner))
        }
        OwnerKind::Model => reference_of(&group.owner).map(str::to_owned),
        // Without its class: `main: opt (AdamW)`.
        OwnerKind::Optimizer => {
            let (variable, _) = group.owner.rsplit_once(" (")?;
            reference_of(variable).map(str::to_owned)
        }
        OwnerKind::UnknownGraph | OwnerKind::Garbage | OwnerKind::NoTensor => None,
    }
}
