//! Bytes on GPUs by Python object.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::OwnershipSnapshot;
use crate::ownership::held_storages;

/// (Storage number, bytes on GPUs) by object.
pub(super) fn bytes_of(snapshot: &OwnershipSnapshot) -> FxHashMap<u64, (u64, u64)> {
    let mut bytes = FxHashMap::default();
    for (number, (group, held)) in (0..).zip(held_storages(snapshot)) {
        if group.device.is_cuda() {
            let objects = group.tensors.iter().filter_map(|&row| snapshot.tensors[row].object);
            bytes.extend(objects.map(|object| (object, (number, held))));
        }
    }
    bytes
}

/// Each storage once.
pub(super) fn sum(objects: &[u64], bytes: &FxHashMap<u64, (u64, u64)>) -> u64 {
    let storages: BTreeMap<u64, u64> =
        objects.iter().filter_map(|object| bytes.get(object)).copied().collect();
    storages.values().sum()
}
