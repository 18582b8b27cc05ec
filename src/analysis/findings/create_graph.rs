//! `backward(create_graph=True)`: a gradient has a graph, which keeps its parameter, which keeps
//! the gradient: a cycle through C++ that no collector sees.

use std::collections::BTreeSet;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{TensorCategory, bytes, count};
use crate::ownership::{graph_roots, held_storages};

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let is_root = |row: usize| {
        let row = &snapshot.tensors[row];
        row.category == TensorCategory::Gradient && row.tensor.grad_fn.is_some()
    };
    let roots: BTreeSet<usize> = (0..snapshot.tensors.len()).filter(|row| is_root(*row)).collect();
    if roots.is_empty() {
        return Vec::new();
    }
    let all = graph_roots(&snapshot.tensors, &snapshot.nodes);
    let mut size = 0;
    for (group, held) in held_storages(snapshot) {
        let is_saved = group.device.is_cuda() && group.category == TensorCategory::Saved;
        let of_gradient = || {
            let saved = group.tensors.iter().flat_map(|&row| &snapshot.tensors[row].saved);
            let mut kept_by = saved.filter_map(|saved| *all.get(saved.node)?);
            kept_by.any(|root| roots.contains(&root))
        };
        if is_saved && of_gradient() {
            size += held;
        }
    }
    if size < MIN_BYTES {
        return Vec::new();
    }
    let problem = format!(
        "{} gradients have a graph of their own (create_graph=True) that keeps {}, for ever",
        count(roots.len() as u64),
        bytes(size)
    );
    let found = Finding::new("graph in gradients", size, problem)
        .change("use torch.autograd.grad(), or set .grad to None after each step")
        .frees(size);
    vec![found.command("graph", &[])]
}
