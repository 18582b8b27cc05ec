//! What would come back if one reference went: of the references with the most memory behind them,
//! and of each step to the requested tensors.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::held_memory::{HeldMemory, HeldParts};
use super::name_lookup::{NameLookup, NamedReference};
use super::names::ObjectNames;
use super::paths::{self, PathSources};
use super::retention_graph::Removed;
use super::rows::TensorRows;
use super::session;
use crate::model::{
    AllocatorSnapshot, GraphNode, KeptWay, RetainedReference, TensorCategory, TensorDevice,
    TensorRow, WayStep,
};
use crate::ownership::{graph_roots, reference_of, references_in};
use crate::python::{ReferenceGraph, VariableHolder};
use crate::target::Addr;

/// Models and optimizers first, then those of the most bytes.
const MAX_REFERENCES: usize = 512;
const MAX_OF_MODELS: usize = 32;
/// References looked at, for all figures: some tenths of a second.
const ROOM: usize = 1 << 23;
const MAX_WAYS: usize = 8;

/// What the figures are made of besides the graph.
#[derive(Clone, Copy)]
pub(super) struct FigureSources<'h, 'a> {
    pub(super) sources: PathSources<'h, 'a>,
    pub(super) blocks: &'h [AllocatorSnapshot],
    pub(super) named: &'h ObjectNames,
    /// To find the pages that it takes.
    pub(super) only_reads: bool,
}

#[derive(Debug, Default)]
pub(super) struct RetainedFigures {
    pub(super) references: Vec<RetainedReference>,
    pub(super) ways: Vec<KeptWay>,
}

/// A name and what goes with it.
pub(super) struct AskedReference {
    pub(super) name: Arc<str>,
    pub(super) removed: Vec<Removed>,
}

/// The steps from a variable to a tensor.
struct AskedWay<'h> {
    row: &'h TensorRow,
    /// Names up to and with each step.
    steps: Vec<(Arc<str>, NamedReference)>,
}

pub(super) fn find(
    known: FigureSources<'_, '_>,
    parts: HeldParts<'_>,
    (rows, nodes): (&[TensorRow], &[GraphNode]),
    asked: &[usize],
) -> RetainedFigures {
    let lookup = NameLookup::new(known.sources, rows);
    let names = candidates(known.named, rows, nodes);
    let ways = ways(known.sources, &lookup, rows, asked);
    let named = named_references(&lookup, names, &ways);
    let mut on_ways: Vec<NamedReference> = named.values().cloned().collect();
    on_ways.extend(ways.iter().flat_map(|way| way.steps.iter().map(|(_, step)| step.clone())));
    if known.only_reads {
        parts.read_ways(known.sources.heap, &on_ways);
        return RetainedFigures::default();
    }
    let held = HeldMemory::new(known.sources.heap, parts, known.blocks, &on_ways);
    let mut asked: Vec<AskedReference> = named
        .into_iter()
        .filter_map(|(name, named)| Some(AskedReference { name, removed: held.removed(&named)? }))
        .collect();
    asked.extend(gradients(&held, known.named, rows));
    asked.extend(session::references(known.sources, &held, rows));
    asked.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let groups: Vec<FxHashSet<u32>> =
        ways.iter().map(|way| sharing(&held, rows, way.row)).collect();
    asked.extend(
        groups.iter().map(|group| AskedReference {
            name: Arc::from(""),
            removed: held.references_to(group),
        }),
    );
    let has_gpu = rows.iter().filter_map(|row| row.tensor.device).any(TensorDevice::is_cuda);
    let mut references = figures(&held, &asked, has_gpu);
    let all_names = references.split_off(references.len() - groups.len());
    let mut references: Vec<RetainedReference> = references.into_iter().flatten().collect();
    references.sort_by(|a, b| a.name.cmp(&b.name));
    let ways = ways.iter().zip(groups).zip(all_names);
    let ways = ways.map(|((way, group), all_names)| {
        let unknown: i64 = group.iter().map(|number| held.unknown_holders(*number)).sum();
        let step = |(name, step): &(Arc<str>, NamedReference)| WayStep {
            step: step.text.clone(),
            class: class_name(known.sources, step.to),
            holds: held.holds(step.to.0, has_gpu),
            retained: called(&references, name).cloned(),
        };
        KeptWay {
            tensor: way.row.tensor.at,
            steps: way.steps.iter().map(step).collect(),
            all_names,
            unknown_holders: unknown.unsigned_abs(),
        }
    });
    let ways = ways.collect();
    RetainedFigures { references, ways }
}

fn called<'r>(sorted: &'r [RetainedReference], name: &Arc<str>) -> Option<&'r RetainedReference> {
    let at = sorted.binary_search_by(|known| known.name.cmp(name)).ok()?;
    sorted.get(at)
}

/// References by name: candidates, and the steps of the ways.
fn named_references(
    lookup: &NameLookup<'_, '_>,
    names: Vec<Arc<str>>,
    ways: &[AskedWay<'_>],
) -> FxHashMap<Arc<str>, NamedReference> {
    let mut named: FxHashMap<Arc<str>, NamedReference> = FxHashMap::default();
    for name in names {
        if let Some(reference) = lookup.references(&name).and_then(|mut way| way.pop()) {
            named.insert(name, reference);
        }
    }
    for (name, step) in ways.iter().flat_map(|way| &way.steps) {
        named.entry(name.clone()).or_insert_with(|| step.clone());
    }
    named
}

/// References behind the program's variables, tensors and nodes.
pub(super) fn graph_behind<'h>(
    sources: PathSources<'h, '_>,
    rows: &TensorRows<'_, '_>,
    named: &ObjectNames,
) -> ReferenceGraph<'h> {
    let PathSources { heap, found, locals, cpp } = sources;
    let (own, others): (Vec<_>, Vec<_>) = heap
        .modules()
        .into_iter()
        .partition(|(name, dict)| paths::is_own_module(heap, name, *dict));
    let mut from: Vec<Addr> = own.into_iter().map(|(_, dict)| dict).collect();
    for local in locals {
        from.push(local.value);
        if let Some(VariableHolder::Cell(cell)) = heap.holder_of(local) {
            from.push(cell);
        }
    }
    from.extend(&found.tensors);
    from.extend(found.modules.iter().chain(&found.optimizers).chain(&found.pool_users));
    from.extend(found.tensors.iter().flat_map(|at| cpp.of_tensor(*at)).map(|(_, to)| *to));
    from.extend(cpp.of_nodes.iter().map(|(_, to)| *to));
    from.extend(rows.nodes().iter().flat_map(|node| node.packed.iter().copied()));
    from.extend(named.variables.keys());
    let ends: FxHashSet<Addr> = others.into_iter().map(|(_, dict)| dict).collect();
    heap.reference_graph_behind(&from, &ends)
}

/// In the order of `asked`; `None`: not known.
fn figures(
    held: &HeldMemory<'_, '_>,
    asked: &[AskedReference],
    has_gpu: bool,
) -> Vec<Option<RetainedReference>> {
    let graph = held.graph();
    let single = asked.iter().filter(|asked| !asked.name.is_empty());
    let all: Vec<Removed> = single.flat_map(|asked| asked.removed.iter().copied()).collect();
    let alive = graph.alive_without(&all);
    let mut room = ROOM;
    let figure = |AskedReference { name, removed }: &AskedReference| {
        let all_of_one;
        let alive = match name.is_empty() {
            false => &alive,
            // These may be many more references.
            true => {
                all_of_one = graph.alive_without(removed);
                &all_of_one
            }
        };
        let (mut frees, is_least) = held.bytes(&graph.freed(removed, alive, &mut room)?);
        // What the host gets back is not asked where there are GPUs.
        frees.retain(|freed| freed.device.is_cuda() || !has_gpu);
        Some(RetainedReference { name: name.clone(), frees, is_least })
    };
    asked.iter().map(figure).collect()
}

/// References that may free much.
fn candidates(named: &ObjectNames, rows: &[TensorRow], nodes: &[GraphNode]) -> Vec<Arc<str>> {
    let models = named.models.iter().map(|model| &model.name);
    let optimizers = named.optimizers.iter().filter_map(|optimizer| optimizer.variable.as_ref());
    let mut found: Vec<Arc<str>> = Vec::new();
    for name in models.take(MAX_OF_MODELS).chain(optimizers.take(MAX_OF_MODELS)) {
        found.push(name.clone());
        found.extend(reference_of(name).map(Arc::from));
        found.extend(references_in(name).into_iter().map(Arc::from));
    }
    let roots = graph_roots(rows, nodes);
    let mut bytes: FxHashMap<&str, u64> = FxHashMap::default();
    for row in rows {
        let Some(storage) = row.tensor.storage.filter(|storage| storage.memory() > 0) else {
            continue;
        };
        let saved = row.saved.iter().filter(|_| row.category == TensorCategory::Saved);
        let roots = saved.filter_map(|saved| roots.get(saved.node).copied().flatten());
        let root = roots.min().and_then(|root| rows[root].names.first());
        for name in row.names.iter().chain(root) {
            for reference in references_in(name) {
                *bytes.entry(reference).or_default() += storage.memory();
            }
        }
    }
    let mut by_bytes: Vec<(&str, u64)> = bytes.into_iter().collect();
    by_bytes
        .sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.len().cmp(&b.0.len())).then(a.0.cmp(b.0)));
    found.extend(by_bytes.into_iter().map(|(name, _)| Arc::from(name)).take(MAX_REFERENCES));
    let mut seen: FxHashSet<Arc<str>> = FxHashSet::default();
    found.retain(|name| seen.insert(name.clone()));
    found.truncate(MAX_REFERENCES);
    found
}

/// `zero_grad()` of each model.
fn gradients(
    held: &HeldMemory<'_, '_>,
    named: &ObjectNames,
    rows: &[TensorRow],
) -> Vec<AskedReference> {
    let by_object: FxHashMap<u64, &TensorRow> =
        rows.iter().filter_map(|row| Some((row.object?, row))).collect();
    let of_model = |model: &crate::model::RootModule| {
        let parameters: FxHashSet<u64> =
            model.modules.iter().flat_map(|module| module.parameters.iter().copied()).collect();
        let removed = parameters.iter().filter_map(|parameter| {
            let row = by_object.get(parameter)?;
            let from = held.number_of(row.tensor.at)?;
            Some(Removed { from: Some(from), to: held.number_of(row.tensor.grad?)? })
        });
        let removed: Vec<Removed> = removed.collect();
        let name = RetainedReference::of_gradients(&model.name).into();
        (!removed.is_empty()).then_some(AskedReference { name, removed })
    };
    named.models.iter().take(MAX_OF_MODELS).filter_map(of_model).collect()
}

fn ways<'r>(
    sources: PathSources<'_, '_>,
    lookup: &NameLookup<'_, '_>,
    rows: &'r [TensorRow],
    asked: &[usize],
) -> Vec<AskedWay<'r>> {
    let mut found = Vec::new();
    for row in asked.iter().take(MAX_WAYS).map(|row| &rows[*row]) {
        let at = Addr(row.object.unwrap_or(row.tensor.at));
        let way = |name: &str| {
            let steps = lookup.references(name);
            Some(named_steps(steps.filter(|way| way.last().is_some_and(|it| it.to == at))?))
        };
        let mut steps = row.names.iter().find_map(|name| way(name));
        if steps.is_none() {
            // Parameters are named by their modules.
            let by_path = paths::to_objects(sources, FxHashSet::from_iter([at]));
            steps = by_path.get(&at).and_then(|name| way(name));
        }
        // A cache's results are all called alike: the way to the cache is clear.
        let clear = || Some(named_steps(lookup.clear_part(row.names.first()?)));
        let steps = steps.or_else(clear).filter(|steps| !steps.is_empty());
        found.extend(steps.map(|steps| AskedWay { row, steps }));
    }
    found
}

/// Each with the name up to it.
fn named_steps(steps: Vec<NamedReference>) -> Vec<(Arc<str>, NamedReference)> {
    let mut so_far = String::new();
    let named = |step: NamedReference| {
        so_far.push_str(&step.text);
        (Arc::from(&*so_far), step)
    };
    steps.into_iter().map(named).collect()
}

/// Tensors on the same memory.
pub(super) fn sharing(
    held: &HeldMemory<'_, '_>,
    rows: &[TensorRow],
    of: &TensorRow,
) -> FxHashSet<u32> {
    let data = |row: &TensorRow| Some((row.tensor.device?, row.tensor.storage?.data));
    let shares = |row: &&TensorRow| row.tensor.at == of.tensor.at || data(row) == data(of);
    rows.iter().filter(shares).filter_map(|row| held.number_of(row.tensor.at)).collect()
}

fn class_name(sources: PathSources<'_, '_>, at: Addr) -> Arc<str> {
    sources.heap.class_of(at).map_or_else(|| "Tensor".into(), |class| class.name.clone())
}
