//! Everything that holds memory, with counts: Python's objects, tensors, autograd nodes, storages,
//! and the blocks that come back when all storages in them go.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::garbage::CombinedReferences;
use super::name_lookup::{NamedPlace, NamedReference};
use super::retention_graph::{FreedObjects, ReferenceSide, Removed, RetentionGraph};
use super::untracked_objects::{LRU_CACHE, add_untracked};
use crate::model::{AllocatorSnapshot, BlockState, FreedBytes, SavedIn, TensorDevice, TensorInfo};
use crate::python::{ClassKind, HeapObject, ObjectHeap, ReferenceGraph, VariableHolder};
use crate::target::Addr;

/// From an object over its dictionary (of dictionaries: `threading.local`).
const MAX_DEPTH_OF_DICTS: usize = 3;
const MAX_IN_DICTS: usize = 4096;
const MAX_STEPS_TO_MEMORY: usize = 256;
/// Objects behind a step of a way.
const MAX_BEHIND: usize = 1 << 20;
/// Objects that go, of which it is asked whether they may hold more.
const MAX_OPAQUE: usize = 1 << 14;

/// Bytes that come back when all of these storages go.
#[derive(Debug)]
struct MemoryPlace {
    device: TensorDevice,
    bytes: u64,
    storages: Vec<u32>,
}

pub(super) struct HeldMemory<'h, 'a> {
    heap: &'h ObjectHeap<'a>,
    references: &'h ReferenceGraph<'h>,
    graph: RetentionGraph,
    /// Of what is no tracked object: untracked ones, `TensorImpl`s, nodes, storages.
    numbers: FxHashMap<u64, u32>,
    places: Vec<MemoryPlace>,
    place_of: FxHashMap<u32, u32>,
    /// Tensors and functions of autograd: their C++ parts are known.
    known_parts: FxHashSet<u32>,
    /// References that variables of running functions have.
    locals: FxHashMap<u32, i64>,
    /// What they refer to is not known, or not wholly: they changed while they were read.
    torn: FxHashSet<u32>,
    /// A tensor or storage has a reference of no known object.
    held_by_unknown: bool,
}

/// Objects and references so far.
pub(super) struct GraphBuilder {
    objects: Vec<(Option<i64>, bool)>,
    pub(super) edges: Vec<(u32, u32, ReferenceSide)>,
    pub(super) numbers: FxHashMap<u64, u32>,
}

impl GraphBuilder {
    pub(super) fn add(&mut self, key: u64, count: impl FnOnce() -> Option<i64>) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.objects.len() as u32;
        self.objects.push((count(), false));
        self.numbers.insert(key, number);
        number
    }

    /// Returns whether `to` is known.
    fn cpp(&mut self, from: u32, to: u64) -> bool {
        let to = self.numbers.get(&to).copied();
        self.edges.extend(to.map(|to| (from, to, ReferenceSide::Cpp)));
        to.is_some()
    }
}

/// What [`HeldMemory`] is made of, read before the rows get their names.
pub(super) struct HeldParts<'g> {
    references: &'g ReferenceGraph<'g>,
    builder: GraphBuilder,
    known_parts: FxHashSet<u32>,
    torn: FxHashSet<u32>,
    storages: Vec<StorageNumber>,
}

impl<'g> HeldParts<'g> {
    /// Reads counts, and references of C++.
    pub(super) fn read(
        references: &'g ReferenceGraph<'g>,
        held: &CombinedReferences<'_>,
        through_cpp: &[(Addr, Addr)],
    ) -> HeldParts<'g> {
        let tracked = references.objects();
        let mut builder = GraphBuilder {
            objects: Vec::with_capacity(tracked.len()),
            edges: Vec::new(),
            numbers: FxHashMap::default(),
        };
        let mut torn = FxHashSet::default();
        for number in 0..tracked.len() as u32 {
            builder.objects.push((references.count(number), true));
            // What may be of another moment explains no count.
            if references.is_torn(number) {
                torn.insert(number);
            } else {
                let to = references.references_of(number).iter();
                builder.edges.extend(to.map(|to| (number, *to, ReferenceSide::Python)));
            }
        }
        let mut known_parts = FxHashSet::default();
        let known = (&mut known_parts, &mut torn);
        let storages = add_tensors((references, held), &mut builder, known);
        for (from, to) in through_cpp {
            let is_hooks = held.hooks_of(*from).contains(to);
            if let (Some(from), Some(to)) = (references.number_of(*from), references.number_of(*to))
            {
                let side = if is_hooks { ReferenceSide::Python } else { ReferenceSide::Followed };
                builder.edges.push((from, to, side));
            }
        }
        HeldParts { references, builder, known_parts, torn, storages }
    }
}

impl HeldParts<'_> {
    /// Reads what [`HeldMemory::new`] would, and computes nothing.
    pub(super) fn read_ways(mut self, heap: &ObjectHeap<'_>, on_ways: &[NamedReference]) {
        add_untracked(heap, self.references, &mut self.builder, on_ways);
        heap.locals().iter().for_each(|local| _ = heap.holder_of(local));
    }
}

impl<'h, 'a> HeldMemory<'h, 'a> {
    /// `on_ways`: what names pass through.
    pub(super) fn new(
        heap: &'h ObjectHeap<'a>,
        HeldParts { references, mut builder, known_parts, torn, storages }: HeldParts<'h>,
        blocks: &[AllocatorSnapshot],
        on_ways: &[NamedReference],
    ) -> HeldMemory<'h, 'a> {
        add_untracked(heap, references, &mut builder, on_ways);
        let GraphBuilder { objects, edges, numbers } = builder;
        let graph = RetentionGraph::new(objects, edges);
        let locals = local_counts(heap, references, &numbers);
        let places = memory_places(&storages, blocks);
        let place_of = (0u32..)
            .zip(&places)
            .flat_map(|(place, it)| it.storages.iter().map(move |storage| (*storage, place)));
        let mut held = HeldMemory {
            heap,
            references,
            graph,
            numbers,
            place_of: place_of.collect(),
            places,
            known_parts,
            locals,
            torn,
            held_by_unknown: false,
        };
        let in_memory = storages.iter().map(|storage| storage.number);
        let mut all = in_memory.chain(held.known_parts.iter().copied());
        held.held_by_unknown = all.any(|number| held.unknown_holders(number) > 0);
        held
    }

    /// References of no known object and no variable.
    pub(super) fn unknown_holders(&self, number: u32) -> i64 {
        let locals = self.locals.get(&number).copied().unwrap_or_default();
        (self.graph.unexplained(number) - locals).max(0)
    }

    /// Bytes of the storages that an object leads to, but not over modules and classes.
    pub(super) fn holds(&self, key: u64, has_gpu: bool) -> u64 {
        let Some(first) = self.number_of(key) else { return 0 };
        let modules = self.heap.modules().into_iter();
        let mut seen: FxHashSet<u32> =
            modules.filter_map(|(_, dict)| self.references.number_of(dict)).collect();
        let mut waiting = vec![first];
        let mut places: FxHashSet<u32> = FxHashSet::default();
        while let Some(number) = waiting.pop() {
            let class = self.tracked().get(number as usize).map(|object| object.class.kind);
            let leads_away = matches!(class, Some(ClassKind::Module | ClassKind::Type));
            if !leads_away && seen.len() < MAX_BEHIND && seen.insert(number) {
                places.extend(self.place_of.get(&number));
                waiting.extend(self.graph.counted(number));
            }
        }
        let places = places.into_iter().map(|place| &self.places[place as usize]);
        places.filter(|it| it.device.is_cuda() || !has_gpu).map(|it| it.bytes).sum()
    }

    /// All known references to these, except from one to another.
    pub(super) fn references_to(&self, objects: &FxHashSet<u32>) -> Vec<Removed> {
        let mut found: Vec<Removed> = Vec::new();
        for from in self.graph.numbers().filter(|from| !objects.contains(from)) {
            let to = self.graph.counted(from).iter().filter(|to| objects.contains(to));
            found.extend(to.map(|to| Removed { from: Some(from), to: *to }));
        }
        for &to in objects {
            let most = self.locals.get(&to).copied().unwrap_or_default();
            let locals = most.min(self.graph.unexplained(to)).max(0) as usize;
            found.extend(std::iter::repeat_n(Removed { from: None, to }, locals));
        }
        found
    }

    pub(super) fn graph(&self) -> &RetentionGraph {
        &self.graph
    }

    /// Of a Python object or a `TensorImpl`.
    pub(super) fn number_of(&self, key: u64) -> Option<u32> {
        self.references.number_of(Addr(key)).or_else(|| self.numbers.get(&key).copied())
    }

    /// The counted references of a name's step; `None` if one is not found, or it is not known what
    /// is behind it.
    pub(super) fn removed(&self, named: &NamedReference) -> Option<Vec<Removed>> {
        let to = self.number_of(named.to.0)?;
        let is_tracked = (to as usize) < self.tracked().len();
        if is_tracked && !self.references.is_scanned(to) {
            return None;
        }
        let from = match named.place {
            NamedPlace::Frame(frame) => self.references.number_of(frame),
            NamedPlace::Tensor(tensor) => Some(self.number_of(tensor)?),
            NamedPlace::Torn => return None,
            NamedPlace::In(holder) => {
                let holder = self.number_of(holder.0)?;
                // Of a library's module nothing else is known.
                let is_module = self.is_dict(holder) && !self.references.is_scanned(holder);
                if is_module { None } else { Some(self.holder(holder, to)?) }
            }
        };
        if from.is_some_and(|from| !self.graph.counted(from).contains(&to)) {
            return None;
        }
        let mut removed = vec![Removed { from, to }];
        if let Some(cache) = from.filter(|from| self.is_cache(*from)) {
            // `cache_clear()`.
            let all = self.graph.counted(cache).iter();
            let results = all.filter(|it| **it != to && **it as usize >= self.tracked().len());
            removed.extend(results.map(|it| Removed { from, to: *it }));
        }
        Some(removed)
    }

    fn tracked(&self) -> &[HeapObject] {
        self.references.objects()
    }

    fn is_cache(&self, number: u32) -> bool {
        let object = self.tracked().get(number as usize);
        object.is_some_and(|object| &*object.class.name == LRU_CACHE)
    }

    /// The object, or its dictionary, that refers to `to`.
    fn holder(&self, from: u32, to: u32) -> Option<u32> {
        let mut level = vec![from];
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        for _ in 0..MAX_DEPTH_OF_DICTS {
            if let Some(holder) = level.iter().find(|it| self.graph.counted(**it).contains(&to)) {
                return Some(*holder);
            }
            let further = level.iter().flat_map(|it| self.graph.counted(*it)).copied();
            let further: Vec<u32> = further.filter(|it| self.is_dict(*it)).collect();
            level = further.into_iter().filter(|it| seen.insert(*it)).collect();
            if seen.len() > MAX_IN_DICTS {
                return None;
            }
        }
        None
    }

    fn is_dict(&self, number: u32) -> bool {
        let object = self.tracked().get(number as usize);
        object.is_some_and(|object| object.class.kind == ClassKind::Dict)
    }

    /// Bytes by device, and whether they may be more.
    pub(super) fn bytes(&self, freed: &FreedObjects) -> (Vec<FreedBytes>, bool) {
        let at_once: FxHashSet<u32> = freed.at_once.iter().copied().collect();
        let later: FxHashSet<u32> = freed.after_collect.iter().copied().collect();
        let mut by_device: BTreeMap<TensorDevice, FreedBytes> = BTreeMap::new();
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        for object in freed.at_once.iter().chain(&freed.after_collect) {
            let Some(&place) = self.place_of.get(object).filter(|place| seen.insert(**place))
            else {
                continue;
            };
            let MemoryPlace { device, bytes, storages } = &self.places[place as usize];
            let mut sum = by_device.get(device).copied().unwrap_or(FreedBytes {
                device: *device,
                at_once: 0,
                after_collect: 0,
            });
            if storages.iter().all(|storage| at_once.contains(storage)) {
                sum.at_once += bytes;
            } else if storages.iter().all(|s| at_once.contains(s) || later.contains(s)) {
                sum.after_collect += bytes;
            }
            by_device.insert(*device, sum);
        }
        let all = freed.at_once.iter().chain(&freed.after_collect);
        let mut asked = all.take(MAX_OPAQUE);
        let is_least = freed.stays.iter().take(MAX_OPAQUE).any(|stays| self.is_by_unknown(*stays))
            || self.held_by_unknown && asked.any(|number| self.is_opaque(*number));
        let mut all = freed.at_once.iter().chain(&freed.after_collect);
        let is_least = is_least || all.any(|object| self.torn.contains(object));
        let has_memory = |freed: &FreedBytes| freed.at_once + freed.after_collect > 0;
        (by_device.into_values().filter(has_memory).collect(), is_least)
    }

    /// Whether only unknown references are left of something that holds memory: they may be of what
    /// goes.
    fn is_by_unknown(&self, (number, left): (u32, i64)) -> bool {
        if left > self.unknown_holders(number) {
            return false;
        }
        self.leads_to_memory(number)
    }

    /// Within some steps, not over modules and classes.
    fn leads_to_memory(&self, first: u32) -> bool {
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        let mut waiting = vec![first];
        while let Some(number) = waiting.pop() {
            let class = self.tracked().get(number as usize).map(|object| object.class.kind);
            let leads_away =
                matches!(class, Some(ClassKind::Module | ClassKind::Type | ClassKind::Function));
            if leads_away || seen.len() >= MAX_STEPS_TO_MEMORY || !seen.insert(number) {
                continue;
            }
            if self.place_of.contains_key(&number) {
                return true;
            }
            waiting.extend(self.graph.counted(number));
        }
        false
    }

    /// Whether it, or an untracked object of it, may hold what is not known.
    fn is_opaque(&self, number: u32) -> bool {
        let Some(object) = self.tracked().get(number as usize) else { return false };
        if self.known_parts.contains(&number) {
            return false;
        }
        let mut is_opaque = self.heap.is_opaque(&object.class);
        self.heap.owned(object, &mut |to| {
            let is_unknown = !is_opaque && self.number_of(to.0).is_none();
            is_opaque |= is_unknown && self.heap.is_untracked_holder(to);
        });
        is_opaque
    }
}

/// References that variables of running functions have.
fn local_counts(
    heap: &ObjectHeap<'_>,
    references: &ReferenceGraph<'_>,
    numbers: &FxHashMap<u64, u32>,
) -> FxHashMap<u32, i64> {
    let mut counts = FxHashMap::default();
    for local in heap.locals().into_iter().filter(|local| !local.is_torn) {
        let number = references.number_of(local.value);
        if let Some(number) = number.or_else(|| numbers.get(&local.value.0).copied()) {
            let is_counted = matches!(heap.holder_of(&local), Some(VariableHolder::Frame(_)));
            *counts.entry(number).or_insert(0) += i64::from(is_counted);
        }
    }
    counts
}

struct StorageNumber {
    number: u32,
    device: TensorDevice,
    data: u64,
    bytes: u64,
}

/// Adds tensors, nodes and storages; returns the storages.
fn add_tensors(
    (references, held): (&ReferenceGraph<'_>, &CombinedReferences<'_>),
    builder: &mut GraphBuilder,
    (known_parts, torn): (&mut FxHashSet<u32>, &mut FxHashSet<u32>),
) -> Vec<StorageNumber> {
    let number_of = |object: u64| references.number_of(Addr(object));
    // Numbers first: edges lead back and forth.
    for row in held.rows() {
        let at = row.tensor.at;
        match row.object.and_then(number_of) {
            Some(number) => {
                builder.numbers.insert(at, number);
                builder.objects[number as usize].0 = held.references(at);
                known_parts.insert(number);
            }
            None => {
                let number = builder.add(at, || held.references(at));
                known_parts.insert(number);
            }
        }
    }
    for node in held.nodes() {
        builder.add(node.at.0, || held.references(node.at.0));
    }
    let mut storages: Vec<StorageNumber> = Vec::new();
    let mut bases: Vec<(u32, Addr)> = Vec::new();
    for row in held.rows() {
        let Some(&from) = builder.numbers.get(&row.tensor.at) else { continue };
        let tensor = &row.tensor;
        if held.is_torn(tensor.at) {
            torn.insert(from);
            continue;
        }
        let kept = tensor.grad.into_iter().chain(tensor.parts.iter().copied());
        kept.for_each(|to| _ = builder.cpp(from, to));
        bases.extend(held.bases_of(Addr(tensor.at)).into_iter().map(|base| (from, base)));
        // Its graph is newer than the nodes that were read.
        torn.extend(tensor.grad_fn.filter(|to| !builder.cpp(from, *to)).map(|_| from));
        // A leaf's `AutogradMeta` has its hooks once more; other tensors' nodes have them.
        if let Some(object) = row.object.filter(|_| tensor.grad_fn.is_none()) {
            for hooks in held.hooks_of(Addr(object)).into_iter().filter_map(|at| number_of(at.0)) {
                builder.edges.push((from, hooks, ReferenceSide::Cpp));
            }
        }
        add_storage(held, builder, &mut storages, (from, tensor));
    }
    known_parts.extend(add_bases(held, builder, &mut storages, bases));
    for node in held.nodes() {
        let Some(&from) = builder.numbers.get(&node.at.0) else { continue };
        if node.is_torn {
            torn.insert(from);
            continue;
        }
        let nodes = node.kept.iter().chain(&node.variable);
        nodes.for_each(|to| _ = builder.cpp(from, to.0));
        torn.extend(node.next.iter().filter(|to| !builder.cpp(from, to.0)).map(|_| from));
        let function = node.function.and_then(|function| number_of(function.0));
        known_parts.extend(function);
        let objects = node.packed.iter().chain(&node.function).chain(&node.hooks);
        for to in objects.filter_map(|object| number_of(object.0)) {
            builder.edges.push((from, to, ReferenceSide::Cpp));
        }
        for saved in &node.saved {
            // A function written in Python saves in its own object.
            let by = function.filter(|_| saved.by == SavedIn::Function).unwrap_or(from);
            builder.cpp(by, saved.tensor.0);
        }
    }
    storages
}

fn add_storage(
    held: &CombinedReferences<'_>,
    builder: &mut GraphBuilder,
    storages: &mut Vec<StorageNumber>,
    (from, tensor): (u32, &TensorInfo),
) {
    let (Some(storage), Some(device)) = (tensor.storage, tensor.device) else { return };
    let is_new = !builder.numbers.contains_key(&storage.at);
    let number = builder.add(storage.at, || held.counts_of_storage(Addr(storage.at)));
    if is_new && storage.memory() > 0 {
        let (data, bytes) = (storage.data, storage.memory());
        storages.push(StorageNumber { number, device, data, bytes });
    }
    builder.edges.push((from, number, ReferenceSide::Cpp));
}

/// Tensors that only their views keep: what `Linear` with a bias returns is a view of its sum.
fn add_bases(
    held: &CombinedReferences<'_>,
    builder: &mut GraphBuilder,
    storages: &mut Vec<StorageNumber>,
    mut bases: Vec<(u32, Addr)>,
) -> Vec<u32> {
    let mut added = Vec::new();
    while let Some((view, base)) = bases.pop() {
        if builder.cpp(view, base.0) {
            continue;
        }
        let Some((tensor, count)) = held.other_tensor(base) else { continue };
        let number = builder.add(base.0, || Some(count));
        added.push(number);
        builder.edges.push((view, number, ReferenceSide::Cpp));
        let kept = tensor.grad.into_iter().chain(tensor.grad_fn);
        kept.for_each(|to| _ = builder.cpp(number, to));
        add_storage(held, builder, storages, (number, &tensor));
        bases.extend(held.bases_of(base).into_iter().map(|further| (number, further)));
    }
    added
}

fn memory_places(storages: &[StorageNumber], blocks: &[AllocatorSnapshot]) -> Vec<MemoryPlace> {
    let mut by_device: BTreeMap<TensorDevice, BTreeMap<u64, (u64, BlockState)>> = BTreeMap::new();
    for map in blocks {
        let device = TensorDevice { kind: 1, index: u8::try_from(map.device.0).ok() };
        let all = map.segments.iter().flat_map(|segment| &segment.blocks);
        let all = all.map(|block| (block.address, (block.size, block.state)));
        by_device.insert(device, all.collect());
    }
    let mut places: BTreeMap<(TensorDevice, u64), MemoryPlace> = BTreeMap::new();
    for StorageNumber { number, device, data, bytes } in storages {
        let (at, bytes) = match by_device.get(device) {
            None => (*data, *bytes),
            Some(blocks) => match blocks.range(..=data).next_back() {
                Some((at, (size, BlockState::Allocated))) if *data < at + size => (*at, *size),
                // Not the allocator's, or free to its counters.
                _ => (*data, 0),
            },
        };
        let place = places.entry((*device, at));
        let place =
            place.or_insert(MemoryPlace { device: *device, bytes: 0, storages: Vec::new() });
        place.bytes = place.bytes.max(bytes);
        place.storages.push(*number);
    }
    places.into_values().collect()
}
