//! Owners of older memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::owner_groups::{OwnerKind, recorded_owner_groups};
use crate::model::{CudaIndex, DeviceOwners, OwnerId, OwnerPaths, OwnershipBreakdown};

/// Sorted by owner; the bytes add up to the block.
pub(crate) type BlockOwners = Arc<[(OwnerId, u64)]>;

/// By address, on one device.
pub(crate) type OwnedBlocks = FxHashMap<u64, BlockOwners>;

/// Until the first snapshot of the blocks.
pub(crate) type PendingOwners = BTreeMap<CudaIndex, OwnedBlocks>;

pub(crate) fn owners_of_blocks(
    snapshot: &OwnershipBreakdown,
    paths: &mut OwnerPaths,
) -> PendingOwners {
    let mut devices = PendingOwners::new();
    if snapshot.blocks.is_empty() {
        return devices;
    }
    let of_held: Vec<Vec<Option<OwnerId>>> =
        snapshot.devices.iter().map(|device| owners_of_held(device, paths)).collect();
    let in_no_tensor = paths.intern(&["[in no tensor]"]);
    let rounding = paths.intern(&["[rounding]"]);
    // Blocks with equal owners, such as a model's layers, share one list.
    let mut known: FxHashMap<Vec<(OwnerId, u64)>, BlockOwners> = FxHashMap::default();
    for block in &snapshot.blocks {
        let number = block.device as usize;
        let (Some(device), Some(held)) = (snapshot.devices.get(number), of_held.get(number)) else {
            continue;
        };
        let mut owners: BTreeMap<OwnerId, u64> = BTreeMap::new();
        let mut rest = block.size;
        for &(index, bytes) in &block.shares {
            if let Some(owner) = held.get(index as usize).copied().flatten() {
                *owners.entry(owner).or_default() += bytes;
                rest = rest.saturating_sub(bytes);
            }
        }
        let cause = if block.shares.is_empty() { in_no_tensor } else { rounding };
        if let Some(cause) = cause.filter(|_| rest > 0) {
            *owners.entry(cause).or_default() += rest;
        }
        let owners: Vec<(OwnerId, u64)> = owners.into_iter().collect();
        let owners = known.entry(owners).or_insert_with_key(|owners| owners.as_slice().into());
        devices.entry(device.device).or_default().insert(block.address, owners.clone());
    }
    devices
}

/// The path: category, then the group's name.
fn owners_of_held(device: &DeviceOwners, paths: &mut OwnerPaths) -> Vec<Option<OwnerId>> {
    let mut owners = vec![None; device.held.len()];
    for group in recorded_owner_groups(device) {
        for pattern in &group.patterns {
            let mut path = vec![format!("[{}]", group.category.name())];
            match group.kind {
                OwnerKind::Variable if !group.owner.is_empty() => {
                    path.push(group.owner.clone());
                    path.extend((!pattern.tail.is_empty()).then(|| pattern.tail.clone()));
                }
                OwnerKind::Graph => {
                    path.push(format!("alive by {}", group.owner));
                    path.push(pattern.pattern.clone());
                }
                _ => path.push(pattern.pattern.clone()),
            }
            let owner = paths.intern(&path);
            for &held in &pattern.held {
                if let Some(place) = owners.get_mut(held) {
                    *place = owner;
                }
            }
        }
    }
    owners
}

/// Splits `bytes` without losing one.
pub(crate) fn split(owners: &[(OwnerId, u64)], bytes: u64, mut take: impl FnMut(OwnerId, u64)) {
    let whole: u128 = owners.iter().map(|(_, weight)| u128::from(*weight)).sum();
    let portion = |upto: u128| (u128::from(bytes) * upto / whole.max(1)) as u64;
    let mut done: u128 = 0;
    for &(owner, weight) in owners {
        let upto = done + u128::from(weight);
        take(owner, portion(upto) - portion(done));
        done = upto;
    }
}
