//! Figures of trumpy's `memory_for_backward(net, loss)` for live losses.
//!
//! The rule of trumpy 0.1.2: from `loss.grad_fn` on, every tensor in a `_saved_…` field (no lists,
//! no Python functions), except parameters of `net`; per storage the tensor with most elements.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{OwnershipSnapshot, RootModule, SavedIn, TensorRow};

/// The figure of one loss and net, in bytes. `net` is an index in [`OwnershipSnapshot::models`];
/// `None` if no model has its parameters.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackwardMemory {
    pub net: Option<usize>,
    pub bytes: u64,
}

/// One loss, and where the tool would fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossMemory {
    /// In [`OwnershipSnapshot::tensors`].
    pub loss: usize,
    /// One per net in its graph.
    pub figures: Vec<BackwardMemory>,
    /// Packed by hooks: the tool would unpack and count them.
    pub packed: u64,
    /// Changed in place since: the tool raises.
    pub changed: u64,
    /// Nothing saved, as after `backward()`: the tool raises.
    pub nothing_saved: bool,
}

/// The losses: one-element results that Python holds; if none, results that no other result uses.
pub fn losses(snapshot: &OwnershipSnapshot) -> Vec<usize> {
    // Fake tensors' nodes are not read.
    let nodes: FxHashSet<u64> = snapshot.nodes.iter().map(|node| node.at).collect();
    let made_by = |row: &TensorRow| row.tensor.grad_fn.filter(|at| nodes.contains(at));
    let results = || (0..).zip(&snapshot.tensors).filter(|(_, row)| row.object.is_some());
    let scalars: Vec<usize> = results()
        .filter(|(_, row)| row.tensor.numel == Some(1) && made_by(row).is_some())
        .map(|(index, _)| index)
        .collect();
    if !scalars.is_empty() {
        return scalars;
    }
    let further: FxHashSet<u64> =
        snapshot.nodes.iter().flat_map(|node| node.next.iter().copied()).collect();
    let is_last = |row: &TensorRow| made_by(row).is_some_and(|at| !further.contains(&at));
    results().filter(|(_, row)| is_last(row)).map(|(index, _)| index).collect()
}

/// The tool's figures of these losses.
pub fn memory_for_backward(snapshot: &OwnershipSnapshot, losses: &[usize]) -> Vec<LossMemory> {
    let by_address: FxHashMap<u64, usize> =
        snapshot.nodes.iter().zip(0..).map(|(node, index)| (node.at, index)).collect();
    let impl_of: FxHashMap<u64, u64> =
        snapshot.tensors.iter().filter_map(|row| Some((row.object?, row.tensor.at))).collect();
    let parameters = |model: &RootModule| -> FxHashSet<u64> {
        let own = model.modules.iter().flat_map(|module| &module.parameters);
        own.filter_map(|object| impl_of.get(object).copied()).collect()
    };
    let models: Vec<FxHashSet<u64>> = snapshot.models.iter().map(parameters).collect();
    losses.iter().map(|&loss| of_loss(snapshot, loss, &by_address, &models)).collect()
}

fn of_loss(
    snapshot: &OwnershipSnapshot,
    loss: usize,
    by_address: &FxHashMap<u64, usize>,
    models: &[FxHashSet<u64>],
) -> LossMemory {
    let mut reached: FxHashSet<usize> = FxHashSet::default();
    let start = snapshot.tensors[loss].tensor.grad_fn.and_then(|at| by_address.get(&at).copied());
    let mut waiting: Vec<usize> = start.into_iter().collect();
    let (mut leaves, mut packed): (FxHashSet<u64>, u64) = (FxHashSet::default(), 0);
    while let Some(node) = waiting.pop() {
        if reached.insert(node) {
            let node = &snapshot.nodes[node];
            leaves.extend(node.variable);
            packed += node.packed as u64;
            waiting.extend(node.next.iter().filter_map(|next| by_address.get(next).copied()));
        }
    }
    let is_here = |row: &TensorRow| row.saved.iter().any(|saved| reached.contains(&saved.node));
    let kept = || {
        let in_field = |row: &&TensorRow| {
            row.saved
                .iter()
                .any(|saved| saved.by == SavedIn::Field && reached.contains(&saved.node))
        };
        snapshot.tensors.iter().filter(in_field)
    };
    let of_net = |parameters: &FxHashSet<u64>| -> u64 {
        let mut largest: FxHashMap<u64, (i64, u64)> = FxHashMap::default();
        for row in kept().filter(|row| !parameters.contains(&row.tensor.at)) {
            let (Some(storage), Some(bytes)) = (row.tensor.storage, row.tensor.logical_bytes())
            else {
                continue;
            };
            let numel = row.tensor.numel.unwrap_or(0);
            let most = largest.entry(storage.data).or_default();
            if numel > most.0 {
                *most = (numel, bytes);
            }
        }
        largest.values().map(|(_, bytes)| bytes).sum()
    };
    let nets = models.iter().enumerate().filter(|(_, parameters)| {
        let mut saved = kept().map(|row| row.tensor.at).chain(leaves.iter().copied());
        saved.any(|at| parameters.contains(&at))
    });
    let mut figures: Vec<BackwardMemory> = nets
        .map(|(net, parameters)| BackwardMemory { net: Some(net), bytes: of_net(parameters) })
        .collect();
    if figures.is_empty() {
        figures.push(BackwardMemory { net: None, bytes: of_net(&FxHashSet::default()) });
    }
    let is_changed = |row: &&TensorRow| {
        row.saved.iter().any(|saved| {
            let version = row.tensor.version;
            reached.contains(&saved.node) && version.is_some_and(|version| version != saved.version)
        })
    };
    LossMemory {
        loss,
        figures,
        packed,
        changed: snapshot.tensors.iter().filter(is_changed).count() as u64,
        nothing_saved: packed == 0 && !snapshot.tensors.iter().any(is_here),
    }
}
