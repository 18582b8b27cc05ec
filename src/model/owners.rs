//! Owners of memory: every tensor of a process at one moment, with its names, and autograd nodes
//! that keep some.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::tensors::TensorInfo;

/// What a tensor is for. A storage with several categories counts as the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorCategory {
    /// A parameter: of a module, or an `nn.Parameter`.
    Parameter,
    /// A buffer of a module.
    Buffer,
    /// The `.grad` of a tensor.
    Gradient,
    /// In the state of an optimizer.
    OptimizerState,
    /// Kept by an autograd node for the backward pass.
    Saved,
    /// Any other tensor.
    Other,
}

impl TensorCategory {
    /// All, in their order.
    pub const ALL: [TensorCategory; 6] = [
        TensorCategory::Parameter,
        TensorCategory::Buffer,
        TensorCategory::Gradient,
        TensorCategory::OptimizerState,
        TensorCategory::Saved,
        TensorCategory::Other,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            TensorCategory::Parameter => "parameters",
            TensorCategory::Buffer => "buffers",
            TensorCategory::Gradient => "gradients",
            TensorCategory::OptimizerState => "optimizer state",
            TensorCategory::Saved => "saved for backward",
            TensorCategory::Other => "other tensors",
        }
    }
}

/// How a node keeps a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SavedIn {
    /// In a field (`_saved_self`).
    Field,
    /// In a vector (`_saved_tensors` of cat, stack, index).
    Vector,
    /// By `save_for_backward` of a function written in Python.
    Function,
}

/// A node's reference to a tensor that it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedBy {
    /// Index of the node in [`OwnershipSnapshot::nodes`].
    pub node: usize,
    /// How it keeps it.
    pub by: SavedIn,
    /// Whether it is an output of the node.
    pub is_output: bool,
    /// The tensor's version (count of in-place changes) when it was saved.
    pub version: u32,
}

/// A tensor and its owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRow {
    /// The tensor itself.
    pub tensor: TensorInfo,
    /// `id()` of its Python object; `None`: it has none.
    pub object: Option<u64>,
    /// The class of that object.
    pub python_class: Option<Arc<str>>,
    /// Its category.
    pub category: TensorCategory,
    /// Names and paths that lead to it, best first.
    pub names: Vec<Arc<str>>,
    /// The nodes that keep it.
    pub saved: Vec<SavedBy>,
    /// Class of the node that produced it.
    pub made_by: Option<Arc<str>>,
    /// Whether only C++ refers to it and its object, as a view refers to its base.
    pub only_in_cpp: bool,
    /// Whether it is garbage: kept alive only by cycles of Python objects and what they refer to in
    /// C++.
    pub garbage: bool,
}

/// An autograd node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNode {
    /// Its address.
    pub at: u64,
    /// Its class: `AddmmBackward0`, or that of a Python function.
    pub class: Arc<str>,
    /// Addresses of the next nodes in the backward pass.
    pub next: Vec<u64>,
    /// Elements of each output of its operation; `None`: unknown shape.
    pub outputs: Vec<Option<u64>>,
    /// Number of tensors packed by hooks (checkpointing, offload); their contents are not unpacked.
    pub packed: usize,
    /// The `TensorImpl` of the leaf whose gradient it accumulates.
    pub variable: Option<u64>,
}

/// A module of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelModule {
    /// Its path in the model: `layers.0`; empty for the model itself.
    pub path: String,
    /// Its class.
    pub class: Arc<str>,
    /// Whether the class is from `torch.nn`, so that its name says what it does.
    pub is_of_torch: bool,
    /// `id()` of its direct parameters.
    pub parameters: Vec<u64>,
    /// Whether it contains modules.
    pub has_children: bool,
    /// Its attribute `inplace`.
    pub inplace: bool,
}

/// An outermost module with everything in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootModule {
    /// The variable that leads to it, else its class.
    pub name: Arc<str>,
    /// It and all modules in it, each once, in the order of `modules()`.
    pub modules: Vec<ModelModule>,
    /// Its `training`; `None`: unreadable.
    pub is_training: Option<bool>,
}

/// An optimizer and the tensors in its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optimizer {
    /// The variable that leads to it, if found.
    pub variable: Option<Arc<str>>,
    /// Its class.
    pub class: Arc<str>,
    /// `id()` of the parameters that it has state for.
    pub parameters: Vec<u64>,
    /// `id()` of the state's tensors.
    pub state: Vec<u64>,
}

/// The user of a private pool of the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUser {
    /// Its class: `CUDAGraph`, `MemPool`.
    pub class: Arc<str>,
    /// The variable that leads to it, if found.
    pub name: Option<Arc<str>>,
    /// The pool.
    pub pool: PoolId,
}

/// GPU tensors that a process only has copies of: it was forked from their owner after CUDA began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedTensors {
    /// The owner's pid; `None`: it has ended.
    pub of: Option<u32>,
    /// Number of storages.
    pub storages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Unreferenced cycles of Python objects, all alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GarbageCycle {
    /// The most telling class in it, preferably one of the program.
    pub class: Arc<str>,
    /// The shortest cycle through an object of that class, in Python syntax.
    pub way: String,
    /// Number of such cycles.
    pub cycles: u64,
    /// The `TensorImpl`s that they keep alive.
    pub tensors: Vec<u64>,
}

/// All tensors of a process at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnershipSnapshot {
    /// Tensors, those with Python objects first.
    pub tensors: Vec<TensorRow>,
    /// The autograd graph.
    pub nodes: Vec<GraphNode>,
    /// The allocator's blocks at the same moment, by device.
    pub blocks: Vec<AllocatorSnapshot>,
    /// How long the process was stopped for it; `None`: it ran, so the parts may not fit together.
    pub pause: Option<Duration>,
    /// All stops of the snapshot.
    pub stops: StopTotals,
    /// Why the snapshot is incomplete, and what it lacks; `None`: complete.
    pub incomplete: Option<IncompleteSnapshot>,
    /// Time from the process's release until the snapshot was evaluated.
    pub age: Duration,
    /// Python objects tracked by the garbage collector.
    pub objects: u64,
    /// Unreadable objects.
    pub unreadable: u64,
    /// Tensors with inconsistent fields, as in damaged memory: their figures may be wrong.
    pub misfits: u64,
    /// References to the tensors that were asked about.
    pub referrers: Vec<TensorReferrers>,
    /// The outermost modules with tensors.
    pub models: Vec<RootModule>,
    /// The optimizers with state.
    pub optimizers: Vec<Optimizer>,
    /// Objects of the program that count training steps.
    pub counting: Vec<CountingObject>,
    /// The cycles that keep garbage alive.
    pub garbage: Vec<GarbageCycle>,
    /// Tensors of the parent before a fork, not in `tensors`; `None`: not such a process.
    pub copied: Option<CopiedTensors>,
    /// The CUDA graphs and `MemPool`s with private pools of the allocator.
    pub pool_users: Vec<PoolUser>,
}

impl OwnershipSnapshot {
    /// Whether it lacks no tensor.
    pub fn has_all_tensors(&self) -> bool {
        self.incomplete.as_ref().is_none_or(|incomplete| !incomplete.lacks_tensors())
    }

    /// Why the autograd graph or the modules may be incomplete; `None`: complete.
    pub fn cut_graph(&self) -> Option<&IncompleteSnapshot> {
        self.incomplete.as_ref().filter(|incomplete| incomplete.lacks_graph())
    }
}

/// An object with an attribute that counts training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountingObject {
    /// What it is.
    pub kind: CountingKind,
    /// Its `id()`.
    pub object: u64,
}

/// What counts; the best comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountingKind {
    /// `transformers.TrainerState`, in `global_step`.
    Trainer,
    /// A scheduler of `torch.optim.lr_scheduler`, in `last_epoch`: its own steps, maybe not the
    /// optimizer's.
    Scheduler,
}

/// Number and duration of a process's stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopTotals {
    /// Number of stops.
    pub count: u32,
    /// Total duration.
    pub total: Duration,
    /// Longest stop.
    pub longest: Duration,
}

impl StopTotals {
    /// Adds one stop.
    pub fn add(&mut self, stopped_for: Duration) {
        self.count += 1;
        self.total += stopped_for;
        self.longest = self.longest.max(stopped_for);
    }

    /// Adds the stops of another snapshot.
    pub fn merge(&mut self, other: StopTotals) {
        self.count += other.count;
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }
}

/// The limit that ended a snapshot early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookLimit {
    /// Longest allowed stop.
    Pause(Duration),
    /// Longest allowed snapshot.
    Time(Duration),
    /// Planning the copy took longer than its part of the time.
    Finding {
        /// The part.
        part: Duration,
        /// The whole time.
        of: Duration,
    },
    /// Longest allowed snapshot, with too little left to copy the changes again.
    Repeating(Duration),
    /// The process changed its objects during each of this many copies.
    Copies(u32),
    /// Most bytes of memspy's memory, besides those for the process's objects.
    Memory(u64),
}

impl LookLimit {
    /// In a few words: `limit of 5s`.
    pub fn short(&self) -> String {
        match self {
            LookLimit::Pause(most) => format!("limit of {} for a stop", time(*most)),
            LookLimit::Time(most) | LookLimit::Repeating(most) => {
                format!("limit of {}", time(*most))
            }
            LookLimit::Finding { of, .. } => format!("limit of {}", time(*of)),
            LookLimit::Copies(count) => format!("changed during each of {count} copies"),
            LookLimit::Memory(most) => format!("limit of {} MiB", most >> 20),
        }
    }
}

fn time(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ if time < Duration::from_secs(1) => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// As a clause.
impl fmt::Display for LookLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookLimit::Pause(most) => {
                write!(f, "the limit of {most:?} on how long the job may be stopped was reached")
            }
            LookLimit::Time(most) => {
                write!(f, "the limit of {most:?} for the snapshot was reached")
            }
            LookLimit::Finding { part, of } => write!(
                f,
                "finding its objects took more than {part:?}, their part of the limit of {of:?} for the snapshot"
            ),
            LookLimit::Repeating(most) => write!(
                f,
                "the limit of {most:?} for the snapshot leaves no time to copy once more what changed meanwhile"
            ),
            LookLimit::Copies(count) => {
                write!(f, "the job changed its objects during each of {count} copies")
            }
            LookLimit::Memory(most) => {
                write!(f, "the limit of {} MiB of memory for the snapshot was reached", most >> 20)
            }
        }
    }
}

/// A snapshot that ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteSnapshot {
    /// The limit.
    pub limit: LookLimit,
    /// Parts that are missing or incomplete.
    pub missing: Vec<&'static str>,
}

impl IncompleteSnapshot {
    /// The parts of a snapshot, in reading order.
    pub const OBJECTS: &str = "the list of objects";
    /// The tensors' own fields.
    pub const TENSORS: &str = "tensors";
    /// Tensors kept by autograd nodes.
    pub const GRAPH: &str = "the autograd graph";
    /// The modules of models.
    pub const MODULES: &str = "modules";
    /// What variables lead to, including tensors without a Python object.
    pub const VARIABLES: &str = "names by variables";
    /// What only cycles of objects keep.
    pub const GARBAGE: &str = "garbage";
    /// What variables lead to over many steps.
    pub const FAR: &str = "names of what no variable leads to within a few steps";

    /// Whether one of these parts is missing.
    pub fn lacks(&self, parts: &[&str]) -> bool {
        self.missing.iter().any(|missing| parts.contains(missing))
    }

    /// Whether tensors may be missing, so that their memory seems to be in none.
    pub fn lacks_tensors(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::VARIABLES])
    }

    /// Whether names of tensors may be missing.
    pub fn lacks_names(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::MODULES, Self::VARIABLES, Self::FAR])
    }

    /// Whether the autograd graph, or the modules that describe it, may be missing.
    pub fn lacks_graph(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::MODULES])
    }

    /// The text in place of missing figures.
    pub fn not_read(&self) -> String {
        format!("not read ({})", self.limit.short())
    }
}

/// References to a tensor's Python object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorReferrers {
    /// `id()` of the object.
    pub object: u64,
    /// Its reference count; `None`: untracked; negative: immortal.
    pub count: Option<i32>,
    /// The references found; C and C++ may have more.
    pub referrers: Vec<Referrer>,
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrer {
    /// `id()` of the referring object; `None`: a local variable of a running function.
    pub at: Option<u64>,
    /// Its class.
    pub class: Arc<str>,
    /// A path to it from a variable, if found.
    pub name: Option<String>,
    /// The step from it to the tensor: `[0]`, `.inputs`.
    pub step: String,
}
