//! Bytes on GPUs by Python object, and the owner of an optimizer's state.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{Optimizer, OwnershipSnapshot};
use crate::ownership::{held_storages, name_pattern};

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

/// As in owner groups: `main: schedulers[*].optimizer (AdamW)`.
pub(super) fn owner_of(optimizer: &Optimizer) -> String {
    match &optimizer.variable {
        Some(variable) => format!("{} ({})", name_pattern(variable), optimizer.class),
        None => optimizer.class.to_string(),
    }
}
