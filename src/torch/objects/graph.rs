//! The autograd graph: reachable nodes and their saved tensors. The size that malloc stores gives a
//! node's end. A `SavedVariable` in it is a pointer to an object with a `TensorImpl` vtable, flags
//! of 0 or 1, and small numbers; a vector of them must match its heap chunk. Hooks (checkpointing,
//! offload) are counted, not called.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::classes::CppKind;
use super::layout::{EDGE_OF_SHARED, FLAGS, IS_OUTPUT};
use super::outputs;
use super::tensor::TensorDecoder;
use crate::model::SavedIn;
use crate::target::{Addr, Field};

const MAX_NODES: usize = 1 << 22;
const MAX_PARTS: usize = 1 << 23;
const MAX_KEPT: usize = 1 << 16;
const MAX_EDGES: u64 = 1 << 20;
const CHUNKS: std::ops::Range<u64> = 16..65536;
const UNKNOWN_LEN: usize = 1536;
const MAX_SAVED: u64 = 1 << 20;
const MAX_VERSION: u32 = 1 << 24;
const MAX_OUTPUTS: u32 = 1 << 16;
/// `PyTypeObject.tp_name`, `tp_basicsize`.
const NAME: usize = 24;
const BASIC_SIZE: usize = 32;
const MAX_FUNCTION_BYTES: u64 = 4096;
/// Class names; maximum bytes of a vector of pointers to them.
const PYTHON_HOOKS: [&str; 3] =
    ["PyFunctionTensorPreHook", "PyFunctionPreHook", "PyFunctionPostHook"];
const MAX_HOOKS: u64 = 1 << 16;
/// `PySavedVariableHooks.data_`: what the hook packed.
const PACKED: Field<Addr> = Field::at(24);

/// A saved tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedTensor {
    /// Its `TensorImpl`.
    pub tensor: Addr,
    /// How it is saved.
    pub by: SavedIn,
    /// It is an output of the node.
    pub is_output: bool,
    /// Version (in-place changes) when saved.
    pub version: u32,
}

/// An autograd node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutogradNode {
    /// Its address.
    pub at: Addr,
    /// Such as `AddmmBackward0`; of a Python function its own name, or `PyNode` if unreadable.
    pub class: Arc<str>,
    /// Next in backward.
    pub next: Vec<Addr>,
    /// Saved tensors.
    pub saved: Vec<SavedTensor>,
    /// What hooks packed instead of tensors.
    pub packed: Vec<Addr>,
    /// The leaf that it accumulates into.
    pub variable: Option<Addr>,
    /// Elements of each output; `None` for an unknown shape.
    pub outputs: Vec<Option<u64>>,
    /// `THPFunction`, if written in Python.
    pub function: Option<Addr>,
    /// Dictionaries of Python hooks.
    pub hooks: Vec<Addr>,
    /// Nodes that saved tensors keep, besides `next`.
    pub kept: Vec<Addr>,
    /// It may be of another moment than the snapshot.
    pub is_torn: bool,
}

/// All reachable nodes.
#[derive(Debug, Clone, Default)]
pub struct AutogradGraph {
    /// In discovery order.
    pub nodes: Vec<AutogradNode>,
    /// Nodes of unknown size (not glibc's malloc); freed data behind may count as theirs.
    pub unsized_nodes: u64,
}

impl TensorDecoder<'_> {
    /// The graph reachable from these nodes.
    pub fn graph(&self, roots: impl IntoIterator<Item = Addr>) -> AutogradGraph {
        self.graph_until(roots, &|| false)
    }

    /// What is found of it until `is_over`.
    pub fn graph_until(
        &self,
        roots: impl IntoIterator<Item = Addr>,
        is_over: &dyn Fn() -> bool,
    ) -> AutogradGraph {
        let mut graph = AutogradGraph::default();
        let mut seen = FxHashSet::default();
        let mut parts = 0;
        let mut waiting: Vec<Addr> = roots.into_iter().collect();
        while let Some(at) = waiting.pop() {
            if seen.len() >= MAX_NODES || parts >= MAX_PARTS || !seen.insert(at) {
                continue;
            }
            if is_over() {
                break;
            }
            let unsized_nodes = &mut graph.unsized_nodes;
            let (node, is_torn) = self.memory.noting_torn(|| self.node(at, unsized_nodes));
            let Some(mut node) = node else { continue };
            node.is_torn = is_torn;
            parts += node.next.len() + node.saved.len() + node.packed.len();
            waiting.extend(node.next.iter().filter(|next| !seen.contains(*next)));
            graph.nodes.push(node);
        }
        graph
    }

    fn node(&self, at: Addr, unsized_nodes: &mut u64) -> Option<AutogradNode> {
        let (class, CppKind::Other) = self.classes.class_at(self.memory, at)? else { return None };
        let layout = &self.layout.node;
        let head = self.memory.vec(at, layout.len).ok()?;
        let mut node = AutogradNode {
            at,
            next: self.next(&head),
            saved: Vec::new(),
            packed: Vec::new(),
            variable: None,
            outputs: head
                .get(layout.inputs..)
                .and_then(|vector| outputs::elements(self.memory, vector))
                .unwrap_or_default(),
            function: None,
            hooks: self.hooks(&head),
            kept: Vec::new(),
            is_torn: false,
            class,
        };
        if &*node.class == "AccumulateGrad" {
            let variable = self.memory.pointer(at + layout.len as u64).ok();
            node.variable = variable.filter(|variable| self.is_tensor(*variable));
            return Some(node);
        }
        let len = match self.chunk(at) {
            Some(chunk) => (chunk as usize).saturating_sub(layout.len),
            None => {
                *unsized_nodes += 1;
                UNKNOWN_LEN
            }
        };
        self.scan(at + layout.len as u64, len, SavedIn::Field, &mut node);
        if &*node.class == "PyNode" {
            self.function(at, &mut node);
        }
        Some(node)
    }

    fn next(&self, head: &[u8]) -> Vec<Addr> {
        let layout = &self.layout.node;
        let pointer = |n: usize| Field::<u64>::at(layout.next_edges + 8 * n).get(head).unwrap_or(0);
        let (begin, end) = (pointer(0), pointer(1));
        let len = end.wrapping_sub(begin);
        if begin == 0 || len == 0 || len > MAX_EDGES || len % layout.edge_len as u64 != 0 {
            return Vec::new();
        }
        let Ok(edges) = self.memory.vec(Addr(begin), len as usize) else { return Vec::new() };
        let node = |edge: &[u8]| Field::<Addr>::at(0).get(edge).filter(|node| node.is_plausible());
        edges.chunks_exact(layout.edge_len).filter_map(node).collect()
    }

    /// `pre_hooks_`, `tensor_pre_hooks_`, `post_hooks_`: pointers to objects with a vtable and a
    /// dictionary (torch/csrc/autograd/python_hook.h).
    fn hooks(&self, head: &[u8]) -> Vec<Addr> {
        let layout = &self.layout.node;
        let word = |at: usize| Field::<u64>::at(at).get(head).unwrap_or_default();
        let mut hooks: Vec<Addr> = Vec::new();
        for at in (layout.next_edges + 24..layout.inputs.saturating_sub(16)).step_by(8) {
            let (begin, end, room) = (word(at), word(at + 8), word(at + 16));
            let len = end.wrapping_sub(begin);
            let is_vector = Addr(begin).is_plausible()
                && begin.is_multiple_of(8)
                && (8..=MAX_HOOKS).contains(&len)
                && len.is_multiple_of(8)
                && (end..=begin + MAX_HOOKS).contains(&room);
            let Some(Ok(pointers)) = is_vector.then(|| self.memory.vec(Addr(begin), len as usize))
            else {
                continue;
            };
            for hook in pointers.chunks_exact(8).filter_map(|one| Field::<Addr>::at(0).get(one)) {
                let class = self.classes.class_at(self.memory, hook).map(|(class, _)| class);
                if class.is_some_and(|class| PYTHON_HOOKS.contains(&&*class))
                    && let Ok(dict) = self.memory.pointer(hook + 8)
                    && !hooks.contains(&dict)
                {
                    hooks.push(dict);
                }
            }
        }
        hooks
    }

    /// glibc: malloc/malloc.c, `struct malloc_chunk`.
    fn chunk(&self, at: Addr) -> Option<u64> {
        let header = self.memory.u64(at - 8).ok().filter(|_| self.has_sizes)?;
        // Flags; bit 1: mapped separately, as small chunks never are.
        let len = (header & !7).checked_sub(8)?;
        let whole = header & 2 == 0 && (len + 8).is_multiple_of(16);
        (whole && CHUNKS.contains(&len)).then_some(len)
    }

    fn scan(&self, at: Addr, len: usize, by: SavedIn, node: &mut AutogradNode) {
        let bytes = self.memory.vec_up_to(at, len & !7);
        let saved_len = self.layout.saved.len;
        let word = |offset: usize| Field::<u64>::at(offset).get(&bytes).unwrap_or_default();
        let mut offset = 0;
        while offset + 8 <= bytes.len() && node.saved.len() + node.packed.len() < MAX_KEPT {
            if let Some(one) = bytes.get(offset..offset + saved_len)
                && self.saved(one, by, node)
            {
                offset += saved_len;
                continue;
            }
            if by != SavedIn::Vector
                && let Some(vector) =
                    self.vector([word(offset), word(offset + 8), word(offset + 16)])
            {
                let by = if by == SavedIn::Function { by } else { SavedIn::Vector };
                self.elements(Addr(word(offset)), vector, by, node);
                offset += 24;
                continue;
            }
            // Without a size, the next object ends the range.
            if !self.has_sizes
                && by == SavedIn::Field
                && self.classes.class_at(self.memory, at + offset as u64).is_some()
            {
                break;
            }
            offset += 8;
        }
    }

    fn saved(&self, bytes: &[u8], by: SavedIn, node: &mut AutogradNode) -> bool {
        let layout = &self.layout.saved;
        let Some(tensor) = Field::<Addr>::at(0).get(bytes).filter(|at| at.is_plausible()) else {
            return false;
        };
        let number = |at: usize| Field::<u32>::at(at).get(bytes).unwrap_or(u32::MAX);
        let Some(flags) = bytes.get(layout.flags..layout.flags + FLAGS) else { return false };
        let fits = flags.iter().all(|flag| *flag <= 1)
            && flags[0] == 0
            && number(layout.version) < MAX_VERSION
            && number(layout.version + 4) < MAX_OUTPUTS;
        if !fits {
            return false;
        }
        let hooks = layout.hooks.get(bytes).unwrap_or_default();
        let is_saved = match self.classes.class_at(self.memory, tensor) {
            Some((_, CppKind::Tensor)) if hooks == Addr(0) => {
                let (is_output, version) = (flags[IS_OUTPUT] == 1, number(layout.version));
                node.saved.push(SavedTensor { tensor, by, is_output, version });
                true
            }
            // A packed object replaces the tensor.
            Some((_, CppKind::Undefined)) => {
                let is_packed =
                    matches!(self.classes.class_at(self.memory, hooks), Some((_, CppKind::Hooks)));
                if is_packed && let Ok(packed) = self.memory.pointer(PACKED.in_target(hooks)) {
                    node.packed.push(packed);
                }
                is_packed
            }
            _ => false,
        };
        if is_saved {
            node.kept.extend(self.nodes_of_saved(bytes));
        }
        is_saved
    }

    /// `grad_fn_`, `grad_accumulator_`: owned, behind the hooks.
    fn nodes_of_saved(&self, bytes: &[u8]) -> impl Iterator<Item = Addr> {
        let first = self.layout.saved.hooks.offset + 8;
        let len = if self.layout.node.edge_len == EDGE_OF_SHARED { 16 } else { 8 };
        let nodes = [first, first + len].map(|at| Field::<Addr>::at(at).get(bytes));
        nodes.into_iter().flatten().filter(|node| {
            matches!(self.classes.class_at(self.memory, *node), Some((_, CppKind::Other)))
        })
    }

    fn vector(&self, [begin, end, capacity]: [u64; 3]) -> Option<u64> {
        let len = end.checked_sub(begin).filter(|len| (1..=MAX_SAVED).contains(len))?;
        let room = capacity.checked_sub(begin).filter(|room| *room >= len)?;
        if !Addr(begin).is_plausible()
            || !begin.is_multiple_of(16)
            || !len.is_multiple_of(self.layout.saved.len as u64)
            || !room.is_multiple_of(self.layout.saved.len as u64)
        {
            return None;
        }
        if !self.has_sizes {
            return self.are_saved(Addr(begin), len).then_some(len);
        }
        let header = self.memory.u64(Addr(begin) - 8).ok()?;
        let chunk = (header & !7).checked_sub(8)?;
        // Rounded up to 16 bytes, and 16 more if the remainder is too small for a chunk.
        (room..=room + 24).contains(&chunk).then_some(len)
    }

    /// Some may be empty.
    fn are_saved(&self, at: Addr, len: u64) -> bool {
        let layout = &self.layout.saved;
        let Ok(bytes) = self.memory.vec(at, len as usize) else { return false };
        bytes.chunks_exact(layout.len).all(|one| {
            let tensor = Field::<Addr>::at(0).get(one).unwrap_or_default();
            let kind = self.classes.class_at(self.memory, tensor).map(|(_, kind)| kind);
            let flags = one.get(layout.flags..layout.flags + FLAGS);
            matches!(kind, Some(CppKind::Tensor | CppKind::Undefined))
                && flags.is_some_and(|flags| flags.iter().all(|flag| *flag <= 1))
        })
    }

    fn elements(&self, at: Addr, len: u64, by: SavedIn, node: &mut AutogradNode) {
        let Ok(bytes) = self.memory.vec(at, len as usize) else { return };
        for one in bytes.chunks_exact(self.layout.saved.len) {
            self.saved(one, by, node);
        }
    }

    fn function(&self, at: Addr, node: &mut AutogradNode) -> Option<()> {
        let function = self.memory.pointer(self.layout.node.python.in_target(at)).ok()?;
        let class = self.memory.pointer(function + self.head.class as u64).ok()?;
        let of_class = |usual: usize| class + self.head.shift(usual) as u64;
        let len = self.memory.u64(of_class(BASIC_SIZE)).ok()?.min(MAX_FUNCTION_BYTES);
        let name = self.memory.pointer(of_class(NAME)).ok()?;
        node.class = self.memory.c_string(name, 256).ok()?.into();
        node.function = Some(function);
        let len = (len as usize).checked_sub(self.head.len)?;
        self.scan(function + self.head.len as u64, len, SavedIn::Function, node);
        Some(())
    }
}
