//! References to Python objects from C++: hooks of tensors and nodes, a Python function's
//! `ctx`.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::walk::RelevantObjects;
use crate::target::Addr;
use crate::torch::{AutogradGraph, TensorDecoder};

pub(super) struct CppReferences<'t> {
    /// `None` without PyTorch.
    tensors: Option<&'t TensorDecoder<'t>>,
    objects: FxHashMap<Addr, Addr>,
    /// Per Python tensor: attribute and target.
    of_tensors: FxHashMap<Addr, Vec<(Arc<str>, Addr)>>,
    /// Only the graph leads to these targets; the text describes the node.
    pub(super) of_nodes: Vec<(String, Addr)>,
}

impl<'t> CppReferences<'t> {
    /// Of a process without PyTorch.
    pub(super) fn none() -> CppReferences<'t> {
        CppReferences {
            tensors: None,
            objects: FxHashMap::default(),
            of_tensors: FxHashMap::default(),
            of_nodes: Vec::new(),
        }
    }

    pub(super) fn new(
        tensors: &'t TensorDecoder<'t>,
        graph: &AutogradGraph,
        found: &RelevantObjects,
    ) -> CppReferences<'t> {
        let mut cpp = CppReferences {
            tensors: Some(tensors),
            objects: FxHashMap::default(),
            of_tensors: FxHashMap::default(),
            of_nodes: Vec::new(),
        };
        let nodes: FxHashMap<Addr, usize> =
            graph.nodes.iter().enumerate().map(|(index, node)| (node.at, index)).collect();
        for &object in &found.tensors {
            let mut own: Vec<(Arc<str>, Addr)> = Vec::new();
            for (name, hooks) in tensors.hooks_of(object) {
                own.push((name.into(), hooks));
            }
            let tensor = tensors.impl_of(object);
            cpp.objects.extend(tensor.map(|at| (at, object)));
            let made_by = tensor.and_then(|at| tensors.node_of(at));
            if let Some(node) =
                made_by.and_then(|at| nodes.get(&at)).map(|&node| &graph.nodes[node])
            {
                own.extend(node.function.map(|function| ("grad_fn".into(), function)));
                own.extend(node.hooks.iter().map(|hooks| ("grad_fn.<hooks>".into(), *hooks)));
            }
            if !own.is_empty() {
                cpp.of_tensors.insert(object, own);
            }
        }
        for node in &graph.nodes {
            let text = |what: &str| format!("<node {}>{what}", node.class);
            cpp.of_nodes.extend(node.function.map(|function| (text(""), function)));
            cpp.of_nodes.extend(node.hooks.iter().map(|hooks| (text(".<hooks>"), *hooks)));
        }
        cpp
    }

    pub(super) fn of_capsule(&self, capsule: Addr) -> Option<(Addr, Option<Addr>)> {
        let tensor = self.tensors?.tensor_of_capsule(capsule)?;
        Some((tensor, self.objects.get(&tensor).copied()))
    }

    pub(super) fn of_tensor(&self, tensor: Addr) -> &[(Arc<str>, Addr)] {
        self.of_tensors.get(&tensor).map_or(&[], Vec::as_slice)
    }
}
