//! Figures of trumpy's `memory_for_backward(net, loss)` for live losses.
//!
//! The rule of trumpy 0.1.2: from `loss.grad_fn` on, every tensor in a `_saved_…` field (no lists,
//! no Python functions), except parameters of `net`; per storage the tensor with most elements.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{OwnershipSnapshot, RootModule, SavedBy, SavedIn, TensorRow};

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

/// What is reached from a loss.
#[derive(Default)]
struct LossGraph {
    nodes: FxHashSet<usize>,
    /// Addresses of the leaves' tensors.
    leaves: FxHashSet<u64>,
    packed: u64,
}

impl LossGraph {
    fn of(
        snapshot: &OwnershipSnapshot,
        loss: usize,
        by_address: &FxHashMap<u64, usize>,
    ) -> LossGraph {
        let mut graph = LossGraph::default();
        let start = snapshot.tensors[loss].tensor.grad_fn;
        let start = start.and_then(|at| by_address.get(&at).copied());
        let mut waiting: Vec<usize> = start.into_iter().collect();
        while let Some(node) = waiting.pop() {
            if graph.nodes.insert(node) {
                let node = &snapshot.nodes[node];
                graph.leaves.extend(node.variable);
                graph.packed += node.packed as u64;
                waiting.extend(node.next.iter().filter_map(|next| by_address.get(next).copied()));
            }
        }
        graph
    }

    fn saves(&self, row: &TensorRow, is_asked: impl Fn(&SavedBy) -> bool) -> bool {
        row.saved.iter().any(|saved| is_asked(saved) && self.nodes.contains(&saved.node))
    }

    fn saved_in_fields<'a>(
        &'a self,
        snapshot: &'a OwnershipSnapshot,
    ) -> impl Iterator<Item = &'a TensorRow> {
        let in_field = |row: &&TensorRow| self.saves(row, |saved| saved.by == SavedIn::Field);
        snapshot.tensors.iter().filter(in_field)
    }

    /// Saved bytes apart from these parameters.
    fn bytes_beyond(&self, snapshot: &OwnershipSnapshot, parameters: &FxHashSet<u64>) -> u64 {
        let mut largest: FxHashMap<u64, (i64, u64)> = FxHashMap::default();
        let rows = self.saved_in_fields(snapshot);
        for row in rows.filter(|row| !parameters.contains(&row.tensor.at)) {
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
    }
}

fn of_loss(
    snapshot: &OwnershipSnapshot,
    loss: usize,
    by_address: &FxHashMap<u64, usize>,
    models: &[FxHashSet<u64>],
) -> LossMemory {
    let graph = LossGraph::of(snapshot, loss, by_address);
    let nets = models.iter().enumerate().filter(|(_, parameters)| {
        let saved = graph.saved_in_fields(snapshot).map(|row| row.tensor.at);
        saved.chain(graph.leaves.iter().copied()).any(|at| parameters.contains(&at))
    });
    let figure = |net: Option<usize>, parameters: &FxHashSet<u64>| BackwardMemory {
        net,
        bytes: graph.bytes_beyond(snapshot, parameters),
    };
    let mut figures: Vec<BackwardMemory> =
        nets.map(|(net, parameters)| figure(Some(net), parameters)).collect();
    if figures.is_empty() {
        figures.push(figure(None, &FxHashSet::default()));
    }
    let is_changed = |row: &&TensorRow| {
        let version = row.tensor.version;
        graph.saves(row, |saved| version.is_some_and(|version| version != saved.version))
    };
    LossMemory {
        loss,
        figures,
        packed: graph.packed,
        changed: snapshot.tensors.iter().filter(is_changed).count() as u64,
        nothing_saved: graph.packed == 0
            && !snapshot.tensors.iter().any(|row| graph.saves(row, |_| true)),
    }
}
