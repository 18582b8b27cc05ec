//! Who holds memory: every tensor of a process at one moment, with its names, and the autograd nodes that keep some.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::tensors::TensorInfo;

/// What a tensor is for. Where one storage is several things, the first counts.
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

    /// In words, for tables.
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
    /// In a field of its own (`_saved_self`).
    Field,
    /// In a vector (`_saved_tensors` of cat, stack, index).
    Vector,
    /// By `save_for_backward` of a function written in Python.
    Function,
}

/// That a node keeps a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedBy {
    /// Index of the node in [`OwnershipSnapshot::nodes`].
    pub node: usize,
    /// How it keeps it.
    pub by: SavedIn,
    /// Whether it is an output of the node.
    pub is_output: bool,
    /// How often it had been changed in place when it was saved.
    pub version: u32,
}

/// A tensor and who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRow {
    /// What it says of itself.
    pub tensor: TensorInfo,
    /// `id()` of its Python object; `None` for tensors that Python does not know.
    pub object: Option<u64>,
    /// The class of that object.
    pub python_class: Option<Arc<str>>,
    /// What it is for.
    pub category: TensorCategory,
    /// Names and paths that lead to it, the best first.
    pub names: Vec<Arc<str>>,
    /// The nodes that keep it.
    pub saved: Vec<SavedBy>,
    /// Class of the node that made it.
    pub made_by: Option<Arc<str>>,
    /// Whether only C++ holds it and its object, such as a view that holds the tensor it shows a
    /// part of.
    pub only_in_cpp: bool,
    /// Whether it is garbage: only cycles of Python objects, and what hangs on these in C++, keep
    /// it alive.
    pub garbage: bool,
}

/// An autograd node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNode {
    /// Its address.
    pub at: u64,
    /// Its class: `AddmmBackward0`, or the class of a function written in Python.
    pub class: Arc<str>,
    /// Addresses of the nodes that come after it in the backward pass.
    pub next: Vec<u64>,
    /// Elements of each result of its operation; `None` where the shape is not known.
    pub outputs: Vec<Option<u64>>,
    /// How many tensors hooks packed (checkpointing, offload): what they hold is not unpacked.
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
    /// Whether that is one of `torch.nn`, so that its name tells what it does.
    pub is_of_torch: bool,
    /// `id()` of the parameters that it has itself.
    pub parameters: Vec<u64>,
    /// Whether it contains modules.
    pub has_children: bool,
    /// Its attribute `inplace`.
    pub inplace: bool,
}

/// A module that no other one contains, with all in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootModule {
    /// The variable that leads to it, else its class.
    pub name: Arc<str>,
    /// It and all modules in it, each once, in the order of `modules()`.
    pub modules: Vec<ModelModule>,
    /// `training` of the outermost module; `None` where it could not be read.
    pub is_training: Option<bool>,
}

/// An optimizer and the tensors in its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optimizer {
    /// The variable that leads to it; `None` where none was found.
    pub variable: Option<Arc<str>>,
    /// Its class.
    pub class: Arc<str>,
    /// `id()` of the parameters that it has state for.
    pub parameters: Vec<u64>,
    /// `id()` of the tensors of that state.
    pub state: Vec<u64>,
}

/// What a private pool of the allocator belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUser {
    /// Its class: `CUDAGraph`, `MemPool`.
    pub class: Arc<str>,
    /// The variable that leads to it; `None` where none was found.
    pub name: Option<Arc<str>>,
    /// The pool.
    pub pool: PoolId,
}

/// Tensors on GPUs that a process only has copies of: it was forked from the one that they belong
/// to, after CUDA had begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedTensors {
    /// That process; `None` where it has ended.
    pub of: Option<u32>,
    /// How many storages there are.
    pub storages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Cycles of Python objects that nothing else refers to, all of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GarbageCycle {
    /// The class in it that says most: one of the program, if there is any.
    pub class: Arc<str>,
    /// The shortest way round through an object of that class, as it would be written in Python.
    pub way: String,
    /// How many such cycles there are.
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
    /// For how long the process was stopped when all this was so; `None` when it ran on, so that what was read may not fit
    /// together.
    pub pause: Option<Duration>,
    /// All stops that the look took.
    pub stops: StopTotals,
    /// Why it is not all, and what is missing; `None` when it is all.
    pub incomplete: Option<IncompleteSnapshot>,
    /// How long ago it went on, when all this had been understood.
    pub age: Duration,
    /// Python objects tracked by the garbage collector.
    pub objects: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// Tensors whose numbers do not fit together, as where their memory is damaged: what is told of them may be wrong.
    pub misfits: u64,
    /// What refers to the tensors that were asked about.
    pub referrers: Vec<TensorReferrers>,
    /// The outermost modules that have tensors.
    pub models: Vec<RootModule>,
    /// The optimizers that have state.
    pub optimizers: Vec<Optimizer>,
    /// Objects of the program that count the steps of training.
    pub counting: Vec<CountingObject>,
    /// The cycles that keep the garbage alive.
    pub garbage: Vec<GarbageCycle>,
    /// The tensors that a fork left behind, which are not in `tensors`; `None` in a process of its
    /// own.
    pub copied: Option<CopiedTensors>,
    /// The CUDA graphs and `MemPool`s that private pools of the allocator belong to.
    pub pool_users: Vec<PoolUser>,
}

impl OwnershipSnapshot {
    /// Whether no tensor is missing in it.
    pub fn has_all_tensors(&self) -> bool {
        self.incomplete.as_ref().is_none_or(|incomplete| !incomplete.lacks_tensors())
    }

    /// Why its autograd graph, or the modules, may not be whole; `None` where they are.
    pub fn cut_graph(&self) -> Option<&IncompleteSnapshot> {
        self.incomplete.as_ref().filter(|incomplete| incomplete.lacks_graph())
    }
}

/// An object that counts the steps of training in an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountingObject {
    /// What it is.
    pub kind: CountingKind,
    /// Its `id()`.
    pub object: u64,
}

/// What counts; the first says most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountingKind {
    /// `transformers.TrainerState`, in `global_step`.
    Trainer,
    /// A scheduler of `torch.optim.lr_scheduler`, in `last_epoch`: its own steps, which need not be the optimizer's.
    Scheduler,
}

/// How often a process was stopped, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StopTotals {
    /// How often.
    pub count: u32,
    /// For how long in all.
    pub total: Duration,
    /// For how long at most at once.
    pub longest: Duration,
}

impl StopTotals {
    /// Adds one stop.
    pub fn add(&mut self, stopped_for: Duration) {
        self.count += 1;
        self.total += stopped_for;
        self.longest = self.longest.max(stopped_for);
    }

    /// Adds those of another look.
    pub fn merge(&mut self, other: StopTotals) {
        self.count += other.count;
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }
}

/// Why a look ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookLimit {
    /// The process may be stopped for at most this long.
    Pause(Duration),
    /// The snapshot may take at most this long.
    Time(Duration),
    /// Finding what is to be copied took longer than its part of the time for the look.
    Finding {
        /// The part.
        part: Duration,
        /// The time for the look.
        of: Duration,
    },
    /// The snapshot may take this long, and too little of it is left to copy once more what changed.
    Repeating(Duration),
    /// The process changed its objects during each of this many copies.
    Copies(u32),
    /// It may take this many bytes of memspy's memory, and what the process's objects need.
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

/// What happened, as a clause of its own.
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

/// A look that ended before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteSnapshot {
    /// The limit that it came to.
    pub limit: LookLimit,
    /// What was not read, or not wholly.
    pub missing: Vec<&'static str>,
}

impl IncompleteSnapshot {
    /// The parts of a snapshot, in the order in which they are read.
    pub const OBJECTS: &str = "the list of objects";
    /// What tensors say of themselves.
    pub const TENSORS: &str = "tensors";
    /// What autograd nodes keep.
    pub const GRAPH: &str = "the autograd graph";
    /// The modules of models.
    pub const MODULES: &str = "modules";
    /// What variables lead to, some of it tensors without a Python object.
    pub const VARIABLES: &str = "names by variables";
    /// What only cycles of objects keep.
    pub const GARBAGE: &str = "garbage";
    /// What variables lead to over many steps.
    pub const FAR: &str = "names of what no variable leads to within a few steps";

    /// Whether one of these parts is missing.
    pub fn lacks(&self, parts: &[&str]) -> bool {
        self.missing.iter().any(|missing| parts.contains(missing))
    }

    /// Whether tensors may be missing, so that their memory looks as if it was in none.
    pub fn lacks_tensors(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::VARIABLES])
    }

    /// Whether names of tensors may be missing.
    pub fn lacks_names(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::MODULES, Self::VARIABLES, Self::FAR])
    }

    /// Whether the autograd graph, or the modules that it is told by, may be missing.
    pub fn lacks_graph(&self) -> bool {
        self.lacks(&[Self::OBJECTS, Self::TENSORS, Self::GRAPH, Self::MODULES])
    }

    /// What is said in place of what was not read.
    pub fn not_read(&self) -> String {
        format!("not read ({})", self.limit.short())
    }
}

/// What refers to the Python object of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorReferrers {
    /// `id()` of the object.
    pub object: u64,
    /// Its reference count, `None` when it is not tracked; negative when it is immortal.
    pub count: Option<i32>,
    /// The references that were found; C and C++ may hold more.
    pub referrers: Vec<Referrer>,
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrer {
    /// `id()` of the object that refers; `None` for a variable of a function that runs.
    pub at: Option<u64>,
    /// Its class.
    pub class: Arc<str>,
    /// How the program comes to it from a variable; `None` where no way was found.
    pub name: Option<String>,
    /// What follows for the tensor: `[0]`, `.inputs`.
    pub step: String,
}
