//! Storages that appeared or disappeared.

use rustc_hash::FxHashMap;

use crate::model::StorageGroup;
use crate::model::{DType, OwnershipSnapshot, TensorCategory, TensorDevice};
use crate::ownership::storages;

/// Similar storages that appeared (`came`) or disappeared. Shape, type and index in
/// [`OwnershipSnapshot::tensors`] are those of the first one.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageChange {
    pub came: bool,
    pub count: u64,
    pub bytes: u64,
    pub device: TensorDevice,
    pub category: TensorCategory,
    pub shape: Option<Vec<i64>>,
    pub dtype: DType,
    pub tensor: usize,
}

/// A storage freed and allocated again at the same place counts as the same.
type StorageKey = (TensorDevice, u64, u64, Option<u64>);

fn key(group: &StorageGroup) -> StorageKey {
    (group.device, group.storage.at, group.storage.data, group.storage.bytes)
}

/// Largest first, without meta tensors and empty ones.
pub fn changes(before: &OwnershipSnapshot, now: &OwnershipSnapshot) -> Vec<StorageChange> {
    let groups = |snapshot: &OwnershipSnapshot| -> FxHashMap<StorageKey, StorageGroup> {
        let with_memory = storages(snapshot).into_iter().filter(|group| {
            group.bytes() > 0 || group.storage.data != 0 && group.storage.bytes.is_none()
        });
        with_memory.map(|group| (key(&group), group)).collect()
    };
    let (old, new) = (groups(before), groups(now));
    let mut found: Vec<StorageChange> = Vec::new();
    for (came, snapshot, these, those) in [(true, now, &new, &old), (false, before, &old, &new)] {
        let mut alike: FxHashMap<_, StorageChange> = FxHashMap::default();
        let mut changed: Vec<_> =
            these.iter().filter(|(key, _)| !those.contains_key(*key)).collect();
        changed.sort_unstable_by_key(|(_, group)| group.tensors[0]);
        for (_, group) in changed {
            let tensor = group.tensors[0];
            let row = &snapshot.tensors[tensor].tensor;
            let kind = (group.device, group.category, row.shape.clone(), row.dtype);
            let change = alike.entry(kind.clone()).or_insert_with(|| {
                let (device, category, shape, dtype) = kind;
                StorageChange { came, count: 0, bytes: 0, device, category, shape, dtype, tensor }
            });
            change.count += 1;
            change.bytes += group.bytes();
        }
        found.extend(alike.into_values());
    }
    found.sort_by_key(|change| (std::cmp::Reverse(change.bytes), !change.came, change.tensor));
    found
}
