//! A model in `eval()` keeps gradients.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::OwnerKind;
use crate::model::{RootModule, TensorCategory, bytes};
use rustc_hash::FxHashSet;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let in_eval = |model: &str| {
        let of = |known: &&RootModule| &*known.name == model && known.is_training == Some(false);
        snapshot.models.iter().find(of)
    };
    // Graphs that would compute these gradients again.
    let leaves: FxHashSet<u64> = snapshot.nodes.iter().filter_map(|node| node.variable).collect();
    let learning = snapshot.tensors.iter().filter(|row| leaves.contains(&row.tensor.at));
    let learning: FxHashSet<u64> = learning.filter_map(|row| row.object).collect();
    let of = facts.groups.iter().filter(|group| {
        group.category == TensorCategory::Gradient
            && group.kind == OwnerKind::Model
            && group.size.bytes >= MIN_BYTES
    });
    let found = of.filter_map(|group| {
        let (model, size) = (in_eval(&group.owner)?, group.size.bytes);
        let mut parameters = model.modules.iter().flat_map(|module| &module.parameters);
        let is_in_graph = parameters.any(|parameter| learning.contains(parameter));
        let problem =
            format!("{} of gradients are kept of {}, which is in eval()", bytes(size), group.owner);
        let change = match is_in_graph {
            true => "each step computes them anew: call the model in torch.no_grad()",
            false => "zero_grad(set_to_none=True) frees them",
        };
        Some(Finding::new("gradients in eval", size, problem).change(change).frees(size))
    });
    found.collect()
}
