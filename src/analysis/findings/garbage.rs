//! Only cycles of garbage hold tensors.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{OwnershipSnapshot, bytes, count, number};
use crate::ownership::{breakdown, held_storages, is_garbage};

const MAX_CYCLES: usize = 3;

/// Cycles of one kind: `class` identifies them best, `way` is the shortest way round.
pub(super) struct HoldingCycle {
    pub(super) class: String,
    way: String,
    cycles: u64,
    pub(super) bytes: u64,
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let (mut size, mut storages) = (0, 0);
    for (device, sums) in breakdown(snapshot) {
        if device.is_cuda() {
            size += sums.garbage.bytes;
            storages += sums.garbage.storages;
        }
    }
    if size < MIN_BYTES {
        return Vec::new();
    }
    let cycles = cycles_text(&holding_cycles(snapshot));
    let problem = format!(
        "{} in {} is garbage in reference cycles",
        bytes(size),
        number(storages, "storage")
    );
    let change = format!("gc.collect() would free it{cycles}");
    let found = Finding::new("garbage", size, problem).change(change).frees(size);
    vec![found.command("tensors", &["--each"])]
}

pub(super) fn holding_cycles(snapshot: &OwnershipSnapshot) -> Vec<HoldingCycle> {
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

fn cycles_text(cycles: &[HoldingCycle]) -> String {
    let texts = cycles.iter().take(MAX_CYCLES).map(|cycle| {
        let number = match cycle.cycles {
            1 => "a cycle".to_owned(),
            cycles => format!("{} cycles", count(cycles)),
        };
        format!("; {} by {number} of class {}: {}", bytes(cycle.bytes), cycle.class, cycle.way)
    });
    let more = match cycles.len().saturating_sub(MAX_CYCLES) {
        0 => String::new(),
        more => format!("; and {more} more kinds of cycles"),
    };
    texts.chain([more]).collect()
}
