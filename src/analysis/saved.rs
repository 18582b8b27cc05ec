//! What the autograd graph keeps for the backward pass, by class of node.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::holdings::storages;
use crate::model::{Category, HolderMap, SavedIn};

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
    /// What trumpy's `memory_for_backward` reports of the same graph (tensors in fields only, parameters told by
    /// object, logical bytes of the largest tensor of a storage), for comparison.
    pub by_trumpys_rule: u64,
    /// Elements that operations made: the results of all nodes but views and changes in place, as modelsize counts
    /// "intermediate variables"; `None` when a shape is not known.
    pub intermediates: Option<u64>,
    /// Elements of all parameters.
    pub parameter_elements: u64,
}

/// Sums up what the nodes of a look keep.
pub fn saved(map: &HolderMap) -> SavedSummary {
    let mut summary = SavedSummary {
        by_trumpys_rule: by_trumpys_rule(map),
        intermediates: intermediates(map),
        parameter_elements: parameter_elements(map),
        ..Default::default()
    };
    let mut classes: BTreeMap<Arc<str>, NodeClass> = BTreeMap::new();
    for node in &map.nodes {
        let class = classes.entry(node.class.clone()).or_default();
        class.nodes += 1;
        class.packed += node.packed as u64;
    }
    for group in storages(map) {
        let rows = || group.tensors.iter().map(|&index| &map.tensors[index]);
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
            Category::Parameter => summary.parameters += bytes,
            Category::Buffer => summary.buffers += bytes,
            _ if is_input => summary.inputs += bytes,
            _ => summary.activations += bytes,
        }
        if !matches!(group.category, Category::Parameter | Category::Buffer) {
            let class = classes.entry(map.nodes[first].class.clone()).or_default();
            class.bytes += bytes;
            class.storages += 1;
        }
    }
    summary.classes = classes.into_iter().collect();
    summary.classes.sort_by_key(|(_, class)| std::cmp::Reverse(class.bytes));
    summary
}

/// Classes of nodes whose operation gives another view of the memory it was given, without the number at the end
/// (torch/csrc/autograd/generated/Functions.h, PyTorch 2.2 to 2.15).
const VIEWS: [&str; 28] = [
    "AliasBackward",
    "AsStridedBackward",
    "ChunkBackward",
    "ConjBackward",
    "DetachBackward",
    "DiagonalBackward",
    "ExpandBackward",
    "MovedimBackward",
    "NarrowBackward",
    "NegViewBackward",
    "PermuteBackward",
    "ReshapeAliasBackward",
    "SelectBackward",
    "SliceBackward",
    "SplitBackward",
    "SplitWithSizesBackward",
    "SqueezeBackward",
    "SwapaxesBackward",
    "TBackward",
    "TransposeBackward",
    "UnbindBackward",
    "UnfoldBackward",
    "UnsafeSplitBackward",
    "UnsafeViewBackward",
    "UnsqueezeBackward",
    "ViewAsComplexBackward",
    "ViewAsRealBackward",
    "ViewBackward",
];

fn intermediates(map: &HolderMap) -> Option<u64> {
    // The result of an operation in place has been changed when it is saved.
    let in_place: FxHashSet<usize> = map
        .tensors
        .iter()
        .flat_map(|row| &row.saved)
        .filter(|saved| saved.is_output && saved.version > 0)
        .map(|saved| saved.node)
        .collect();
    let makes = |index: usize, class: &str| {
        let name = class.trim_end_matches(|c: char| c.is_ascii_digit());
        !in_place.contains(&index)
            && !VIEWS.contains(&name)
            && !["AccumulateGrad", "CopySlices"].contains(&class)
    };
    let mut sum = 0u64;
    for (_, node) in map.nodes.iter().enumerate().filter(|(i, node)| makes(*i, &node.class)) {
        for output in &node.outputs {
            sum = sum.saturating_add((*output)?);
        }
    }
    Some(sum)
}

fn parameter_elements(map: &HolderMap) -> u64 {
    let parameters = map
        .tensors
        .iter()
        .filter(|row| row.object.is_some() && row.category == Category::Parameter);
    parameters.map(|row| row.tensor.numel.unwrap_or(0).max(0) as u64).sum()
}

fn by_trumpys_rule(map: &HolderMap) -> u64 {
    let parameters: FxHashSet<u64> = map
        .tensors
        .iter()
        .filter(|row| row.object.is_some() && row.category == Category::Parameter)
        .map(|row| row.tensor.at)
        .collect();
    let mut largest: FxHashMap<u64, (i64, u64)> = FxHashMap::default();
    for row in &map.tensors {
        let in_field = row.saved.iter().any(|saved| saved.by == SavedIn::Field);
        let (Some(storage), Some(bytes)) = (row.tensor.storage, row.tensor.logical_bytes()) else {
            continue;
        };
        if in_field && !parameters.contains(&row.tensor.at) {
            let kept = largest.entry(storage.data).or_default();
            if row.tensor.numel.unwrap_or(0) > kept.0 {
                *kept = (row.tensor.numel.unwrap_or(0), bytes);
            }
        }
    }
    largest.values().map(|(_, bytes)| bytes).sum()
}
