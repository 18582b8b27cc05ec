//! Finds what keeps an autograd graph alive: per node, the last named output that leads to it.

use rustc_hash::FxHashMap;

use crate::model::{GraphNode, OwnershipSnapshot, StorageGroup, TensorRow};

/// Starts a label: only a graph keeps this memory.
pub const SAVED_BY: &str = "[saved by ";
/// Precedes the variable that keeps the graph, in a recorded label.
pub const ALIVE_BY: &str = " alive by ";

/// Per node, the row of the tensor that keeps it; `None` without a Python tensor, as in a
/// backward pass.
///
/// A loss comes before its activations, as it keeps the whole graph. Unnamed tensors, kept by
/// garbage or C++, come last.
pub fn graph_roots(rows: &[TensorRow], nodes: &[GraphNode]) -> Vec<Option<usize>> {
    let index: FxHashMap<u64, usize> =
        nodes.iter().enumerate().map(|(index, node)| (node.at, index)).collect();
    let next_of = |node: usize| nodes[node].next.iter().filter_map(|at| index.get(at).copied());
    let mut incoming = vec![0_u32; nodes.len()];
    for node in 0..nodes.len() {
        for next in next_of(node) {
            incoming[next] += 1;
        }
    }
    // Topological order.
    let mut position = vec![usize::MAX; nodes.len()];
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|&node| incoming[node] == 0).collect();
    let mut placed = 0;
    while let Some(node) = ready.pop() {
        position[node] = placed;
        placed += 1;
        for next in next_of(node) {
            incoming[next] -= 1;
            if incoming[next] == 0 {
                ready.push(next);
            }
        }
    }
    let mut roots: Vec<(bool, usize, usize, usize)> = Vec::new();
    for (row, tensor) in rows.iter().enumerate() {
        let node = tensor.tensor.grad_fn.and_then(|at| index.get(&at).copied());
        if let Some(node) = node.filter(|_| tensor.object.is_some()) {
            roots.push((tensor.names.is_empty(), position[node], row, node));
        }
    }
    roots.sort_unstable();
    let mut kept: Vec<Option<usize>> = vec![None; nodes.len()];
    for (_, _, row, node) in roots {
        let mut waiting = vec![node];
        while let Some(node) = waiting.pop() {
            if kept[node].is_none() {
                kept[node] = Some(row);
                waiting.extend(next_of(node).filter(|&next| kept[next].is_none()));
            }
        }
    }
    kept
}

/// The tensor that keeps a saved storage, by [`graph_roots`].
pub fn kept_by<'a>(
    snapshot: &'a OwnershipSnapshot,
    roots: &[Option<usize>],
    group: &StorageGroup,
) -> Option<&'a TensorRow> {
    let saved = group.tensors.iter().flat_map(|&index| &snapshot.tensors[index].saved);
    let rows = saved.filter_map(|saved| roots.get(saved.node).copied().flatten());
    let row = rows.min_by_key(|&row| (snapshot.tensors[row].names.is_empty(), row))?;
    snapshot.tensors.get(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TensorInfo;
    use crate::ownership::fixture;

    fn node(at: u64, next: &[u64]) -> GraphNode {
        let (class, outputs) = ("AddBackward0".into(), Vec::new());
        GraphNode { at, class, next: next.to_vec(), outputs, packed: 0, variable: None }
    }

    fn row(grad_fn: u64, name: Option<&str>) -> TensorRow {
        let plain = fixture::row(grad_fn);
        TensorRow {
            tensor: TensorInfo { grad_fn: Some(grad_fn), requires_grad: true, ..plain.tensor },
            names: name.map(Into::into).into_iter().collect(),
            ..plain
        }
    }

    #[test]
    fn the_loss_keeps_the_graph_not_an_activation() {
        // 10 is the loss of 11, that of 12; 20 has no name; 30 has no owner.
        let nodes = [
            node(12, &[]),
            node(11, &[12]),
            node(10, &[11]),
            node(20, &[21]),
            node(21, &[]),
            node(30, &[]),
        ];
        let rows = [row(11, Some("hidden")), row(10, Some("losses[0]")), row(20, None)];
        let roots = graph_roots(&rows, &nodes);
        assert_eq!(roots, [Some(1), Some(1), Some(1), Some(2), Some(2), None]);
    }

    #[test]
    fn named_tensors_outrank_later_unnamed_ones() {
        let nodes = [node(10, &[11]), node(11, &[12]), node(12, &[])];
        let roots = graph_roots(&[row(10, None), row(11, Some("outputs[3]"))], &nodes);
        assert_eq!(roots, [Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn cyclic_graphs_terminate() {
        let nodes = [node(10, &[11]), node(11, &[10])];
        assert_eq!(graph_roots(&[row(10, Some("x"))], &nodes), [Some(0), Some(0)]);
    }
}
