//! The results that keep autograd nodes alive.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::{GraphNode, TensorRow};

/// Per node, the tensor with the shortest path to it, which keeps it alive; `None` without one.
pub fn results(rows: &[TensorRow], nodes: &[GraphNode]) -> Vec<Option<usize>> {
    let index: FxHashMap<u64, usize> =
        nodes.iter().enumerate().map(|(index, node)| (node.at, index)).collect();
    let mut results: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut waiting: VecDeque<usize> = VecDeque::new();
    // Prefer named tensors.
    let (named, unnamed_blocks): (Vec<usize>, Vec<usize>) =
        (0..rows.len()).partition(|&row| !rows[row].names.is_empty());
    for roots in [named, unnamed_blocks] {
        for row in roots {
            let node = rows[row].tensor.grad_fn.and_then(|at| index.get(&at).copied());
            if let Some(node) = node.filter(|&node| results[node].is_none()) {
                results[node] = Some(row);
                waiting.push_back(node);
            }
        }
        while let Some(node) = waiting.pop_front() {
            for next in nodes[node].next.iter().filter_map(|at| index.get(at).copied()) {
                if results[next].is_none() {
                    results[next] = results[node];
                    waiting.push_back(next);
                }
            }
        }
    }
    results
}
