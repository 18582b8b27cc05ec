//! Memory saved for backward, by node class.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{OwnershipSnapshot, SavedIn, TensorCategory};
use crate::ownership::storages;

/// Nodes of one class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeClass {
    /// How many.
    pub nodes: u64,
    /// Saved bytes without parameters and buffers; a shared storage counts at its first node.
    pub bytes: u64,
    /// Number of those storages.
    pub storages: u64,
    /// Tensors packed by hooks (checkpoints, offloading), of unknown size.
    pub packed: u64,
}

/// What the graph keeps: by class of node, most bytes first; the bytes of all distinct storages,
/// and of those in parameters, buffers, inputs (leaves held by Python) and activations (the rest).
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedSummary {
    pub classes: Vec<(Arc<str>, NodeClass)>,
    pub all: u64,
    pub parameters: u64,
    pub buffers: u64,
    pub inputs: u64,
    pub activations: u64,
}

/// Sums up what the graph keeps.
pub fn saved(snapshot: &OwnershipSnapshot) -> SavedSummary {
    let mut summary = SavedSummary::default();
    let mut classes: BTreeMap<Arc<str>, NodeClass> = BTreeMap::new();
    for node in &snapshot.nodes {
        let class = classes.entry(node.class.clone()).or_default();
        class.nodes += 1;
        class.packed += node.packed as u64;
    }
    for group in storages(snapshot) {
        let rows = || group.tensors.iter().map(|&index| &snapshot.tensors[index]);
        let first = rows().flat_map(|row| &row.saved).map(|saved| saved.node).min();
        // In a CUDA graph's pool, successive tensors share memory; another may be larger.
        let kept = rows().filter(|row| !row.saved.is_empty()).filter_map(|row| row.tensor.storage);
        let bytes = kept.map(|storage| storage.memory()).max().unwrap_or(0);
        let (Some(first), 1..) = (first, bytes) else { continue };
        summary.all += bytes;
        // A custom function allocated what only it holds.
        let is_its_own = rows().all(|row| {
            row.names.is_empty() && row.saved.iter().all(|saved| saved.by == SavedIn::Function)
        });
        let is_input = !is_its_own
            && rows().any(|row| row.object.is_some() && row.tensor.grad_fn.is_none())
            && rows().all(|row| row.tensor.grad_fn.is_none())
            && !rows().flat_map(|row| &row.saved).any(|saved| saved.is_output);
        match group.category {
            TensorCategory::Parameter => summary.parameters += bytes,
            TensorCategory::Buffer => summary.buffers += bytes,
            _ if is_input => summary.inputs += bytes,
            _ => summary.activations += bytes,
        }
        if !matches!(group.category, TensorCategory::Parameter | TensorCategory::Buffer) {
            let class = classes.entry(snapshot.nodes[first].class.clone()).or_default();
            class.bytes += bytes;
            class.storages += 1;
        }
    }
    summary.classes = classes.into_iter().collect();
    summary.classes.sort_by_key(|(_, class)| std::cmp::Reverse(class.bytes));
    summary
}
