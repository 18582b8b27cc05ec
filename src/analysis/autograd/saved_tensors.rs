//! What the autograd graph keeps for the backward pass, by class of node.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{OwnershipSnapshot, SavedIn, TensorCategory};
use crate::ownership::storages;

/// The nodes of one class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeClass {
    /// How many there are.
    pub nodes: u64,
    /// Bytes of the storages that they keep and that are held apart from parameters and buffers; a storage kept by several
    /// nodes counts at the first.
    pub bytes: u64,
    /// How many storages that are.
    pub storages: u64,
    /// Tensors that hooks packed: checkpoints, offloaded ones. What they hold is not known.
    pub packed: u64,
}

/// What the graph keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedSummary {
    /// By class of node, the one that keeps most first.
    pub classes: Vec<(Arc<str>, NodeClass)>,
    /// Bytes of all distinct storages kept, whatever else holds them.
    pub all: u64,
    /// Of these: storages of parameters.
    pub parameters: u64,
    /// Of buffers.
    pub buffers: u64,
    /// Of leaves that Python holds and no node made: inputs.
    pub inputs: u64,
    /// All others: activations, which live because of the graph or of variables of the program.
    pub activations: u64,
}

/// Sums up what the nodes of a look keep.
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
        // Of tensors that follow each other in the pool of a CUDA graph another may be the largest.
        let kept = rows().filter(|row| !row.saved.is_empty()).filter_map(|row| row.tensor.storage);
        let bytes = kept.map(|storage| storage.memory()).max().unwrap_or(0);
        let (Some(first), 1..) = (first, bytes) else { continue };
        summary.all += bytes;
        // What a function of the program's own saves without anybody else having it, it has made.
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
