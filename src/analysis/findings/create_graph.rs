//! `backward(create_graph=True)`: a gradient has a graph, which keeps its parameter, which keeps
//! the gradient: a cycle through C++ that no collector sees.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{TensorCategory, count};
use crate::ownership::{graph_roots, held_storages, kept_by};

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let is_root = |row: usize| {
        let row = &snapshot.tensors[row];
        row.category == TensorCategory::Gradient && row.tensor.grad_fn.is_some()
    };
    let roots = (0..snapshot.tensors.len()).filter(|row| is_root(*row)).count();
    if roots == 0 {
        return Vec::new();
    }
    let graphs = graph_roots(&snapshot.tensors, &snapshot.nodes);
    let mut size = 0;
    for (group, held) in held_storages(snapshot) {
        let rows = || group.tensors.iter().map(|&row| &snapshot.tensors[row]);
        // No variable leads to them, nor to their graph.
        let is_of_graph = group.device.is_cuda()
            && rows().all(|row| row.names.is_empty())
            && rows().any(|row| {
                let is_gradient = row.category == TensorCategory::Gradient;
                is_gradient || row.made_by.is_some() || !row.saved.is_empty()
            })
            && kept_by(snapshot, &graphs, &group).is_none_or(|root| root.names.is_empty());
        if is_of_graph {
            size += held;
        }
    }
    if size < MIN_BYTES {
        return Vec::new();
    }
    let problem = format!(
        "{} gradients have a graph of their own (create_graph=True), which keeps itself alive, and more that only C++ has",
        count(roots as u64)
    );
    let found = Finding::new("graph in gradients", size, problem)
        .change("use torch.autograd.grad(), or set .grad to None after each step")
        .frees(size);
    vec![found.command("graph", &[])]
}
