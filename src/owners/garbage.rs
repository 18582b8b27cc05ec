//! Garbage: kept alive only by cycles of Python objects, directly or through C++.
//!
//! The collector's algorithm finds the Python objects. With them go what they keep in C++
//! (gradients, autograd nodes, saved tensors), and what only those keep in Python. All references
//! to garbage come from garbage; an unknown reference keeps an object alive.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::garbage_cycles;
use super::rows::TensorRows;
use super::walk::RelevantObjects;
use crate::model::{GarbageCycle, TensorInfo, TensorRow};
use crate::python::{ObjectHeap, ReferenceGraph};
use crate::target::Addr;
use crate::torch::{AutogradNode, TensorDecoder};

#[derive(Debug, Default)]
pub(super) struct Garbage {
    pub(super) objects: FxHashSet<Addr>,
    /// `TensorImpl`s that would be freed.
    pub(super) tensors: FxHashSet<u64>,
    pub(super) cycles: Vec<GarbageCycle>,
}

/// `None` if reference counts are inconsistent.
pub(super) fn find(
    heap: &ObjectHeap<'_>,
    graph: &ReferenceGraph<'_>,
    tensors: &TensorDecoder<'_>,
    rows: &TensorRows<'_, '_>,
    found: &RelevantObjects,
) -> Option<Garbage> {
    let held = CombinedReferences::new(graph, tensors, rows);
    let through_cpp = held.through_cpp(found);
    let objects = graph.garbage(&through_cpp)?;
    if objects.is_empty() {
        return Some(Garbage::default());
    }
    let freed = held.freed_with(&objects);
    let tensors = rows.all().iter().map(|row| row.tensor.at).filter(|at| freed.contains(at));
    let tensors: FxHashSet<u64> = tensors.collect();
    let cycles = garbage_cycles::find(heap, &held, &objects, &freed, &through_cpp);
    Some(Garbage { objects, tensors, cycles })
}

/// References in Python and C++. A tensor and its Python object keep each other alive: they
/// count as one, by the `TensorImpl`'s address.
pub(super) struct CombinedReferences<'a> {
    graph: &'a ReferenceGraph<'a>,
    tensors: &'a TensorDecoder<'a>,
    rows: &'a TensorRows<'a, 'a>,
    impls: FxHashMap<Addr, u64>,
    nodes: FxHashMap<u64, &'a AutogradNode>,
}

impl<'a> CombinedReferences<'a> {
    pub(super) fn new(
        graph: &'a ReferenceGraph<'a>,
        tensors: &'a TensorDecoder<'a>,
        rows: &'a TensorRows<'a, 'a>,
    ) -> CombinedReferences<'a> {
        let impl_of = |row: &TensorRow| Some((Addr(row.object?), row.tensor.at));
        CombinedReferences {
            graph,
            tensors,
            rows,
            impls: rows.all().iter().filter_map(impl_of).collect(),
            nodes: rows.nodes().iter().map(|node| (node.at.0, node)).collect(),
        }
    }

    pub(super) fn key(&self, object: Addr) -> u64 {
        self.impls.get(&object).copied().unwrap_or(object.0)
    }

    pub(super) fn rows(&self) -> &'a [TensorRow] {
        self.rows.all()
    }

    /// Whether it may be of another moment than the snapshot.
    pub(super) fn is_torn(&self, tensor: u64) -> bool {
        self.rows.is_torn(tensor)
    }

    pub(super) fn nodes(&self) -> &'a [AutogradNode] {
        self.rows.nodes()
    }

    pub(super) fn hooks_of(&self, object: Addr) -> Vec<Addr> {
        let hooks = self.tensors.of_one_moment(|tensors| Some(tensors.hooks_of(object)));
        hooks.unwrap_or_default().into_iter().map(|(_, hooks)| hooks).collect()
    }

    pub(super) fn bases_of(&self, tensor: Addr) -> Vec<Addr> {
        let bases = self.tensors.of_one_moment(|tensors| Some(tensors.bases_of(tensor)));
        bases.unwrap_or_default()
    }

    /// A tensor that is in no row, with its count.
    pub(super) fn other_tensor(&self, at: Addr) -> Option<(TensorInfo, i64)> {
        self.tensors
            .of_one_moment(|tensors| Some((tensors.tensor(at)?, tensors.references_of_tensor(at)?)))
    }

    pub(super) fn counts_of_storage(&self, storage: Addr) -> Option<i64> {
        self.tensors.of_one_moment(|tensors| tensors.references_of_storage(storage))
    }

    pub(super) fn is_tensor(&self, key: u64) -> bool {
        self.rows.row_at(key).is_some()
    }

    pub(super) fn targets_of(&self, object: Addr) -> impl Iterator<Item = Addr> {
        self.graph.targets_of(object)
    }

    /// References that the collector follows through C++ (`THPVariable_subclass_traverse` in
    /// torch/csrc/autograd/python_variable.cpp): a tensor's hooks, and its node's `ctx` if nothing
    /// else references tensor and node.
    pub(super) fn through_cpp(&self, found: &RelevantObjects) -> Vec<(Addr, Addr)> {
        let mut through = Vec::new();
        for &object in &found.tensors {
            through.extend(self.hooks_of(object).into_iter().map(|at| (object, at)));
            let node = self.impls.get(&object).and_then(|at| self.rows.row_at(*at));
            let node = node.and_then(|row| row.tensor.grad_fn);
            let Some(node) = node.and_then(|node| self.nodes.get(&node)) else { continue };
            let Some(function) = node.function else { continue };
            let tensor = self.impls.get(&object).copied().map(Addr);
            let is_alone = self.tensors.of_one_moment(|tensors| {
                let of_tensor = tensors.references_of_tensor(tensor?)?;
                Some(of_tensor == 1 && tensors.references_of_node(node.at)? == 1)
            });
            if is_alone == Some(true) && !node.is_torn {
                through.push((object, function));
            }
        }
        through
    }

    /// `None` if unknown or immortal.
    pub(super) fn references(&self, key: u64) -> Option<i64> {
        self.tensors.of_one_moment(|tensors| {
            if let Some(row) = self.rows.row_at(key) {
                let in_cpp = tensors.references_of_tensor(Addr(key))?;
                let Some(object) = row.object.map(Addr) else { return Some(in_cpp) };
                // References between a tensor and its object do not count.
                let by_tensor = i64::from(tensors.is_kept_by_cpp(object));
                return Some(self.graph.count_of(object)? - by_tensor + in_cpp - 1);
            }
            match self.nodes.contains_key(&key) {
                true => tensors.references_of_node(Addr(key)),
                false => self.graph.count_of(Addr(key)),
            }
        })
    }

    pub(super) fn each_held(&self, key: u64, take: &mut dyn FnMut(u64)) {
        if let Some(row) = self.rows.row_at(key) {
            if let Some(object) = row.object.map(Addr) {
                self.graph.targets_of(object).for_each(|to| take(self.key(to)));
                self.hooks_of(object).iter().for_each(|to| take(to.0));
            }
            if self.is_torn(key) {
                return;
            }
            let tensor = &row.tensor;
            let held = tensor.grad.into_iter().chain(tensor.parts.iter().copied());
            held.chain(tensor.grad_fn).for_each(take);
        } else if let Some(node) = self.nodes.get(&key) {
            if node.is_torn {
                return;
            }
            node.next.iter().for_each(|next| take(next.0));
            node.saved.iter().for_each(|saved| take(saved.tensor.0));
            node.variable.iter().for_each(|variable| take(variable.0));
            node.packed.iter().for_each(|packed| take(self.key(*packed)));
            node.function.iter().for_each(|function| take(function.0));
            node.hooks.iter().for_each(|hooks| take(hooks.0));
        } else {
            self.graph.targets_of(Addr(key)).for_each(|to| take(self.key(to)));
        }
    }

    fn freed_with(&self, objects: &FxHashSet<Addr>) -> FxHashSet<u64> {
        let plain = objects.iter().filter(|object| !self.impls.contains_key(object));
        let mut waiting: VecDeque<u64> = plain.map(|object| object.0).collect();
        let mut freed: FxHashSet<u64> = waiting.iter().copied().collect();
        let mut left: FxHashMap<u64, Option<i64>> = FxHashMap::default();
        while let Some(key) = waiting.pop_front() {
            self.each_held(key, &mut |held| {
                if freed.contains(&held) {
                    return;
                }
                let left = left.entry(held).or_insert_with(|| self.references(held));
                if let Some(left) = left {
                    *left -= 1;
                    if *left == 0 {
                        freed.insert(held);
                        waiting.push_back(held);
                    }
                }
            });
        }
        freed
    }
}
