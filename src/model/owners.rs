//! A process's tensors, with names and autograd nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::cpp_memory::CppMemory;
use super::retained::{KeptWay, RetainedReference};
use super::tensors::TensorInfo;

/// A tensor's purpose. A storage counts in its first category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorCategory {
    /// Of a module, or an `nn.Parameter`.
    Parameter,
    /// Of a module.
    Buffer,
    /// A `.grad`.
    Gradient,
    /// In an optimizer's state.
    OptimizerState,
    /// Saved by an autograd node for backward.
    Saved,
    /// Any other tensor.
    Other,
}

impl TensorCategory {
    /// All, in order.
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

/// How a node saved a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SavedIn {
    /// In a field (`_saved_self`).
    Field,
    /// In a vector (`_saved_tensors` of cat, stack, index).
    Vector,
    /// By `save_for_backward` of a Python function.
    Function,
}

/// A node that saved a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedBy {
    /// Index in [`OwnershipSnapshot::nodes`].
    pub node: usize,
    /// How.
    pub by: SavedIn,
    /// It is an output of the node.
    pub is_output: bool,
    /// Version (in-place changes) when saved.
    pub version: u32,
}

/// A tensor and its owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRow {
    /// The tensor.
    pub tensor: TensorInfo,
    /// `id()` of its Python object, if any.
    pub object: Option<u64>,
    /// The object's class.
    pub python_class: Option<Arc<str>>,
    /// Its category.
    pub category: TensorCategory,
    /// Names and paths, best first.
    pub names: Vec<Arc<str>>,
    /// The nodes that saved it.
    pub saved: Vec<SavedBy>,
    /// Class of its `grad_fn`.
    pub made_by: Option<Arc<str>>,
    /// Only C++ refers to it, as a view to its base.
    pub only_in_cpp: bool,
    /// Only cycles of Python objects, or their C++ parts, keep it alive.
    pub garbage: bool,
}

/// An autograd node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNode {
    /// Its address.
    pub at: u64,
    /// Its class: `AddmmBackward0`, or a Python function's.
    pub class: Arc<str>,
    /// Addresses of the next nodes in backward.
    pub next: Vec<u64>,
    /// Elements of each output, if the shape is known.
    pub outputs: Vec<Option<u64>>,
    /// Tensors packed by hooks (checkpointing, offload), not unpacked.
    pub packed: usize,
    /// `TensorImpl` of the leaf whose gradient it accumulates.
    pub variable: Option<u64>,
}

/// A module of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedModule {
    /// `layers.0`; empty for the model.
    pub path: String,
    /// Its class.
    pub class: Arc<str>,
    /// Its class is of `torch.nn`.
    pub is_of_torch: bool,
    /// `id()` of direct parameters.
    pub parameters: Vec<u64>,
    /// It contains modules.
    pub has_children: bool,
    /// Its `inplace`.
    pub inplace: bool,
}

/// An outermost module and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootModule {
    /// Variable that leads to it, else class.
    pub name: Arc<str>,
    /// Each once, in the order of `modules()`.
    pub modules: Vec<NamedModule>,
    /// `training`, if readable.
    pub is_training: Option<bool>,
}

/// An optimizer with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optimizer {
    /// Variable that leads to it, if found.
    pub variable: Option<Arc<str>>,
    /// Its class.
    pub class: Arc<str>,
    /// `id()` of parameters with state.
    pub parameters: Vec<u64>,
    /// `id()` of the state's tensors.
    pub state: Vec<u64>,
}

/// A `collections.deque` with a `maxlen`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedQueue {
    /// Variable that leads to it.
    pub name: Arc<str>,
    /// Number of its items.
    pub items: u64,
    /// Its `maxlen`.
    pub limit: u64,
}

/// User of a private pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUser {
    /// `CUDAGraph`, `MemPool`.
    pub class: Arc<str>,
    /// Variable that leads to it, if found.
    pub name: Option<Arc<str>>,
    /// The pool.
    pub pool: PoolId,
}

/// GPU tensors of another process: this one was forked after CUDA began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedTensors {
    /// The owner's pid, unless ended.
    pub of: Option<u32>,
    /// Number of storages.
    pub storages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Equal cycles of Python objects to which nothing else refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GarbageCycle {
    /// Best class in it, preferably the program's.
    pub class: Arc<str>,
    /// Shortest cycle through such an object, in Python syntax.
    pub way: String,
    /// Number of cycles.
    pub cycles: u64,
    /// `TensorImpl`s kept alive.
    pub tensors: Vec<u64>,
}

/// A process's tensors at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnershipSnapshot {
    /// Those with Python objects first.
    pub tensors: Vec<TensorRow>,
    /// The autograd graph.
    pub nodes: Vec<GraphNode>,
    /// The allocator's blocks, by device.
    pub blocks: Vec<AllocatorSnapshot>,
    /// How long the process was stopped; `None`: it ran, so parts may be inconsistent.
    pub pause: Option<Duration>,
    /// All stops.
    pub stops: StopTotals,
    /// Bytes copied in the last stop.
    pub copied_in_stop: u64,
    /// Why and what it lacks; `None`: complete.
    pub incomplete: Option<IncompleteSnapshot>,
    /// What changed while it was read; `None`: all of it is of one moment, unless the process ran.
    pub uncertain: Option<UncertainSnapshot>,
    /// Time from the release of the process to the end of evaluation.
    pub age: Duration,
    /// Objects that the garbage collector tracks.
    pub objects: u64,
    /// Unreadable objects.
    pub unreadable: u64,
    /// Tensors with contradictory fields (damaged memory): figures may be wrong.
    pub misfits: u64,
    /// References to the requested tensors.
    pub referrers: Vec<TensorReferrers>,
    /// Outermost modules with tensors.
    pub models: Vec<RootModule>,
    /// Optimizers with state.
    pub optimizers: Vec<Optimizer>,
    /// Deques with a limit, those that a variable leads to.
    pub queues: Vec<LimitedQueue>,
    /// Objects that count training steps.
    pub counting: Vec<CountingObject>,
    /// Garbage cycles with tensors.
    pub garbage: Vec<GarbageCycle>,
    /// Tensors copied by a fork, not in `tensors`.
    pub copied: Option<CopiedTensors>,
    /// CUDA graphs and `MemPool`s with private pools.
    pub pool_users: Vec<PoolUser>,
    /// What PyTorch's C++ keeps.
    pub cpp: Vec<CppMemory>,
    /// What references would free, those of the most memory; empty if unknown.
    pub retained: Vec<RetainedReference>,
    /// How variables lead to the requested tensors.
    pub ways: Vec<KeptWay>,
}

impl OwnershipSnapshot {
    /// Whether nothing in it changed while it was read.
    pub fn is_of_one_moment(&self) -> bool {
        self.pause.is_some() && self.uncertain.is_none()
    }

    /// What a reference would free, if that is known.
    pub fn retained_by(&self, name: &str) -> Option<&RetainedReference> {
        self.retained.iter().find(|known| *known.name == *name)
    }

    /// Whether no tensor is missing.
    pub fn has_all_tensors(&self) -> bool {
        self.incomplete.as_ref().is_none_or(|incomplete| !incomplete.lacks_tensors())
    }

    /// Why autograd graph or modules may be incomplete; `None`: complete.
    pub fn cut_graph(&self) -> Option<&IncompleteSnapshot> {
        self.incomplete.as_ref().filter(|incomplete| incomplete.lacks_graph())
    }
}

/// An object that counts training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountingObject {
    /// Its kind.
    pub kind: StepCounterKind,
    /// Its `id()`.
    pub object: u64,
}

/// What counts, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepCounterKind {
    /// `global_step` of `transformers.TrainerState`.
    Trainer,
    /// `last_epoch` of a `torch.optim.lr_scheduler`: its own steps, perhaps not the optimizer's.
    Scheduler,
}

/// Stops of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct StopTotals {
    pub count: u32,
    pub total: Duration,
    pub longest: Duration,
}

impl StopTotals {
    /// Adds one stop.
    pub fn add(&mut self, stopped_for: Duration) {
        self.count += 1;
        self.total += stopped_for;
        self.longest = self.longest.max(stopped_for);
    }

    /// Adds those of another snapshot.
    pub fn merge(&mut self, other: StopTotals) {
        self.count += other.count;
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }
}

/// A limit that ended a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedLimit {
    /// Longest stop.
    Pause(Duration),
    /// Longest snapshot.
    Time(Duration),
    /// Planning the copy used up its share of the time.
    Finding {
        /// The part.
        part: Duration,
        /// The whole time.
        of: Duration,
    },
    /// Longest snapshot: too little was left to copy changes again.
    Repeating(Duration),
    /// The process changed its objects during all of these copies.
    Copies(u32),
    /// Most memory of memspy for it, in bytes.
    Memory(u64),
    /// Reference counts contradict the references.
    Counts,
}

impl ReachedLimit {
    /// Short: `limit of 5s`.
    pub fn short(&self) -> String {
        match self {
            ReachedLimit::Pause(most) => format!("limit of {} for a stop", time(*most)),
            ReachedLimit::Time(most) | ReachedLimit::Repeating(most) => {
                format!("limit of {}", time(*most))
            }
            ReachedLimit::Finding { of, .. } => format!("limit of {}", time(*of)),
            ReachedLimit::Copies(count) => format!("changed during each of {count} copies"),
            ReachedLimit::Memory(most) => format!("limit of {} MiB", most >> 20),
            ReachedLimit::Counts => "reference counts contradict the references".to_owned(),
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
impl fmt::Display for ReachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReachedLimit::Pause(most) => {
                write!(f, "the limit of {most:?} on how long the job may be stopped was reached")
            }
            ReachedLimit::Time(most) => {
                write!(f, "the limit of {most:?} for the snapshot was reached")
            }
            ReachedLimit::Finding { part, of } => write!(
                f,
                "finding its objects took more than {part:?}, their part of the limit of {of:?} for the snapshot"
            ),
            ReachedLimit::Repeating(most) => write!(
                f,
                "the limit of {most:?} for the snapshot leaves no time to copy once more what changed meanwhile"
            ),
            ReachedLimit::Copies(count) => {
                write!(f, "the job changed its objects during each of {count} copies")
            }
            ReachedLimit::Memory(most) => {
                write!(f, "the limit of {} MiB of memory for the snapshot was reached", most >> 20)
            }
            ReachedLimit::Counts => f.write_str("reference counts contradict the references"),
        }
    }
}

/// An incomplete snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IncompleteSnapshot {
    pub limit: ReachedLimit,
    pub missing: Vec<&'static str>,
}

impl IncompleteSnapshot {
    /// Parts, in reading order: the objects.
    pub const OBJECTS: &str = "the list of objects";
    /// Fields of tensors.
    pub const TENSORS: &str = "tensors";
    /// Tensors saved by autograd nodes.
    pub const GRAPH: &str = "the autograd graph";
    /// Modules.
    pub const MODULES: &str = "modules";
    /// What variables lead to, also tensors without a Python object.
    pub const VARIABLES: &str = "names by variables";
    /// Garbage.
    pub const GARBAGE: &str = "garbage";
    /// What variables lead to over many steps.
    pub const FAR: &str = "names of what no variable leads to within a few steps";

    /// Whether one of these parts is missing.
    pub fn lacks(&self, parts: &[&str]) -> bool {
        self.missing.iter().any(|missing| parts.contains(missing))
    }

    /// Whether tensors may be missing, so that memory seems to be in none.
    pub fn lacks_tensors(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::VARIABLES])
    }

    /// Whether names may be missing.
    pub fn lacks_names(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::MODULES, Self::VARIABLES, Self::FAR])
    }

    /// Whether autograd graph or modules may be missing.
    pub fn lacks_graph(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::MODULES])
    }

    /// Text for missing figures.
    pub fn not_read(&self) -> String {
        format!("not read ({})", self.limit.short())
    }
}

/// What changed while a snapshot was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct UncertainSnapshot {
    pub bytes: u64,
    pub of: u64,
    /// Parts whose rows may be torn.
    pub parts: Vec<&'static str>,
    /// Torn tensors that contradict the allocator's blocks: they have no rows.
    pub left_out: u64,
}

/// References to a tensor's Python object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorReferrers {
    /// The object's `id()`.
    pub object: u64,
    /// Reference count; `None`: untracked; negative: immortal.
    pub count: Option<i32>,
    /// Those found; C and C++ may have more.
    pub referrers: Vec<Referrer>,
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrer {
    /// `id()` of the referring object; `None`: a local variable.
    pub at: Option<u64>,
    /// Its class.
    pub class: Arc<str>,
    /// Path from a variable, if found.
    pub name: Option<String>,
    /// Last step: `[0]`, `.inputs`.
    pub step: String,
}
