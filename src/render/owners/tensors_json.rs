//! Tensors and autograd nodes in the JSON of owners.

use serde::{Deserialize, Serialize};

use crate::analysis::SavedSummary;
use crate::model::{GraphNode, OwnershipSnapshot, SavedBy, SavedIn, TensorRow};

/// A tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorJson {
    /// The paths that lead to it, the best first.
    pub names: Vec<String>,
    /// What it is for: `parameters`, `buffers`, `gradients`, `optimizer state`, `saved for
    /// backward` or `other tensors`.
    pub category: String,
    /// The address of its Python object, `id(tensor)`; `null` where Python has none.
    pub id: Option<u64>,
    /// The class of that object.
    pub class: Option<String>,
    /// The address of its `TensorImpl`.
    pub r#impl: u64,
    /// The class of that: `TensorImpl`, `SparseTensorImpl`, ….
    pub impl_class: String,
    /// Its shape; `null` where it is symbolic, and of nested tensors.
    pub shape: Option<Vec<i64>>,
    /// Its strides, in elements; `null` where they are symbolic, and of nested tensors.
    pub stride: Option<Vec<i64>>,
    /// Of a nested tensor the shapes of the tensors in it; else `null`.
    pub nested_sizes: Option<Vec<Vec<i64>>>,
    /// How many elements it has; `null` where that is symbolic or not known.
    pub numel: Option<i64>,
    /// Its element type: `float32`.
    pub dtype: String,
    /// Its device: `cuda:0`; `null` where it does not say.
    pub device: Option<String>,
    /// The bytes of its elements; `null` where their number or type is not known.
    pub bytes: Option<u64>,
    /// The address of its `StorageImpl`; `null` for tensors made of others, such as sparse ones.
    pub storage: Option<u64>,
    /// The address of its storage's memory; 0 if it has none.
    pub data_ptr: Option<u64>,
    /// The size of its storage; `null` where it is symbolic.
    pub storage_bytes: Option<u64>,
    /// Where it begins in its storage, in elements.
    pub storage_offset: i64,
    /// How often it was changed in place: `tensor._version`; `null` for inference tensors.
    pub version: Option<u32>,
    /// Whether it requires a gradient.
    pub requires_grad: bool,
    /// Whether no autograd node made it.
    pub is_leaf: bool,
    /// The address of the autograd node that made it; `null` for a leaf.
    pub grad_fn: Option<u64>,
    /// The class of the autograd node that made it; `null` where that is not known.
    pub made_by: Option<String>,
    /// Whether only a reference cycle keeps it alive.
    pub garbage: bool,
    /// The address of its gradient's `TensorImpl`.
    pub grad: Option<u64>,
    /// The addresses of the `TensorImpl`s that it is made of: indices and values of sparse tensors,
    /// what is wrapped.
    pub parts: Vec<u64>,
    /// The autograd nodes that keep it.
    pub saved_by: Vec<SavedByJson>,
}

/// A tensor kept by an autograd node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SavedByJson {
    /// The address of the node.
    pub node: u64,
    /// Its class.
    pub class: String,
    /// How it keeps it: in a `field`, in a `vector`, or by `save_for_backward` of a `function`
    /// written in Python.
    pub by: String,
    /// Whether the tensor is an output of the node.
    pub is_output: bool,
}

/// An autograd node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GraphNodeJson {
    /// Its address.
    pub address: u64,
    /// Its class: `AddmmBackward0`.
    pub class: String,
    /// The addresses of the nodes after it in the backward pass.
    pub next: Vec<u64>,
    /// Tensors in it that hooks packed (checkpointing, offloading): what they hold is not known.
    pub packed_by_hooks: u64,
    /// The address of the leaf's `TensorImpl` whose gradient it accumulates; else `null`.
    pub variable: Option<u64>,
}

/// What the autograd graph keeps for the backward pass, in bytes. A storage counts once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SavedJson {
    /// All that it keeps.
    pub all: u64,
    /// The part of this in none of the following: activations.
    pub activations: u64,
    /// Tensors that no node made and that are no parameters or buffers: inputs.
    pub inputs: u64,
    /// Parameters.
    pub parameters: u64,
    /// Buffers.
    pub buffers: u64,
    /// By class of node, the one that keeps most first.
    pub classes: Vec<NodeClassJson>,
}

/// The autograd nodes of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeClassJson {
    /// The class.
    pub class: String,
    /// How many nodes.
    pub nodes: u64,
    /// Bytes that they keep, without parameters and buffers; a storage counts for the first node
    /// that keeps it.
    pub bytes: u64,
    /// How many storages that are.
    pub storages: u64,
    /// Tensors in them that hooks packed: what they hold is not known.
    pub packed_by_hooks: u64,
}

pub(super) fn node(node: &GraphNode) -> GraphNodeJson {
    GraphNodeJson {
        address: node.at,
        class: node.class.to_string(),
        next: node.next.clone(),
        packed_by_hooks: node.packed as u64,
        variable: node.variable,
    }
}

pub(super) fn saved_sums(summary: SavedSummary) -> SavedJson {
    let classes = summary.classes.iter().map(|(class, held)| NodeClassJson {
        class: class.to_string(),
        nodes: held.nodes,
        bytes: held.bytes,
        storages: held.storages,
        packed_by_hooks: held.packed,
    });
    SavedJson {
        all: summary.all,
        activations: summary.activations,
        inputs: summary.inputs,
        parameters: summary.parameters,
        buffers: summary.buffers,
        classes: classes.collect(),
    }
}

pub(super) fn tensor(snapshot: &OwnershipSnapshot, row: &TensorRow) -> TensorJson {
    let tensor = &row.tensor;
    let saved_by = |saved: &SavedBy| {
        let node = &snapshot.nodes[saved.node];
        let by = match saved.by {
            SavedIn::Field => "field",
            SavedIn::Vector => "vector",
            SavedIn::Function => "function",
        };
        SavedByJson {
            node: node.at,
            class: node.class.to_string(),
            by: by.to_owned(),
            is_output: saved.is_output,
        }
    };
    TensorJson {
        names: row.names.iter().map(ToString::to_string).collect(),
        category: row.category.name().to_owned(),
        id: row.object,
        class: row.python_class.as_deref().map(str::to_owned),
        r#impl: tensor.at,
        impl_class: tensor.class.to_string(),
        shape: tensor.shape.clone(),
        stride: tensor.strides.clone(),
        nested_sizes: tensor.nested.clone(),
        numel: tensor.numel,
        dtype: tensor.dtype.to_string(),
        device: tensor.device.map(|device| device.to_string()),
        bytes: tensor.logical_bytes(),
        storage: tensor.storage.map(|s| s.at),
        data_ptr: tensor.storage.map(|s| s.data),
        storage_bytes: tensor.storage.and_then(|s| s.bytes),
        storage_offset: tensor.offset,
        version: tensor.version,
        requires_grad: tensor.requires_grad,
        is_leaf: tensor.grad_fn.is_none(),
        grad_fn: tensor.grad_fn,
        made_by: row.made_by.as_deref().map(str::to_owned),
        garbage: row.garbage,
        grad: tensor.grad,
        parts: tensor.parts.clone(),
        saved_by: row.saved.iter().map(saved_by).collect(),
    }
}
