//! Small tensors keep large segments from being returned.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Finding, FindingFacts};
use crate::model::{
    AllocatorSnapshot, BlockState, OwnershipSnapshot, PoolId, TensorCategory, bytes,
};
use crate::ownership::{cuda_device, held_storages, name_pattern, owner_label};

const MIN_PINNED: u64 = 128 << 20;
/// Least part of what is reserved: 1/4.
const MIN_PART: u64 = 4;
/// What pins a segment is at most this part of it.
const MAX_USED_PART: u64 = 8;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot.filter(|it| it.incomplete.is_none()) else {
        return Vec::new();
    };
    snapshot.blocks.iter().filter_map(|map| of_device(snapshot, map)).collect()
}

/// Where segments are pinned.
pub(super) fn gpus(facts: &FindingFacts<'_>) -> Vec<u32> {
    let Some(snapshot) = facts.snapshot.filter(|it| it.incomplete.is_none()) else {
        return Vec::new();
    };
    let pinned = snapshot.blocks.iter().filter(|map| of_device(snapshot, map).is_some());
    pinned.map(|map| map.device.0).collect()
}

fn of_device(snapshot: &OwnershipSnapshot, map: &AllocatorSnapshot) -> Option<Finding> {
    let device = cuda_device(map.device);
    // What a variable of the program keeps; others come and go.
    let mut owners: FxHashMap<u64, String> = FxHashMap::default();
    for (group, _) in held_storages(snapshot).iter().filter(|(group, _)| group.device == device) {
        let first = &snapshot.tensors[group.tensors[0]];
        if group.category == TensorCategory::Other && !first.names.is_empty() {
            let owner = name_pattern(&owner_label(snapshot, first));
            owners.insert(group.storage.data, owner.to_string());
        }
    }
    let mut by_owner: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    let mut pinned = 0;
    let plain = map.segments.iter();
    for segment in plain.filter(|it| it.pool == PoolId::default() && !it.small && it.granule == 0) {
        let used: Vec<_> =
            segment.blocks.iter().filter(|block| block.state != BlockState::Inactive).collect();
        let size: u64 = used.iter().map(|block| block.size).sum();
        if used.is_empty() || size > segment.size / MAX_USED_PART {
            continue;
        }
        let names: Option<Vec<&String>> =
            used.iter().map(|block| owners.get(&block.address)).collect();
        let Some(names) = names else { continue };
        if names.iter().all(|name| *name == names[0]) && names[0].contains('*') {
            let free = segment.size - size;
            pinned += free;
            let sums = by_owner.entry(names[0]).or_default();
            *sums = (sums.0 + free, sums.1 + size, sums.2 + 1);
        }
    }
    let (owner, (free, own, segments)) = by_owner.into_iter().max_by_key(|(_, sums)| sums.0)?;
    if pinned < MIN_PINNED || pinned < map.reserved() / MIN_PART {
        return None;
    }
    let problem = format!(
        "GPU {}: {} of {owner} keep {} of cache in {segments} segments from being returned",
        map.device.0,
        bytes(own),
        bytes(free)
    );
    let found = Finding::new("pinned segments", free, problem)
        .change(
            "move them to the CPU, or allocate them before the large tensors, then empty_cache()",
        )
        .frees(free);
    Some(found.command("dump", &["--cache"]))
}
