//! A model in `eval()` keeps gradients.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::OwnerKind;
use crate::model::{TensorCategory, bytes};

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let in_eval = |model: &str| {
        snapshot
            .models
            .iter()
            .any(|known| &*known.name == model && known.is_training == Some(false))
    };
    let of = facts.groups.iter().filter(|group| {
        group.category == TensorCategory::Gradient
            && group.kind == OwnerKind::Model
            && group.size.bytes >= MIN_BYTES
            && in_eval(&group.owner)
    });
    let found = of.map(|group| {
        let size = group.size.bytes;
        let problem =
            format!("{} of gradients are kept of {}, which is in eval()", bytes(size), group.owner);
        Finding::new("gradients in eval", size, problem)
            .change("zero_grad(set_to_none=True) frees them")
            .frees(size)
    });
    found.collect()
}
