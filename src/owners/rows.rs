//! A snapshot's rows: one per `TensorImpl`.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::cpp_references::CppReferences;
use super::names::ObjectNames;
use super::tensor_source::TensorSource;
use super::walk::RelevantObjects;
use crate::model::{GraphNode, SavedBy, TensorCategory, TensorInfo, TensorRow};
use crate::ownership::InUse;
use crate::python::ObjectHeap;
use crate::target::Addr;
use crate::torch::{AutogradGraph, AutogradNode, TensorTypes};

/// Storage size worth a search of library variables.
const MIN_NAMED_BYTES: u64 = 64 << 10;

/// Bytes worth a search for garbage.
const MIN_SEARCHED_BYTES: u64 = 1 << 20;

/// A compiler's tensor (torch/_subclasses/fake_tensor.py): it has shape and nodes, but no memory.
const FAKE: &str = "FakeTensor";

/// Maximum nesting of wrappers; they may contain themselves.
const MAX_WRAPPERS: usize = 16;

pub(super) struct WrappedTensor {
    pub(super) wrapper: Addr,
    pub(super) step: String,
    pub(super) part: Addr,
}

pub(super) struct TensorRows<'h, 'a> {
    tensors: &'h TensorSource<'h, 'a>,
    rows: Vec<TensorRow>,
    by_impl: FxHashMap<u64, usize>,
    graph: AutogradGraph,
    kept: FxHashSet<u64>,
    fake: FxHashSet<u64>,
}

impl<'h, 'a> TensorRows<'h, 'a> {
    pub(super) fn new(
        heap: &ObjectHeap<'_>,
        tensors: &'h TensorSource<'h, 'a>,
        types: TensorTypes,
        found: &RelevantObjects,
    ) -> TensorRows<'h, 'a> {
        let objects = &found.tensors;
        let mut rows = TensorRows {
            tensors,
            rows: Vec::with_capacity(objects.len()),
            by_impl: FxHashMap::default(),
            graph: AutogradGraph::default(),
            kept: FxHashSet::default(),
            fake: FxHashSet::default(),
        };
        for object in objects {
            // A tensor under construction has no memory yet.
            let Some(at) = tensors.decoder.impl_of(*object) else { continue };
            let Some(tensor) = tensors.of_python(at) else { continue };
            let class = heap.class_of(*object);
            let is_parameter = class.as_ref().is_some_and(|class| class.is_a(types.parameter));
            if class.as_ref().is_some_and(|class| &*class.name == FAKE) {
                rows.fake.insert(tensor.at);
            }
            let index = rows.add(tensor);
            let row = &mut rows.rows[index];
            row.object = Some(object.0);
            row.only_in_cpp =
                found.referred_once.contains(object) && tensors.decoder.is_kept_by_cpp(*object);
            row.python_class = class.map(|class| class.name.clone());
            if is_parameter {
                row.category = TensorCategory::Parameter;
            }
        }
        rows
    }

    fn add(&mut self, tensor: TensorInfo) -> usize {
        if let Some(&known) = self.by_impl.get(&tensor.at) {
            return known;
        }
        let index = self.rows.len();
        self.by_impl.insert(tensor.at, index);
        self.rows.push(TensorRow {
            tensor,
            object: None,
            python_class: None,
            category: TensorCategory::Other,
            names: Vec::new(),
            saved: Vec::new(),
            made_by: None,
            only_in_cpp: true,
            garbage: false,
        });
        index
    }

    fn row_of(&mut self, at: u64) -> Option<usize> {
        match self.by_impl.get(&at) {
            Some(&known) => Some(known),
            None => self.tensors.tensor(Addr(at)).map(|tensor| self.add(tensor)),
        }
    }

    /// Python tensors that wrap others without own memory: distributed tensors,
    /// `torch.Tensor._make_wrapper_subclass`.
    pub(super) fn wrappers(&self) -> Vec<Addr> {
        let is_wrapper = |row: &&TensorRow| {
            row.tensor.storage.is_some_and(|s| s.data == 0 && s.bytes.is_none_or(|bytes| bytes > 0))
                && !self.fake.contains(&row.tensor.at)
        };
        self.rows.iter().filter(is_wrapper).filter_map(|row| row.object.map(Addr)).collect()
    }

    pub(super) fn all(&self) -> &[TensorRow] {
        &self.rows
    }

    pub(super) fn row_at(&self, tensor: u64) -> Option<&TensorRow> {
        self.rows.get(*self.by_impl.get(&tensor)?)
    }

    /// Whether it may be of another moment than the snapshot.
    pub(super) fn is_torn(&self, tensor: u64) -> bool {
        self.tensors.is_torn(tensor)
    }

    pub(super) fn nodes(&self) -> &[AutogradNode] {
        &self.graph.nodes
    }

    /// Adds tensors that only gradients, sparse tensors and nodes keep.
    pub(super) fn follow_graph(&mut self) {
        // Nodes of fake tensors never run.
        let real = self.rows.iter().filter(|row| !self.fake.contains(&row.tensor.at));
        let roots: Vec<Addr> = real.filter_map(|row| row.tensor.grad_fn).map(Addr).collect();
        self.graph = self.tensors.decoder.graph_until(roots, &|| self.tensors.has_no_room());
        let mut further: Vec<u64> = Vec::new();
        for node in &self.graph.nodes {
            further.extend(node.saved.iter().map(|saved| saved.tensor.0));
            further.extend(node.variable.map(|variable| variable.0));
        }
        for &at in &further {
            self.row_of(at);
        }
        self.kept = further.into_iter().collect();
        // They may have gradients and parts themselves.
        let mut next = 0;
        while next < self.rows.len() {
            let tensor = &self.rows[next].tensor;
            let held: Vec<u64> =
                tensor.grad.into_iter().chain(tensor.parts.iter().copied()).collect();
            for at in held {
                self.row_of(at);
            }
            next += 1;
        }
    }

    pub(super) fn cpp_references(&self, found: &RelevantObjects) -> CppReferences<'h> {
        CppReferences::new(self.tensors.decoder, &self.graph, found)
    }

    pub(super) fn add_named(&mut self, named: &ObjectNames) {
        for (at, name) in &named.without_object {
            if let Some(row) = self.row_of(at.0) {
                self.rows[row].names.push(name.clone());
            }
        }
    }

    /// Whether a tensor without a variable is worth a search: large, and saved by no node.
    pub(super) fn needs_name(&self, object: Addr, in_use: &InUse) -> bool {
        let tensor = self.tensors.decoder.impl_of(object);
        let Some(&row) = tensor.and_then(|at| self.by_impl.get(&at.0)) else { return false };
        let row = &self.rows[row];
        let bytes = row.tensor.storage.and_then(|storage| storage.bytes);
        // Wrappers have no address; a CUDA graph's pool is reported as a whole.
        let is_counted = match (row.tensor.storage, row.tensor.device) {
            (Some(storage), Some(device)) => {
                storage.data == 0 || in_use.holds(device, storage.data)
            }
            _ => true,
        };
        bytes.is_some_and(|bytes| bytes >= MIN_NAMED_BYTES)
            && is_counted
            && !self.fake.contains(&row.tensor.at)
            && !self.kept.contains(&row.tensor.at)
            && row.tensor.grad_fn.is_none()
    }

    pub(super) fn has_graph(&self) -> bool {
        !self.graph.nodes.is_empty()
    }

    pub(super) fn is_result(&self, object: Addr) -> bool {
        let tensor = self.tensors.decoder.impl_of(object);
        let row = tensor.and_then(|at| self.by_impl.get(&at.0));
        row.is_some_and(|&row| self.rows[row].tensor.grad_fn.is_some())
    }

    /// Whether these are many: a busy job always has tensors in transit.
    pub(super) fn may_be_garbage(&self, objects: &[Addr], in_use: &InUse) -> bool {
        let bytes = |row: &TensorRow| match (row.tensor.storage, row.tensor.device) {
            (Some(storage), Some(device)) if in_use.holds(device, storage.data) => storage.memory(),
            _ => 0,
        };
        let row = |object: &Addr| {
            let row = self.by_impl.get(&self.tensors.decoder.impl_of(*object)?.0)?;
            self.rows.get(*row)
        };
        let some: u64 = objects.iter().filter_map(row).map(bytes).sum();
        let all: u64 = self.rows.iter().map(bytes).sum();
        some >= MIN_SEARCHED_BYTES && some >= all / 50
    }

    pub(super) fn finish(
        mut self,
        named: &ObjectNames,
        garbage: &FxHashSet<u64>,
        parts: &[WrappedTensor],
    ) -> (Vec<TensorRow>, Vec<GraphNode>) {
        for row in &mut self.rows {
            row.garbage = garbage.contains(&row.tensor.at);
            let Some(object) = row.object.map(Addr) else { continue };
            row.names = named.names(object);
            if let Some(category) = named.category(object) {
                row.category = row.category.min(category);
            }
        }
        self.name_dependents();
        let classes: FxHashMap<u64, Arc<str>> =
            self.graph.nodes.iter().map(|node| (node.at.0, node.class.clone())).collect();
        for (index, node) in self.graph.nodes.iter().enumerate() {
            for saved in &node.saved {
                if let Some(&row) = self.by_impl.get(&saved.tensor.0) {
                    let row = &mut self.rows[row];
                    let (by, is_output, version) = (saved.by, saved.is_output, saved.version);
                    row.saved.push(SavedBy { node: index, by, is_output, version });
                    row.category = row.category.min(TensorCategory::Saved);
                }
            }
        }
        self.name_parts(parts);
        for row in &mut self.rows {
            row.made_by = row.tensor.grad_fn.and_then(|at| classes.get(&at)).cloned();
        }
        let node = |node: &AutogradNode| GraphNode {
            at: node.at.0,
            class: node.class.clone(),
            next: node.next.iter().map(|next| next.0).collect(),
            outputs: node.outputs.clone(),
            packed: node.packed.len(),
            variable: node.variable.map(|variable| variable.0),
        };
        let nodes = self.graph.nodes.iter().map(node).collect();
        (self.rows, nodes)
    }

    /// Parts get the wrapper's category, name and nodes.
    fn name_parts(&mut self, parts: &[WrappedTensor]) {
        let by_object: FxHashMap<u64, usize> = (0..self.rows.len())
            .filter_map(|index| Some((self.rows[index].object?, index)))
            .collect();
        let row = |object: Addr| by_object.get(&object.0).copied();
        for WrappedTensor { wrapper, step, part } in outermost_first(parts) {
            let (Some(wrapper), Some(part)) = (row(*wrapper), row(*part)) else { continue };
            let (category, names) = (self.rows[wrapper].category, self.rows[wrapper].names.clone());
            let saved = self.rows[wrapper].saved.clone();
            self.rows[part].saved.extend(saved);
            self.rows[part].category = self.rows[part].category.min(category);
            self.add_names(part, &names, step);
        }
    }

    fn name_dependents(&mut self) {
        for index in 0..self.rows.len() {
            let row = &self.rows[index];
            let (grad, parts) = (row.tensor.grad, row.tensor.parts.clone());
            let part_names = row.tensor.part_names;
            let names = row.names.clone();
            if let Some(held) = grad.and_then(|at| self.by_impl.get(&at).copied()) {
                self.rows[held].category = self.rows[held].category.min(TensorCategory::Gradient);
                self.add_names(held, &names, ".grad");
            }
            let category = self.rows[index].category;
            for (at, method) in parts.iter().zip(part_names) {
                if let Some(&held) = self.by_impl.get(at) {
                    self.rows[held].category = self.rows[held].category.min(category);
                    self.add_names(held, &names, method);
                }
            }
        }
    }

    fn add_names(&mut self, held: usize, names: &[Arc<str>], what: &str) {
        // The owner's best name is better than a variable that leads to it.
        if let Some(name) = names.first() {
            self.rows[held].names.insert(0, format!("{name}{what}").into());
        }
    }
}

/// Each wrapper passes its name on.
fn outermost_first(parts: &[WrappedTensor]) -> Vec<&WrappedTensor> {
    let over: FxHashMap<Addr, Addr> = parts.iter().map(|part| (part.part, part.wrapper)).collect();
    let depth = |part: &&WrappedTensor| {
        let mut at = Some(part.wrapper);
        std::iter::from_fn(|| {
            at = at.and_then(|wrapper| over.get(&wrapper).copied());
            at
        })
        .take(MAX_WRAPPERS)
        .count()
    };
    let mut sorted: Vec<&WrappedTensor> = parts.iter().collect();
    sorted.sort_by_key(depth);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_wrappers_come_first() {
        let part = |wrapper, part| WrappedTensor {
            wrapper: Addr(wrapper),
            step: String::new(),
            part: Addr(part),
        };
        let parts = [part(2, 1), part(9, 9), part(3, 2)];
        let order: Vec<u64> = outermost_first(&parts).iter().map(|part| part.wrapper.0).collect();
        assert_eq!(order, [3, 2, 9]);
    }
}
