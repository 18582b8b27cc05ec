//! The rules, with their thresholds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::{CacheFacts, Finding, FindingFacts, GpuFacts, HoldingCycle, ReservedIn};
use crate::analysis::blocks::{FreeBlocks, IdleStreams, PrivatePool, private_pools};
use crate::analysis::owners::OwnerKind;
use crate::model::{Optimizer, OwnershipSnapshot, RootModule, TensorCategory, TensorRow};
use crate::ownership::{breakdown, held_storages, is_garbage, owner_label};

const MIB: u64 = 1 << 20;
/// Least bytes of most findings.
const MIN_BYTES: u64 = MIB;
const MIN_GROWTH_A_MINUTE: f64 = MIB as f64;
/// Least free cache, and its least fraction of reserved memory.
const MIN_CACHED: u64 = 128 * MIB;
const MIN_CACHED_PART: u64 = 5;
const MIN_POOLS: u64 = 32 * MIB;
/// Fragmented if the largest free block is at most this fraction.
const MAX_PIECE_PART: u64 = 4;
/// One stream to copy and one to compute are usual.
const MIN_STREAMS: u64 = 3;
/// A context with kernels takes 0.4 to 1 GiB, NCCL 0.5 GiB more.
const USUAL_OUTSIDE: u64 = 2 << 30;
/// Others count from a twentieth of the device.
const MIN_OTHERS_PART: u64 = 20;

pub(super) fn grows(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let fast = facts.growth.iter().filter(|g| g.rise.rate() * 60.0 >= MIN_GROWTH_A_MINUTE);
    fast.map(|growth| Finding::Grows { growth: growth.clone() }).collect()
}

/// Two or more results of one container with their graphs.
pub(super) fn graphs_kept(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let kept = facts.groups.iter().filter(|group| {
        group.kind == OwnerKind::Graph && group.members >= 2 && group.size.bytes >= MIN_BYTES
    });
    kept.map(|group| Finding::GraphsKept { group: group.clone() }).collect()
}

pub(super) fn garbage(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let (mut bytes, mut storages) = (0, 0);
    for (device, sums) in breakdown(snapshot) {
        if device.is_cuda() {
            bytes += sums.garbage.bytes;
            storages += sums.garbage.storages;
        }
    }
    if bytes < MIN_BYTES {
        return Vec::new();
    }
    vec![Finding::Garbage { bytes, storages, cycles: holding_cycles(snapshot) }]
}

fn holding_cycles(snapshot: &OwnershipSnapshot) -> Vec<HoldingCycle> {
    let mut kinds: FxHashMap<u64, usize> = FxHashMap::default();
    for (kind, cycle) in snapshot.garbage.iter().enumerate() {
        kinds.extend(cycle.tensors.iter().map(|tensor| (*tensor, kind)));
    }
    let mut held = vec![0; snapshot.garbage.len()];
    for (group, bytes) in held_storages(snapshot) {
        let mut tensors = group.tensors.iter().map(|&row| snapshot.tensors[row].tensor.at);
        let kind = tensors.find_map(|tensor| kinds.get(&tensor).copied());
        if let Some(kind) = kind.filter(|_| group.device.is_cuda() && is_garbage(snapshot, &group))
        {
            held[kind] += bytes;
        }
    }
    let holding = snapshot.garbage.iter().zip(held).filter(|(_, bytes)| *bytes > 0);
    let mut cycles: Vec<HoldingCycle> = holding
        .map(|(cycle, bytes)| HoldingCycle {
            class: cycle.class.to_string(),
            way: cycle.way.clone(),
            cycles: cycle.cycles,
            bytes,
        })
        .collect();
    cycles.sort_by_key(|cycle| Reverse(cycle.bytes));
    cycles
}

pub(super) fn graph_pools(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let pools: Vec<PrivatePool> =
        private_pools(snapshot).into_iter().filter(PrivatePool::is_of_graphs).collect();
    let bytes: u64 = pools.iter().map(|pool| pool.sums.bytes).sum();
    (bytes >= MIN_POOLS).then_some(Finding::GraphPools { pools }).into_iter().collect()
}

/// (Storage number, bytes on GPUs) by object.
fn bytes_of(snapshot: &OwnershipSnapshot) -> FxHashMap<u64, (u64, u64)> {
    let mut bytes = FxHashMap::default();
    for (number, (group, held)) in (0..).zip(held_storages(snapshot)) {
        if group.device.is_cuda() {
            let objects = group.tensors.iter().filter_map(|&row| snapshot.tensors[row].object);
            bytes.extend(objects.map(|object| (object, (number, held))));
        }
    }
    bytes
}

fn sum(objects: &[u64], bytes: &FxHashMap<u64, (u64, u64)>) -> u64 {
    let storages: BTreeMap<u64, u64> =
        objects.iter().filter_map(|object| bytes.get(object)).copied().collect();
    storages.values().sum()
}

/// Two for the same parameters: the old one is still live.
pub(super) fn optimizers_twice(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let bytes = bytes_of(snapshot);
    let mut by_parameter: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, optimizer) in snapshot.optimizers.iter().enumerate() {
        for parameter in &optimizer.parameters {
            by_parameter.entry(*parameter).or_default().push(index);
        }
    }
    let together: BTreeSet<Vec<usize>> =
        by_parameter.into_values().filter(|optimizers| optimizers.len() > 1).collect();
    let name = |optimizer: &Optimizer| {
        optimizer.variable.as_deref().unwrap_or(&optimizer.class).to_owned()
    };
    let found = together.into_iter().filter_map(|optimizers| {
        let mut sizes: Vec<(u64, String)> = optimizers
            .into_iter()
            .map(|index| &snapshot.optimizers[index])
            .map(|optimizer| (sum(&optimizer.state, &bytes), name(optimizer)))
            .collect();
        sizes.sort_by_key(|(size, _)| Reverse(*size));
        let more = sizes.iter().skip(1).map(|(size, _)| size).sum();
        let names = sizes.into_iter().map(|(_, name)| name).collect();
        (more >= MIN_BYTES).then_some(Finding::OptimizersTwice { names, bytes: more })
    });
    found.collect()
}

pub(super) fn models_twice(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let bytes = bytes_of(snapshot);
    let mut alike: BTreeMap<Vec<(&str, &str)>, Vec<&RootModule>> = BTreeMap::new();
    for model in snapshot.models.iter().filter(|model| model.modules.len() > 1) {
        let shape = model.modules.iter().map(|module| (module.path.as_str(), &*module.class));
        alike.entry(shape.collect()).or_default().push(model);
    }
    let found = alike.into_values().filter(|models| models.len() > 1).filter_map(|models| {
        let size = |model: &RootModule| {
            let parameters: Vec<u64> =
                model.modules.iter().flat_map(|module| &module.parameters).copied().collect();
            sum(&parameters, &bytes)
        };
        let mut sizes: Vec<(u64, String)> =
            models.iter().map(|model| (size(model), model.name.to_string())).collect();
        sizes.retain(|(size, _)| *size > 0);
        sizes.sort_by_key(|(size, _)| Reverse(*size));
        let more = sizes.iter().skip(1).map(|(size, _)| size).sum();
        let names = sizes.into_iter().map(|(_, name)| name).collect();
        (more >= MIN_BYTES).then_some(Finding::ModelsTwice { names, bytes: more })
    });
    found.collect()
}

pub(super) fn gradients_in_eval(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let in_eval = |model: &str| {
        snapshot
            .models
            .iter()
            .any(|known| &*known.name == model && known.is_training == Some(false))
    };
    let of = facts.groups.iter().filter(|group| {
        group.category == TensorCategory::Gradient
            && group.kind == OwnerKind::Model
            && group.size.bytes >= MIN_BYTES
            && in_eval(&group.owner)
    });
    of.map(|group| Finding::GradientsInEval { model: group.owner.clone(), bytes: group.size.bytes })
        .collect()
}

pub(super) fn large_storages(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let (mut bytes, mut storages, mut most) = (0, 0, (0, String::new()));
    for (group, held) in held_storages(snapshot) {
        if !group.device.is_cuda() || group.category != TensorCategory::Other {
            continue;
        }
        // A view's base may be held only in C++, out of the program's reach.
        let is_seen =
            |row: &&TensorRow| !row.only_in_cpp || !row.names.is_empty() || !row.saved.is_empty();
        let rows = group.tensors.iter().map(|&row| &snapshot.tensors[row]).filter(is_seen);
        let shown: Option<u64> = rows.map(|row| row.tensor.logical_bytes()).sum();
        // Overlapping views show at most this sum.
        let Some(hidden) = shown.and_then(|shown| held.checked_sub(shown)) else { continue };
        let first = &snapshot.tensors[group.tensors[0]];
        if hidden > held / 2 && hidden >= MIN_BYTES && !first.names.is_empty() {
            bytes += hidden;
            storages += 1;
            if hidden > most.0 {
                most = (hidden, owner_label(snapshot, first));
            }
        }
    }
    let found = Finding::LargeStorages { name: most.1, storages, bytes };
    (storages > 0).then_some(found).into_iter().collect()
}

fn reserved_in(facts: &FindingFacts<'_>, gpu: u32) -> Option<ReservedIn> {
    let device = facts.devices.iter().find(|device| device.gpu == gpu)?;
    let (bytes, seconds) = (device.reserved?.bytes, device.seconds);
    Some(ReservedIn { gpu, bytes, seconds, taken_by: device.taken_by.clone() })
}

fn many_idle(facts: &FindingFacts<'_>) -> Vec<(u32, IdleStreams)> {
    let maps = facts.snapshot.map_or(&[][..], |snapshot| &snapshot.blocks).iter();
    let idle = maps.map(|map| (map.device.0, IdleStreams::new(map)));
    idle.filter(|(_, idle)| idle.streams >= MIN_STREAMS && idle.bytes >= MIN_BYTES).collect()
}

/// New streams cannot use the cache of old ones.
pub(super) fn idle_streams(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = many_idle(facts).into_iter().map(|(gpu, idle)| Finding::IdleStreams {
        gpu,
        streams: idle.streams,
        bytes: idle.bytes,
        grown: reserved_in(facts, gpu),
    });
    found.collect()
}

/// Only growth that streams did not cause.
pub(super) fn reserved_grows(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let by_streams: Vec<u32> = many_idle(facts).into_iter().map(|(gpu, _)| gpu).collect();
    let others = facts.devices.iter().filter(|device| !by_streams.contains(&device.gpu));
    let grown = others.filter_map(|device| reserved_in(facts, device.gpu));
    grown.map(|grown| Finding::ReservedGrows { grown }).collect()
}

pub(super) fn fragmented(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let idle = many_idle(facts);
    // Reported as idle streams instead.
    let is_of_streams = |gpu: &GpuFacts| {
        let cached = gpu.reserved.unwrap_or(0).saturating_sub(gpu.allocated.unwrap_or(0));
        idle.iter().any(|(of, idle)| *of == gpu.gpu && idle.bytes > cached / 2)
    };
    let found = facts.gpus.iter().filter(|gpu| !is_of_streams(gpu)).filter_map(|gpu| {
        let (reserved, allocated) = (gpu.reserved?, gpu.allocated?);
        let CacheFacts { general, private, releasable } = gpu.cache?;
        // Graphs replay into private memory: it is not free.
        let cached = reserved.saturating_sub(allocated).saturating_sub(private);
        let FreeBlocks { blocks, largest, .. } = general;
        let is_much = cached >= MIN_CACHED && cached >= reserved / MIN_CACHED_PART;
        let finding = Finding::Fragmented { gpu: gpu.gpu, cached, blocks, largest, releasable };
        (is_much && largest <= cached / MAX_PIECE_PART).then_some(finding)
    });
    found.collect()
}

pub(super) fn other_processes(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = facts.gpus.iter().filter_map(|gpu| {
        let (bytes, total) = (gpu.others?, gpu.total?);
        let finding = Finding::OtherProcesses { gpu: gpu.gpu, bytes, total };
        (bytes > 0 && bytes >= total / MIN_OTHERS_PART).then_some(finding)
    });
    found.collect()
}

pub(super) fn outside(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = facts.gpus.iter().filter_map(|gpu| {
        let bytes = gpu.outside.filter(|bytes| *bytes > USUAL_OUTSIDE)?;
        Some(Finding::Outside { gpu: gpu.gpu, bytes })
    });
    found.collect()
}
