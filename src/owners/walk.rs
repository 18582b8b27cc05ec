//! The walk from Python's lists to a snapshot's rows.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::cpp_memory;
use super::error::OwnerError;
use super::far_paths;
use super::garbage::{self, CombinedReferences, Garbage};
use super::held_memory::HeldParts;
use super::names::{self, ObjectNames};
use super::paths::{self, PathSources};
use super::referrers;
use super::retained::{self, FigureSources, RetainedFigures};
use super::rows::TensorRows;
use super::tensor_source::TensorSource;
use crate::model::{
    AllocatorSnapshot, CountingObject, CppMemory, GarbageCycle, GraphNode, IncompleteSnapshot,
    LimitedQueue, Optimizer, PoolId, PoolUser, RootModule, StepCounterKind, TensorReferrers,
    TensorRow,
};
use crate::ownership::InUse;
use crate::python::{
    ClassKind, HeapListing, HeapObject, InterpreterReader, ObjectHeap, PyClass, ReferenceGraph,
};
use crate::target::{Addr, Memory as _, PageCache};
use crate::torch::{TensorDecoder, TensorReader, TensorTypes};

/// References per local variable, in the stop.
const MAX_LOCAL_REFERENCES: u32 = 256;

/// A busy job has some node outputs in transit; from this many on, something keeps them.
const MIN_RESULTS: usize = 16;

/// Parts of the memory that are kept for what comes after the list of objects, and after the graph:
/// names make rows useful.
const AFTER_OBJECTS: f64 = 0.7;
const AFTER_GRAPH: f64 = 0.35;

/// Bytes that show whether a tensor still exists: reference count, type, `TensorImpl`.
const SIZE_OF_TENSOR: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectRole {
    Tensor,
    Module,
    Optimizer,
    Deque,
    Counting(StepCounterKind),
    CudaGraph,
    MemPool,
    FsdpParameter,
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct RelevantObjects {
    pub(super) tensors: Vec<Addr>,
    pub(super) referred_once: FxHashSet<Addr>,
    pub(super) modules: Vec<Addr>,
    pub(super) optimizers: Vec<Addr>,
    /// Deques with a limit.
    pub(super) queues: Vec<Addr>,
    pub(super) counting: Vec<CountingObject>,
    pub(super) pool_users: Vec<Addr>,
    pub(super) graphs: FxHashSet<Addr>,
    pub(super) fsdp_parameters: Vec<Addr>,
}

#[derive(Clone, Copy)]
pub(super) struct WalkSources<'a> {
    pub(super) tensors: &'a TensorReader,
    pub(super) python: &'a InterpreterReader,
    pub(super) memory: &'a PageCache,
    pub(super) blocks: &'a [AllocatorSnapshot],
    pub(super) asked: Option<&'a str>,
    pub(super) figures: Figures,
}

/// What references would free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figures {
    /// Computing it takes longer than a stop may.
    Left,
    /// Only the pages that it takes are read.
    Pages,
    Computed,
}

#[derive(Debug, Default)]
pub(super) struct WalkResult {
    pub(super) tensors: Vec<TensorRow>,
    pub(super) nodes: Vec<GraphNode>,
    pub(super) referrers: Vec<TensorReferrers>,
    pub(super) counting: Vec<CountingObject>,
    pub(super) models: Vec<RootModule>,
    pub(super) optimizers: Vec<Optimizer>,
    pub(super) queues: Vec<LimitedQueue>,
    pub(super) garbage: Vec<GarbageCycle>,
    pub(super) pool_users: Vec<PoolUser>,
    pub(super) cpp: Vec<CppMemory>,
    pub(super) figures: RetainedFigures,
    /// Without those that only the figures need: they are worth no further stop.
    pub(super) torn_pages: TornPages,
    pub(super) objects: u64,
    pub(super) unreadable: u64,
    pub(super) misfits: u64,
    /// Tensors left out, as they changed while they were read.
    pub(super) torn_tensors: u64,
    /// Parts cut by a limit.
    pub(super) missing: Vec<&'static str>,
    /// Reference counts contradict the references, so garbage is not known.
    pub(super) counts_contradict: bool,
    /// Parts with bytes that changed while they were read.
    pub(super) torn: Vec<&'static str>,
}

/// How many pages were torn, and how many of these were read late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TornPages {
    pub(super) all: usize,
    pub(super) late: usize,
}

impl TornPages {
    pub(super) fn of(memory: &PageCache) -> TornPages {
        TornPages { all: memory.torn_pages(), late: memory.late_pages() }
    }

    fn add(&mut self, before: TornPages, after: TornPages) {
        self.all += after.all.saturating_sub(before.all);
        self.late += after.late.saturating_sub(before.late);
    }
}

struct LimitedParts<'a> {
    memory: &'a PageCache,
    refused: u64,
    missing: Vec<&'static str>,
    torn_reads: u64,
    torn: Vec<&'static str>,
    /// Reference counts and references do, so garbage is not known.
    contradict: bool,
}

impl LimitedParts<'_> {
    fn of(memory: &PageCache) -> LimitedParts<'_> {
        let (refused, torn_reads) = (memory.refused(), memory.torn_reads());
        let (missing, torn) = (Vec::new(), Vec::new());
        LimitedParts { memory, refused, missing, torn_reads, torn, contradict: false }
    }

    fn end(&mut self, part: &'static str) {
        let refused = self.memory.refused();
        if refused > self.refused {
            self.missing.push(part);
        }
        self.refused = refused;
        let torn_reads = self.memory.torn_reads();
        if torn_reads > self.torn_reads {
            self.torn.push(part);
        }
        self.torn_reads = torn_reads;
    }
}

impl WalkSources<'_> {
    /// Reads what a process has created since a walk, short enough for a stop. References of
    /// `known` objects come last, until `is_done`: they have hardly changed. Returns all objects.
    pub(super) fn read_newest(
        &self,
        known: &FxHashSet<Addr>,
        is_done: &dyn Fn() -> bool,
    ) -> Result<FxHashSet<Addr>, OwnerError> {
        let memory = self.memory;
        let head = self.python.object_head();
        let (heap, types, mut found) = self.objects(HeapListing::Newest)?;
        found.tensors.retain(|tensor| !known.contains(tensor));
        let (before, new): (Vec<_>, Vec<_>) =
            heap.objects().iter().partition(|object| known.contains(&object.at));
        for object in &new {
            heap.references(object, &mut |_, to| {
                // The collector does not track the items of an object array.
                if let Some(class) = heap.class_of(to).filter(|class| class.is_array()) {
                    let array = HeapObject { at: to, class, references: 0 };
                    heap.hidden_references(&array, &mut |_, item| _ = heap.class_of(item));
                }
            });
        }
        for local in heap.locals() {
            let Some(class) = heap.class_of(local.value) else { continue };
            let object = HeapObject { at: local.value, class, references: 0 };
            let mut left = MAX_LOCAL_REFERENCES;
            heap.references(&object, &mut |_, to| {
                left = left.saturating_sub(1);
                if left > 0 {
                    heap.class_of(to);
                }
            });
        }
        let tensors = self.tensors.tensors_as_before(memory, head, &found.tensors)?;
        let in_use = InUse::new(&[]);
        let source = TensorSource::new(&tensors, memory, &in_use, false);
        TensorRows::new(&heap, &source, types, &found).follow_graph();
        for object in before.iter().take_while(|_| !is_done()) {
            heap.references(object, &mut |_, to| _ = heap.class_of(to));
        }
        Ok(heap.objects().iter().map(|object| object.at).collect())
    }

    /// Walks over all objects; calls `read_all` after the last read.
    pub(super) fn walk(
        &self,
        listing: HeapListing,
        read_all: &mut dyn FnMut(),
    ) -> Result<WalkResult, OwnerError> {
        let memory = self.memory;
        let mut parts = LimitedParts::of(memory);
        memory.reserve(AFTER_OBJECTS);
        let (heap, types, found) = self.objects(listing)?;
        parts.end(IncompleteSnapshot::OBJECTS);
        memory.reserve(AFTER_GRAPH);
        let tensors = self.decoder(&found)?;
        let in_use = InUse::new(self.blocks);
        let source = TensorSource::new(&tensors, memory, &in_use, self.figures == Figures::Pages);
        let mut rows = TensorRows::new(&heap, &source, types, &found);
        parts.end(IncompleteSnapshot::TENSORS);
        rows.follow_graph();
        parts.end(IncompleteSnapshot::GRAPH);
        memory.reserve(0.0);
        let mut named = ObjectNames::default();
        names::modules(&heap, &found, &mut named);
        parts.end(IncompleteSnapshot::MODULES);
        let locals = heap.locals();
        let cpp = rows.cpp_references(&found);
        let sources = PathSources { heap: &heap, found: &found, locals: &locals, cpp: &cpp };
        let (graph, behind) = (OnceCell::new(), OnceCell::new());
        let search = NameSearch {
            sources,
            tensors: &tensors,
            memory,
            listing,
            in_use: &in_use,
            graph: &graph,
        };
        let garbage = search.names(&mut rows, &mut named, &mut parts);
        names::finish(&heap, &found, &mut named);
        parts.end("the state of optimizers");
        let pool_users = self.pool_users(&heap, &tensors, &found, &named);
        parts.end("CUDA graphs");
        let cpp = cpp_memory::find(&heap, self.tensors, &tensors, &found);
        parts.end("what C++ keeps");
        let wrapped = paths::parts(&heap, &rows.wrappers(), &found);
        named.own_parts(&wrapped);
        parts.end("what wrapper tensors wrap");
        if self.asked.is_none() {
            read_all();
        }
        let mut torn = TornPages::of(memory);
        // What was cut has no figures.
        let has_figures = self.figures != Figures::Left && memory.exceeded().is_none();
        let held = has_figures.then(|| {
            let graph = match graph.get() {
                Some(graph) => graph,
                // All that refers to a tensor is asked.
                None if self.asked.is_some() => graph.get_or_init(|| heap.reference_graph()),
                None => behind.get_or_init(|| retained::graph_behind(sources, &rows, &named)),
            };
            let held = CombinedReferences::new(graph, &tensors, &rows);
            HeldParts::read(graph, &held, &held.through_cpp(&found))
        });
        let (tensors, nodes) = rows.finish(&named, &garbage.tensors, &wrapped);
        let (mut referrers, mut asked) = (Vec::new(), Vec::new());
        if let Some(name) = self.asked {
            let before = TornPages::of(memory);
            asked = referrers::asked(name, &tensors);
            let objects = asked.iter().filter_map(|row| tensors[*row].object.map(Addr));
            referrers = referrers::find(sources, &objects.collect::<Vec<_>>());
            parts.end("referrers");
            torn.add(before, TornPages::of(memory));
            read_all();
        }
        let figures = held.map(|held| {
            let only_reads = self.figures == Figures::Pages;
            let known = FigureSources { sources, blocks: self.blocks, named: &named, only_reads };
            retained::find(known, held, (&tensors, &nodes), &asked)
        });
        Ok(WalkResult {
            tensors,
            nodes,
            referrers,
            queues: named.queues(&heap, &found),
            models: named.models,
            optimizers: named.optimizers,
            garbage: garbage.cycles,
            pool_users,
            cpp,
            figures: figures.filter(|_| memory.refused() == 0).unwrap_or_default(),
            torn_pages: torn,
            objects: heap.objects().len() as u64,
            unreadable: heap.unreadable(),
            misfits: source.misfits(),
            torn_tensors: source.torn(),
            missing: parts.missing,
            counts_contradict: parts.contradict,
            torn: parts.torn,
            counting: found.counting,
        })
    }

    fn decoder(&self, found: &RelevantObjects) -> Result<TensorDecoder<'_>, OwnerError> {
        let head = self.python.object_head();
        Ok(self.tensors.tensors(self.memory, head, &found.tensors)?)
    }

    fn objects(
        &self,
        listing: HeapListing,
    ) -> Result<(ObjectHeap<'_>, TensorTypes, RelevantObjects), OwnerError> {
        let heap = self.python.heap_listed(self.memory, listing)?;
        let types = self.tensors.types(self.memory, self.python.object_head())?;
        let types = types.ok_or(OwnerError::NoTorch)?;
        let found = find(&heap, types);
        Ok((heap, types, found))
    }

    fn pool_users(
        &self,
        heap: &ObjectHeap<'_>,
        tensors: &TensorDecoder<'_>,
        found: &RelevantObjects,
        named: &ObjectNames,
    ) -> Vec<PoolUser> {
        let segments = self.blocks.iter().flat_map(|map| &map.segments);
        let pools: BTreeSet<PoolId> = segments
            .map(|segment| segment.pool)
            .filter(|pool| *pool != PoolId::default())
            .collect();
        let pools: Vec<PoolId> = pools.into_iter().collect();
        let user = |object: &Addr| {
            let class = heap.class_of(*object)?.name.clone();
            let name = named.variables.get(object).cloned();
            let is_graph = found.graphs.contains(object);
            Some(PoolUser { class, name, pool: tensors.pool_of(*object, is_graph, &pools)? })
        };
        match pools.is_empty() {
            true => Vec::new(),
            false => found.pool_users.iter().filter_map(user).collect(),
        }
    }
}

/// Names tensors by the variables that lead to them.
struct NameSearch<'h, 'a> {
    sources: PathSources<'h, 'a>,
    tensors: &'h TensorDecoder<'h>,
    memory: &'h PageCache,
    listing: HeapListing,
    in_use: &'h InUse,
    graph: &'h OnceCell<ReferenceGraph<'h>>,
}

/// Tensors that no short path from a variable reaches.
struct UnnamedTensors {
    /// Of autograd nodes: a small one may keep a large graph.
    results: Vec<Addr>,
    /// Others, if worth a search.
    others: Vec<Addr>,
}

impl<'h> NameSearch<'h, '_> {
    fn names(
        &self,
        rows: &mut TensorRows<'_, '_>,
        named: &mut ObjectNames,
        parts: &mut LimitedParts<'_>,
    ) -> Garbage {
        let unnamed = self.near(rows, named);
        parts.end(IncompleteSnapshot::VARIABLES);
        rows.add_named(named);
        let garbage = self.far(rows, named, unnamed, parts);
        parts.end(IncompleteSnapshot::FAR);
        garbage
    }

    fn near(&self, rows: &TensorRows<'_, '_>, named: &mut ObjectNames) -> UnnamedTensors {
        let needs_name = |object: Addr| self.needs_name(rows, object);
        let unreached = paths::of_variables(self.sources, named, &needs_name);
        let (results, mut others): (Vec<Addr>, Vec<Addr>) =
            unreached.into_iter().partition(|object| rows.is_result(*object));
        others.retain(|object| needs_name(*object));
        UnnamedTensors { results, others }
    }

    fn needs_name(&self, rows: &TensorRows<'_, '_>, object: Addr) -> bool {
        // Autocast's copies of weights in C++ have no variable and no cycle.
        let is_of_cpp = || {
            self.sources.found.referred_once.contains(&object)
                && self.tensors.is_kept_by_cpp(object)
        };
        // Some were in transit between functions: no reason to search libraries.
        let is_gone = || {
            self.listing == HeapListing::Rough && self.memory.has_changed(object, SIZE_OF_TENSOR)
        };
        // The graph explains what it keeps.
        rows.needs_name(object, self.in_use) && !is_of_cpp() && !is_gone()
    }

    /// By long paths, or as garbage. This reads all objects: only if it may find garbage.
    fn far(
        &self,
        rows: &TensorRows<'_, '_>,
        named: &mut ObjectNames,
        UnnamedTensors { results, mut others }: UnnamedTensors,
        parts: &mut LimitedParts<'_>,
    ) -> Garbage {
        let PathSources { heap, found, .. } = self.sources;
        // A node may keep itself alive: its `ctx` has its output.
        let may_be_garbage = rows.may_be_garbage(&others, self.in_use)
            || rows.may_be_garbage(&named.by_nodes, self.in_use)
            || results.len() >= MIN_RESULTS;
        if !may_be_garbage {
            let may_be_next = rows.has_graph() || !found.optimizers.is_empty();
            if self.listing == HeapListing::Rough && may_be_next {
                // The next snapshot may need these pages.
                heap.reference_graph();
            }
            return Garbage::default();
        }
        let graph = self.graph.get_or_init(|| heap.reference_graph());
        let garbage = garbage::find(heap, graph, self.tensors, rows, found);
        parts.end(IncompleteSnapshot::GARBAGE);
        parts.contradict |= garbage.is_none();
        let garbage = garbage.unwrap_or_default();
        others.extend(results);
        far_paths::name(self.sources, named, (graph, &garbage.objects), &others);
        garbage
    }
}

fn find(heap: &ObjectHeap<'_>, types: TensorTypes) -> RelevantObjects {
    let mut roles: FxHashMap<Addr, ObjectRole> = FxHashMap::default();
    let mut found = RelevantObjects::default();
    for object in heap.objects() {
        let class = &object.class;
        let role = *roles.entry(class.at).or_insert_with(|| role(heap, class, types));
        match role {
            ObjectRole::Tensor => {
                found.tensors.push(object.at);
                if object.references == 1 {
                    found.referred_once.insert(object.at);
                }
            }
            ObjectRole::Module => found.modules.push(object.at),
            ObjectRole::Optimizer => found.optimizers.push(object.at),
            ObjectRole::Deque if heap.limit_of_deque(object.at).is_some() => {
                found.queues.push(object.at);
            }
            ObjectRole::Deque => {}
            ObjectRole::Counting(kind) => {
                found.counting.push(CountingObject { kind, object: object.at.0 });
            }
            ObjectRole::CudaGraph => {
                found.pool_users.push(object.at);
                found.graphs.insert(object.at);
            }
            ObjectRole::MemPool => found.pool_users.push(object.at),
            ObjectRole::FsdpParameter => found.fsdp_parameters.push(object.at),
            ObjectRole::Nothing => {}
        }
    }
    // Sorted: the first is always the same.
    found.counting.sort_unstable();
    found
}

fn role(heap: &ObjectHeap<'_>, class: &PyClass, types: TensorTypes) -> ObjectRole {
    if class.is_a(types.base) {
        return ObjectRole::Tensor;
    }
    if class.kind == ClassKind::Deque {
        return ObjectRole::Deque;
    }
    for (name, module, role) in [
        ("Module", "torch.nn.modules.module", ObjectRole::Module),
        ("Optimizer", "torch.optim.optimizer", ObjectRole::Optimizer),
        (
            "TrainerState",
            "transformers.trainer_callback",
            ObjectRole::Counting(StepCounterKind::Trainer),
        ),
        (
            "LRScheduler",
            "torch.optim.lr_scheduler",
            ObjectRole::Counting(StepCounterKind::Scheduler),
        ),
        ("CUDAGraph", "torch.cuda.graphs", ObjectRole::CudaGraph),
        ("MemPool", "torch.cuda.memory", ObjectRole::MemPool),
        ("FSDPParam", "torch.distributed.fsdp._fully_shard._fsdp_param", ObjectRole::FsdpParameter),
        (
            "_LRScheduler",
            "torch.optim.lr_scheduler",
            ObjectRole::Counting(StepCounterKind::Scheduler),
        ),
    ] {
        let is_base = |base: &Addr| {
            heap.class_at(*base).is_some_and(|base| {
                &*base.name == name && heap.module_of(&base).as_deref() == Some(module)
            })
        };
        if class.bases.iter().any(is_base) {
            return role;
        }
    }
    ObjectRole::Nothing
}
