//! Sums of an ownership snapshot by device.
//!
//! A block has one category or no tensor: categories, rounding and blocks without tensor add up to
//! the allocated bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::{
    Block, BlockState, DeviceOwners, DeviceOwnership, IncompleteSnapshot, Nanos, OwnedBlock,
    OwnedStorages, OwnershipBreakdown, OwnershipSnapshot, PythonTensors, StorageGroup,
    TensorCategory, TensorDevice, TensorRow, UnnamedBlock,
};

use super::active_blocks::{ActiveBlocks, StorageLocation, cuda};
use super::cpp_blocks::CppBlocks;
use super::graph_roots::{ALIVE_BY, SAVED_BY, graph_roots, kept_by};
use super::name_pattern::name_pattern;

/// More unnamed blocks have no allocation sites.
const MAX_UNNAMED_BLOCKS: usize = 1 << 16;
const MAX_OWNED_BLOCKS: usize = 1 << 18;

/// What a recording keeps of a snapshot.
pub fn summarize(snapshot: &OwnershipSnapshot, time: Nanos) -> OwnershipBreakdown {
    let mut summary = Summary::new(snapshot);
    let roots = graph_roots(&snapshot.tensors, &snapshot.nodes);
    for group in storages(snapshot) {
        let keeper = || kept_by(snapshot, &roots, &group)?.names.first().map(|name| &**name);
        summary.add(&group, keeper);
    }
    summary.finish(time)
}

/// A device, an owner's index, an address, bytes.
type UnnamedBytes = (TensorDevice, Option<u32>, u64, u64);

struct Summary<'a> {
    snapshot: &'a OwnershipSnapshot,
    devices: BTreeMap<TensorDevice, (DeviceOwners, ActiveBlocks)>,
    known: FxHashMap<(TensorDevice, TensorCategory, Arc<str>), usize>,
    unnamed: Vec<UnnamedBytes>,
    /// Owners' bytes by device and block.
    shares: FxHashMap<(TensorDevice, u64), Vec<(u32, u64)>>,
}

impl<'a> Summary<'a> {
    fn new(snapshot: &'a OwnershipSnapshot) -> Summary<'a> {
        let mut devices = BTreeMap::new();
        for blocks in &snapshot.blocks {
            let on_device = DeviceOwners {
                device: blocks.device,
                allocated: blocks.allocated(),
                rounding: 0,
                without_tensor: 0,
                results: Some(0),
                held: Vec::new(),
            };
            devices.insert(cuda(blocks.device), (on_device, ActiveBlocks::new(blocks)));
        }
        Summary {
            snapshot,
            devices,
            known: FxHashMap::default(),
            unnamed: Vec::new(),
            shares: FxHashMap::default(),
        }
    }

    /// `keeper`: the name by which its graph is alive.
    fn add<'k>(&mut self, group: &StorageGroup, keeper: impl FnOnce() -> Option<&'k str>) {
        let tensors = &self.snapshot.tensors;
        let Some((on_device, blocks)) = self.devices.get_mut(&group.device) else { return };
        let block = blocks.address(group.storage.data);
        let StorageLocation::Block(bytes @ 1..) = blocks.insert(group.storage.data, group.bytes())
        else {
            return;
        };
        let owner: Arc<str> = kept_label(self.snapshot, group, keeper()).into();
        let held = &mut on_device.held;
        let key = (group.device, group.category, owner.clone());
        let index = *self.known.entry(key).or_insert_with(|| {
            held.push(OwnedStorages { category: group.category, owner, bytes: 0, count: 0 });
            held.len() - 1
        });
        held[index].bytes += bytes;
        held[index].count += 1;
        if let Some(block) = block {
            self.shares.entry((group.device, block)).or_default().push((index as u32, bytes));
        }
        let is_result = |&tensor: &usize| tensors[tensor].made_by.is_some();
        if group.category == TensorCategory::Other && group.tensors.iter().any(is_result) {
            *on_device.results.get_or_insert(0) += bytes;
        }
        if group.tensors.iter().all(|&tensor| tensors[tensor].names.is_empty()) {
            let address = group.storage.data;
            self.unnamed.push((group.device, Some(index as u32), address, bytes));
        }
    }

    fn finish(self, time: Nanos) -> OwnershipBreakdown {
        let Summary { snapshot, devices, mut unnamed, mut shares, .. } = self;
        let places: FxHashMap<TensorDevice, u32> = devices.keys().copied().zip(0..).collect();
        let mut owned_blocks: Vec<OwnedBlock> = Vec::new();
        let finished = devices.into_iter().map(|(device, (mut on_device, blocks))| {
            for (block, used) in blocks.blocks {
                if block.state == BlockState::Allocated
                    && owned_blocks.len() < MAX_OWNED_BLOCKS
                    && let Some(&device_number) = places.get(&device)
                {
                    let Block { address, size, .. } = block;
                    let shares = shares.remove(&(device, address)).unwrap_or_default();
                    owned_blocks.push(OwnedBlock { device: device_number, address, size, shares });
                }
                match (block.state, used) {
                    (BlockState::PendingFree, _) => {}
                    (_, 0) => {
                        on_device.without_tensor += block.size;
                        unnamed.push((device, None, block.address, block.size));
                    }
                    (_, used) => on_device.rounding += block.size - used,
                }
            }
            on_device
        });
        let devices = finished.collect();
        let unnamed = unnamed.into_iter().filter_map(|(device, held, address, bytes)| {
            Some(UnnamedBlock { device: *places.get(&device)?, held, address, bytes })
        });
        OwnershipBreakdown {
            time,
            // What changed while it was read is as good as read from a running process.
            pause: snapshot
                .pause
                .filter(|_| snapshot.is_of_one_moment())
                .map(|pause| Nanos(pause.as_nanos() as u64)),
            devices,
            age: Nanos(0),
            unnamed_blocks: unnamed.take(MAX_UNNAMED_BLOCKS).collect(),
            blocks: owned_blocks,
            retained: snapshot.retained.clone(),
        }
    }
}

/// The storage's owner; for what a graph saved, also the name that keeps the graph alive.
fn kept_label(snapshot: &OwnershipSnapshot, group: &StorageGroup, keeper: Option<&str>) -> String {
    let owner = owner_label(snapshot, &snapshot.tensors[group.tensors[0]]);
    match keeper.filter(|_| owner.starts_with(SAVED_BY)) {
        Some(keeper) => format!("{owner}{ALIVE_BY}{}", name_pattern(keeper)),
        None => owner,
    }
}

/// Describes a tensor's owner.
pub fn owner_label(snapshot: &OwnershipSnapshot, row: &TensorRow) -> String {
    if let Some(name) = row.names.first() {
        return name.to_string();
    }
    if let Some(saved) = row.saved.first() {
        return format!("{SAVED_BY}{}]", snapshot.nodes[saved.node].class);
    }
    if let Some(incomplete) = &snapshot.incomplete
        && (incomplete.lacks_names() || incomplete.lacks_graph())
    {
        let class = row.python_class.as_deref().unwrap_or("tensor");
        let what = if incomplete.lacks_names() { "its name" } else { "what keeps it" };
        return format!("[a {class}, {what} was {}]", incomplete.not_read());
    }
    match (&row.made_by, &row.python_class) {
        (Some(node), _) => format!("[result of {node}]"),
        (None, Some(class)) => format!("[a {class} without a name]"),
        (None, None) => "[without a name]".to_owned(),
    }
}

/// Storages, largest first; those on the same bytes count as one.
pub fn storages(snapshot: &OwnershipSnapshot) -> Vec<StorageGroup> {
    let mut groups: Vec<StorageGroup> = Vec::new();
    let mut known: FxHashMap<(TensorDevice, u64), usize> = FxHashMap::default();
    for (index, row) in snapshot.tensors.iter().enumerate() {
        let (Some(storage), Some(device)) = (row.tensor.storage, row.tensor.device) else {
            continue;
        };
        // Detached copies share the storage, external memory only the bytes, empty storages
        // nothing.
        let key = if storage.data == 0 { storage.at } else { storage.data };
        let group = *known.entry((device, key)).or_insert_with(|| {
            let category = row.category;
            groups.push(StorageGroup { storage, device, category, tensors: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[group];
        group.category = group.category.min(row.category);
        group.storage.bytes = group.storage.bytes.max(storage.bytes);
        group.tensors.push(index);
    }
    for group in &mut groups {
        group.tensors.sort_by_key(|&index| worth(&snapshot.tensors[index], index));
    }
    groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes()), group.tensors[0]));
    groups
}

/// The most informative tensor first: named, with an object, covering its storage.
fn worth(row: &TensorRow, index: usize) -> impl Ord + use<> {
    let whole = row.tensor.storage.and_then(|storage| storage.bytes) == row.tensor.logical_bytes();
    (row.names.is_empty(), row.category, row.object.is_none(), !whole, index)
}

/// Storages with their bytes (in used blocks, if there is a snapshot); they add up to
/// [`breakdown`]'s categories.
pub fn held_storages(snapshot: &OwnershipSnapshot) -> Vec<(StorageGroup, u64)> {
    let mut blocks: BTreeMap<TensorDevice, ActiveBlocks> =
        snapshot.blocks.iter().map(|map| (cuda(map.device), ActiveBlocks::new(map))).collect();
    let held = storages(snapshot).into_iter().filter_map(|group| {
        let bytes = group.bytes();
        let bytes = match blocks.get_mut(&group.device) {
            _ if bytes == 0 || group.device.is_meta() => return None,
            None => bytes,
            Some(blocks) => match blocks.insert(group.storage.data, bytes) {
                StorageLocation::Block(held) => held,
                StorageLocation::Pool | StorageLocation::Elsewhere => return None,
            },
        };
        Some((group, bytes))
    });
    held.collect()
}

/// Whether all its tensors are garbage.
pub fn is_garbage(snapshot: &OwnershipSnapshot, group: &StorageGroup) -> bool {
    group.tensors.iter().all(|&tensor| snapshot.tensors[tensor].garbage)
}

/// Sums of all devices with tensors or blocks.
pub fn breakdown(snapshot: &OwnershipSnapshot) -> BTreeMap<TensorDevice, DeviceOwnership> {
    let mut devices: BTreeMap<TensorDevice, DeviceOwnership> = BTreeMap::new();
    let mut blocks: BTreeMap<TensorDevice, ActiveBlocks> = BTreeMap::new();
    for snapshot in &snapshot.blocks {
        let device = cuda(snapshot.device);
        let sums = devices.entry(device).or_default();
        sums.allocated = Some(snapshot.allocated());
        sums.releasable = snapshot.releasable();
        blocks.insert(device, ActiveBlocks::new(snapshot));
    }
    for row in snapshot.tensors.iter().filter(|row| row.object.is_some()) {
        let Some(device) = row.tensor.device else { continue };
        add_tensor(&mut devices.entry(device).or_default().in_python, row);
    }
    for group in storages(snapshot) {
        let sums = devices.entry(group.device).or_default();
        let bytes = group.bytes();
        if bytes == 0 || group.device.is_meta() {
            continue;
        }
        let held = match blocks.get_mut(&group.device) {
            None => bytes,
            Some(blocks) => match blocks.insert(group.storage.data, bytes) {
                StorageLocation::Block(held) => held,
                StorageLocation::Pool => {
                    sums.in_pools.add(bytes);
                    continue;
                }
                StorageLocation::Elsewhere => {
                    sums.elsewhere.add(bytes);
                    continue;
                }
            },
        };
        sums.by_category.entry(group.category).or_default().add(held);
        let first = &snapshot.tensors[group.tensors[0]];
        if first.names.is_empty()
            && group.tensors.iter().all(|&t| snapshot.tensors[t].saved.is_empty())
        {
            sums.unnamed.add(held);
        }
        if is_garbage(snapshot, &group) {
            sums.garbage.add(held);
        }
    }
    let incomplete = snapshot.incomplete.as_ref().filter(|incomplete| incomplete.lacks_tensors());
    let cpp = CppBlocks::new(snapshot);
    for (device, blocks) in blocks {
        let sums = devices.entry(device).or_default();
        sums.not_read = incomplete.map(IncompleteSnapshot::not_read);
        for (block, used) in blocks.blocks {
            match (block.state, used) {
                (BlockState::PendingFree, _) => sums.pending_free.add(block.size),
                (_, 0) => match cpp.keeper(device, block.address) {
                    Some(keeper) => sums.in_cpp.entry(keeper).or_default().add(block.size),
                    None => sums.without_tensor.add(block.size),
                },
                (_, used) => sums.rounding += block.size - used,
            }
        }
    }
    devices
}

fn add_tensor(sums: &mut PythonTensors, row: &TensorRow) {
    sums.tensors += 1;
    let elements = row.tensor.numel.and_then(|numel| u64::try_from(numel).ok());
    match (elements, row.tensor.logical_bytes()) {
        (Some(elements), Some(bytes)) => {
            sums.elements = sums.elements.saturating_add(elements);
            sums.bytes = sums.bytes.saturating_add(bytes);
        }
        _ => sums.unknown += 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AllocatorSnapshot, Block, CudaIndex, OwnedBytes, PoolId, Segment, SnapshotConsistency,
        Storage, TensorInfo,
    };
    use crate::ownership::fixture;

    fn tensor(
        at: u64,
        data: u64,
        bytes: u64,
        category: TensorCategory,
        name: Option<&str>,
    ) -> TensorRow {
        let plain = fixture::row(at);
        TensorRow {
            tensor: TensorInfo {
                storage: Some(Storage { at: data + 1, data, bytes: Some(bytes) }),
                shape: Some(vec![bytes as i64 / 4]),
                strides: Some(vec![1]),
                numel: Some(bytes as i64 / 4),
                device: Some(cuda(CudaIndex(0))),
                version: Some(0),
                ..plain.tensor
            },
            object: None,
            category,
            names: name.map(Into::into).into_iter().collect(),
            ..plain
        }
    }

    #[test]
    fn owned_bytes_add_up_to_allocated_bytes() {
        let block = |address, size, state| Block { address, size, requested: size, state };
        let snapshot = OwnershipSnapshot {
            tensors: vec![
                tensor(1, 0x1000, 1000, TensorCategory::Other, None),
                tensor(2, 0x1000, 1000, TensorCategory::Parameter, Some("weight")),
                TensorRow {
                    made_by: Some("AddBackward0".into()),
                    ..tensor(3, 0x2000, 512, TensorCategory::Other, None)
                },
                tensor(4, 0x9000, 64, TensorCategory::Other, Some("x")),
            ],
            blocks: vec![AllocatorSnapshot {
                time: Nanos(0),
                device: CudaIndex(0),
                retries: 0,
                consistency: SnapshotConsistency::Consistent,
                segments: vec![Segment {
                    address: 0x1000,
                    size: 0x4000,
                    stream: 0,
                    small: true,
                    expandable: false,
                    granule: 0,
                    retired: false,
                    pool: PoolId(0, 0),
                    blocks: vec![
                        block(0x1000, 1024, BlockState::Allocated),
                        block(0x1400, 0xc00, BlockState::Inactive),
                        block(0x2000, 512, BlockState::Allocated),
                        block(0x2200, 2048, BlockState::Allocated),
                        block(0x3000, 512, BlockState::PendingFree),
                    ],
                }],
            }],
            ..OwnershipSnapshot::default()
        };
        let sums = &breakdown(&snapshot)[&cuda(CudaIndex(0))];
        assert_eq!(
            sums.by_category[&TensorCategory::Parameter],
            OwnedBytes { bytes: 1000, storages: 1 }
        );
        assert_eq!(
            sums.by_category[&TensorCategory::Other],
            OwnedBytes { bytes: 512, storages: 1 }
        );
        assert_eq!(sums.unnamed, OwnedBytes { bytes: 512, storages: 1 });
        assert_eq!((sums.rounding, sums.without_tensor.bytes), (24, 2048));
        assert_eq!((sums.pending_free.bytes, sums.elsewhere.bytes), (512, 64));
        let all = sums.in_tensors() + sums.rounding + sums.without_tensor.bytes;
        assert_eq!(Some(all), sums.allocated);
        assert_eq!(storages(&snapshot)[0].tensors, [1, 0]);

        let kept = &summarize(&snapshot, Nanos(7)).devices[0];
        assert_eq!((kept.allocated, kept.rounding, kept.without_tensor), (all, 24, 2048));
        assert_eq!(kept.results, Some(512));
        let held: Vec<_> = kept.held.iter().map(|h| (h.category, &*h.owner, h.bytes)).collect();
        let parameter = (TensorCategory::Parameter, "weight", 1000);
        assert_eq!(held, [parameter, (TensorCategory::Other, "[result of AddBackward0]", 512)]);
    }
}
