//! The JSON of `memspy tensors`, `graph` and `referrers`: one document for the three.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{JsonFormat, OwnerGroupJson};

/// `memspy tensors --json`, `memspy graph --json` and `memspy referrers --json`: every tensor and
/// every autograd node of a process at one moment. Sizes in bytes; with `--every` one line a
/// snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnershipJson {
    /// With `--every`: when, in local time; else `null`.
    pub timestamp: Option<String>,
    /// With `--every`: the line that the main thread was at; `null` where it was at none.
    pub place: Option<String>,
    /// With `memspy referrers`: what refers to the tensors that were asked about.
    pub referrers: Vec<TensorReferrersJson>,
    /// The owners in groups, the largest first.
    pub groups: Vec<OwnerGroupJson>,
    /// For how long the job was stopped while its memory was copied, in seconds; `null` if it ran
    /// on: then parts of this may be of different moments.
    pub pause_seconds: Option<f64>,
    /// All stops of the job.
    pub stops: StopsJson,
    /// Which limit ended the snapshot early; `null` if it is complete.
    pub incomplete: Option<IncompleteJson>,
    /// Of a process that was forked after CUDA had begun: the tensors on GPUs that are another
    /// process's, and not listed; else `null`.
    pub copied: Option<CopiedTensorsJson>,
    /// The cycles of Python objects that keep garbage alive, by class.
    pub garbage_cycles: Vec<GarbageCycleJson>,
    /// The private pools of the allocator, the largest first, and the CUDA graphs that they belong
    /// to.
    pub private_pools: Vec<OwnedPoolJson>,
    /// Python objects that the garbage collector tracks.
    pub objects: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// Tensors whose fields contradict each other, so that what is said of them may be wrong.
    pub misfits: u64,
    /// What each device's memory is for, by device: `cuda:0`.
    pub devices: BTreeMap<String, DeviceOwnersJson>,
    /// The tensors, those with Python objects first.
    pub tensors: Vec<TensorJson>,
    /// The nodes of the autograd graph.
    pub nodes: Vec<GraphNodeJson>,
    /// What the autograd graph keeps for the backward pass.
    pub saved_for_backward: SavedJson,
}

impl JsonFormat for OwnershipJson {
    const FORMAT: &'static str = "memspy-tensors";
    const VERSION: u32 = 1;
}

/// How often a job was stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StopsJson {
    /// How often.
    pub count: u32,
    /// For how long in all, in seconds.
    pub total_seconds: f64,
    /// For how long at once at most, in seconds.
    pub longest_seconds: f64,
}

/// Tensors on GPUs that a forked process only has copies of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopiedTensorsJson {
    /// The process that they belong to; `null` where it has ended.
    pub of_process: Option<u32>,
    /// How many storages.
    pub storages: u64,
    /// Their bytes in that process.
    pub bytes: u64,
}

/// Cycles of Python objects of one kind that nothing else refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GarbageCycleJson {
    /// The class in it that says most: one of the program, if there is any.
    pub class: String,
    /// The shortest way round through an object of that class, as it would be written in Python.
    pub way: String,
    /// How many such cycles there are.
    pub cycles: u64,
    /// The addresses of the tensors that they keep alive (`address` of `tensors`).
    pub tensors: Vec<u64>,
}

/// A private pool of the allocator: what is free in it serves only the CUDA graphs, or the
/// `MemPool`, that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnedPoolJson {
    /// The device: `cuda:0`.
    pub device: String,
    /// Its id.
    pub pool: [u64; 2],
    /// Bytes of its segments.
    pub bytes: u64,
    /// Bytes that the allocator's counters count as free.
    pub free: u64,
    /// Names of the graphs, or of the `MemPool`, that it belongs to; their classes where no
    /// variable leads to them.
    pub users: Vec<String>,
}

/// Why a snapshot is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IncompleteJson {
    /// The limit that was reached: `pause` (how long the job may be stopped), `time`, `copies` or
    /// `memory`.
    pub limit: String,
    /// The limit itself: seconds of `pause` and `time`, a number of `copies`, bytes of `memory`.
    pub most: serde_json::Number,
    /// What was not read, or only in part.
    pub missing: Vec<String>,
}

/// What refers to one tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorReferrersJson {
    /// The address of its Python object.
    pub object: u64,
    /// Its reference count; negative if it is immortal, `null` where it is not known.
    pub reference_count: Option<i32>,
    /// The references that were found; C and C++ may hold more.
    pub referrers: Vec<ReferrerJson>,
}

/// A reference to a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReferrerJson {
    /// The address of the object that refers; `null` for a variable of a running function.
    pub address: Option<u64>,
    /// Its class.
    pub class: String,
    /// The path from a variable of the program to it; `null` where none was found.
    pub name: Option<String>,
    /// The last step from it to the tensor: `[0]`, `.inputs`.
    pub step: String,
}

/// What the memory of a device is for, in bytes. A storage counts once, in the first of its
/// categories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceOwnersJson {
    /// Allocated by PyTorch, by the allocator's blocks; `null` for devices without PyTorch's native
    /// CUDA allocator.
    pub allocated: Option<u64>,
    /// Parameters.
    pub parameters: u64,
    /// Buffers of modules.
    pub buffers: u64,
    /// Gradients.
    pub gradients: u64,
    /// State of optimizers.
    pub optimizer_state: u64,
    /// Saved for the backward pass by autograd nodes.
    pub saved_for_backward: u64,
    /// Other tensors.
    pub other_tensors: u64,
    /// Of all these, tensors that no variable leads to and no autograd node keeps.
    pub unnamed: u64,
    /// What the allocator added by rounding sizes up.
    pub rounding: u64,
    /// Allocated and in no tensor that was found: work spaces, tensors that only C++ holds.
    pub in_no_tensor: u64,
    /// Freed by the program, while another stream may still use it.
    pub pending_free: u64,
    /// Tensors in private pools whose block is free: what CUDA graphs write to when they are
    /// replayed.
    pub in_graph_pools: u64,
    /// Tensors in no block of the allocator: memory of other libraries, or of another process.
    pub elsewhere: u64,
    /// Tensors that only reference cycles keep alive: `gc.collect()` would free them.
    pub garbage: u64,
    /// What `torch.cuda.empty_cache()` would return to the driver.
    pub releasable: u64,
    /// How many storages there are.
    pub storages: u64,
    /// The tensors that Python has objects of.
    pub python_tensors: PythonTensorsJson,
}

/// The tensors that Python has objects of, each counted for itself: a view counts again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PythonTensorsJson {
    /// How many.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// The bytes of these elements.
    pub bytes: u64,
    /// How many have an unknown (symbolic) size, and are in neither sum.
    pub of_unknown_size: u64,
}

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

/// That an autograd node keeps a tensor.
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
