//! What a look at owners adds up to, device by device.
//!
//! Every allocated block of a device belongs to one category, or to no tensor. The tensors' bytes by category, what rounding
//! adds to them, and the blocks of no tensor are together what the allocator counts as allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::blocks::{AllocatorSnapshot, Block, BlockState, PoolId};
use super::gpu::CudaIndex;
use super::graph_roots::{ALIVE_BY, SAVED_BY, graph_roots, kept_by};
use super::name_pattern::name_pattern;
use super::owners::{OwnershipSnapshot, TensorCategory, TensorRow};
use super::record::Nanos;
use super::tensors::{Storage, TensorDevice};

/// Bytes and number of the storages of a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedBytes {
    /// Bytes.
    pub bytes: u64,
    /// Storages.
    pub storages: u64,
}

/// The tensors of a device that Python has objects of, each counted by itself: views again with what they show of their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PythonTensors {
    /// How many.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Bytes of these elements.
    pub bytes: u64,
    /// How many of them have an unknown (symbolic) size, and are in neither sum.
    pub unknown: u64,
}

/// A device's memory by who holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceOwnership {
    /// The tensors' bytes by category; a storage counts once, in the first of its categories.
    pub by_category: BTreeMap<TensorCategory, OwnedBytes>,
    /// Bytes and storages among these without any name, and kept by no node.
    pub unnamed: OwnedBytes,
    /// Storages among these that only garbage holds: `gc.collect()` would free them.
    pub garbage: OwnedBytes,
    /// Bytes that `torch.cuda.empty_cache()` would return: [`Segment::releasable`](super::Segment::releasable).
    pub releasable: u64,
    /// What the allocator added to the bytes asked for.
    pub rounding: u64,
    /// Allocated blocks that no tensor was found in: work spaces, tensors that only C++ holds.
    pub without_tensor: OwnedBytes,
    /// Freed by the program, while another stream may still use them.
    pub pending_free: OwnedBytes,
    /// Storages in private pools where the allocator has no block in use: what a CUDA graph made when it was replayed.
    pub in_pools: OwnedBytes,
    /// Storages in no block: memory of other libraries, or shared by another process.
    pub elsewhere: OwnedBytes,
    /// `allocated_bytes` by the blocks; `None` for devices without PyTorch's native CUDA allocator.
    pub allocated: Option<u64>,
    /// Its tensors as Python counts them.
    pub in_python: PythonTensors,
}

impl DeviceOwnership {
    /// Bytes of all tensors.
    pub fn in_tensors(&self) -> u64 {
        self.by_category.values().map(|held| held.bytes).sum()
    }

    /// Storages of all tensors.
    pub fn storages(&self) -> u64 {
        self.by_category.values().map(|held| held.storages).sum()
    }
}

/// One storage and the tensors on it.
#[derive(Debug, Clone)]
pub struct StorageGroup {
    /// The storage.
    pub storage: Storage,
    /// Its device.
    pub device: TensorDevice,
    /// What it is for.
    pub category: TensorCategory,
    /// Indices of its tensors in [`OwnershipSnapshot::tensors`], the best named first.
    pub tensors: Vec<usize>,
}

impl StorageGroup {
    /// [`Storage::memory`].
    pub fn bytes(&self) -> u64 {
        self.storage.memory()
    }
}

/// Storages with the same owner, or the memory of a cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedStorages {
    /// What they are for.
    pub category: TensorCategory,
    /// Who holds them: the best name, or the node that keeps them.
    pub owner: Arc<str>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// A device's memory by owner at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOnDevice {
    /// The device, as the target numbers it.
    pub device: CudaIndex,
    /// `allocated_bytes` by the blocks.
    pub allocated: u64,
    /// What the allocator added to the bytes asked for.
    pub rounding: u64,
    /// Allocated blocks that no tensor was found in.
    pub without_tensor: u64,
    /// Bytes among the other tensors that are results of autograd nodes: activations that only Python keeps. `None` in
    /// recordings that did not tell.
    pub results: Option<u64>,
    /// The tensors' storages.
    pub held: Vec<OwnedStorages>,
}

/// The CUDA memory of a process by owner at one moment: what a recording keeps of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipBreakdown {
    /// When this was recorded.
    pub time: Nanos,
    /// For how long; `None` when it ran on.
    pub pause: Option<Nanos>,
    /// Its devices.
    pub devices: Vec<OwnedOnDevice>,
    /// How long before `time` the process was stopped: a look is recorded when it has been understood.
    pub age: Nanos,
    /// Blocks that no name tells of, so that who made them can be looked up; only in exact recordings.
    pub unnamed_blocks: Vec<UnnamedBlock>,
}

/// Memory that no variable, module or optimizer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnnamedBlock {
    /// Index of its device in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Index of its owner in [`OwnedOnDevice::held`]; `None` for a block in no tensor.
    pub held: Option<u32>,
    /// Its address.
    pub address: u64,
    /// Bytes of it that count to the owner.
    pub bytes: u64,
}

/// Nameless blocks kept of one look; more are left without makers.
const MAX_UNNAMED_BLOCKS: usize = 1 << 16;

/// What a recording keeps of a look at `time`.
pub fn summarize(snapshot: &OwnershipSnapshot, time: Nanos) -> OwnershipBreakdown {
    let mut devices: BTreeMap<TensorDevice, (OwnedOnDevice, ActiveBlocks)> = BTreeMap::new();
    for blocks in &snapshot.blocks {
        let on_device = OwnedOnDevice {
            device: blocks.device,
            allocated: blocks.allocated(),
            rounding: 0,
            without_tensor: 0,
            results: Some(0),
            held: Vec::new(),
        };
        devices.insert(cuda(blocks.device), (on_device, ActiveBlocks::new(blocks)));
    }
    let mut known: FxHashMap<(TensorDevice, TensorCategory, Arc<str>), usize> =
        FxHashMap::default();
    let mut unnamed_blocks = Vec::new();
    let roots = graph_roots(&snapshot.tensors, &snapshot.nodes);
    for group in storages(snapshot) {
        let Some((on_device, blocks)) = devices.get_mut(&group.device) else { continue };
        let StorageLocation::Block(bytes @ 1..) = blocks.insert(group.storage.data, group.bytes())
        else {
            continue;
        };
        let mut owner = owner_label(snapshot, &snapshot.tensors[group.tensors[0]]);
        let keeper = kept_by(snapshot, &roots, &group).and_then(|row| row.names.first());
        if let Some(keeper) = keeper.filter(|_| owner.starts_with(SAVED_BY)) {
            owner = format!("{owner}{ALIVE_BY}{}", name_pattern(keeper));
        }
        let owner: Arc<str> = owner.into();
        let held = &mut on_device.held;
        let key = (group.device, group.category, owner.clone());
        let index = *known.entry(key).or_insert_with(|| {
            held.push(OwnedStorages { category: group.category, owner, bytes: 0, count: 0 });
            held.len() - 1
        });
        held[index].bytes += bytes;
        held[index].count += 1;
        let is_result = |&tensor: &usize| snapshot.tensors[tensor].made_by.is_some();
        if group.category == TensorCategory::Other && group.tensors.iter().any(is_result) {
            *on_device.results.get_or_insert(0) += bytes;
        }
        if group.tensors.iter().all(|&tensor| snapshot.tensors[tensor].names.is_empty()) {
            let address = group.storage.data;
            unnamed_blocks.push((group.device, Some(index as u32), address, bytes));
        }
    }
    let places: FxHashMap<TensorDevice, u32> = devices.keys().copied().zip(0..).collect();
    let finished = devices.into_iter().map(|(device, (mut on_device, blocks))| {
        for (block, used) in blocks.blocks {
            match (block.state, used) {
                (BlockState::PendingFree, _) => {}
                (_, 0) => {
                    on_device.without_tensor += block.size;
                    unnamed_blocks.push((device, None, block.address, block.size));
                }
                (_, used) => on_device.rounding += block.size - used,
            }
        }
        on_device
    });
    OwnershipBreakdown {
        time,
        pause: snapshot.pause.map(|pause| Nanos(pause.as_nanos() as u64)),
        devices: finished.collect(),
        age: Nanos(0),
        unnamed_blocks: unnamed_blocks
            .into_iter()
            .filter_map(|(device, held, address, bytes)| {
                Some(UnnamedBlock { device: *places.get(&device)?, held, address, bytes })
            })
            .take(MAX_UNNAMED_BLOCKS)
            .collect(),
    }
}

/// The best that can be said of who holds a tensor.
pub fn owner_label(snapshot: &OwnershipSnapshot, row: &TensorRow) -> String {
    if let Some(name) = row.names.first() {
        return name.to_string();
    }
    if let Some(saved) = row.saved.first() {
        return format!("{SAVED_BY}{}]", snapshot.nodes[saved.node].class);
    }
    match (&row.made_by, &row.python_class) {
        (Some(node), _) => format!("[result of {node}]"),
        (None, Some(class)) => format!("[a {class} without a name]"),
        (None, None) => "[without a name]".to_owned(),
    }
}

/// The storages of a look, the largest first; those on the same bytes are one.
pub fn storages(snapshot: &OwnershipSnapshot) -> Vec<StorageGroup> {
    let mut groups: Vec<StorageGroup> = Vec::new();
    let mut known: FxHashMap<(TensorDevice, u64), usize> = FxHashMap::default();
    for (index, row) in snapshot.tensors.iter().enumerate() {
        let (Some(storage), Some(device)) = (row.tensor.storage, row.tensor.device) else {
            continue;
        };
        // Detached copies share the storage, memory from elsewhere only the bytes; without bytes nothing is shared.
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

/// What says most about a storage comes first: a name, an object, the whole of it.
fn worth(row: &TensorRow, index: usize) -> impl Ord + use<> {
    let whole = row.tensor.storage.and_then(|storage| storage.bytes) == row.tensor.logical_bytes();
    (row.names.is_empty(), row.category, row.object.is_none(), !whole, index)
}

/// The storages that hold memory, with the bytes that each has: of blocks in use where the allocator's map is known. Their sums are
/// the categories of [`breakdown`].
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

/// Sums by device; a device without tensors but with blocks is there too.
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
        let sums = &mut devices.entry(device).or_default().in_python;
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
        let kept = |row: &TensorRow| !row.saved.is_empty() || row.object.is_some() && !row.garbage;
        let mut rows = group.tensors.iter().map(|&tensor| &snapshot.tensors[tensor]);
        if rows.clone().any(|row| row.garbage) && !rows.any(kept) {
            sums.garbage.add(held);
        }
    }
    for (device, blocks) in blocks {
        let sums = devices.entry(device).or_default();
        for (block, used) in blocks.blocks {
            match (block.state, used) {
                (BlockState::PendingFree, _) => sums.pending_free.add(block.size),
                (_, 0) => sums.without_tensor.add(block.size),
                (_, used) => sums.rounding += block.size - used,
            }
        }
    }
    devices
}

fn cuda(device: CudaIndex) -> TensorDevice {
    TensorDevice { kind: 1, index: u8::try_from(device.0).ok() }
}

impl OwnedBytes {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.storages += 1;
    }
}

/// What the allocators of all devices have in use.
pub struct InUse(BTreeMap<TensorDevice, ActiveBlocks>);

impl InUse {
    /// By these maps.
    pub fn new(snapshots: &[AllocatorSnapshot]) -> InUse {
        InUse(
            snapshots
                .iter()
                .map(|snapshot| (cuda(snapshot.device), ActiveBlocks::new(snapshot)))
                .collect(),
        )
    }

    /// Whether a storage at `data` has memory that is in use; true for devices without a map.
    pub fn holds(&self, device: TensorDevice, data: u64) -> bool {
        self.0.get(&device).is_none_or(|blocks| blocks.find(data).is_some())
    }
}

/// Where a storage lies.
enum StorageLocation {
    /// In a block, so many bytes of which are its own.
    Block(u64),
    /// In what a private pool keeps: graphs write there without asking the allocator.
    Pool,
    Elsewhere,
}

/// The blocks in use of a device, by address, and how much of each its tensors account for.
struct ActiveBlocks {
    blocks: Vec<(Block, u64)>,
    /// Begin and end of the segments of private pools.
    pools: Vec<(u64, u64)>,
}

impl ActiveBlocks {
    fn new(snapshot: &AllocatorSnapshot) -> ActiveBlocks {
        let in_use = snapshot.blocks().filter(|(_, block)| block.state != BlockState::Inactive);
        let mut blocks: Vec<(Block, u64)> = in_use.map(|(_, block)| (*block, 0)).collect();
        blocks.sort_unstable_by_key(|(block, _)| block.address);
        let private = snapshot.segments.iter().filter(|segment| segment.pool != PoolId::default());
        let pools = private.map(|segment| (segment.address, segment.address + segment.size));
        ActiveBlocks { blocks, pools: pools.collect() }
    }

    /// The index of the block that `data` lies in.
    fn find(&self, data: u64) -> Option<usize> {
        let after = self.blocks.partition_point(|(block, _)| block.address <= data);
        let (block, _) = self.blocks.get(after.checked_sub(1)?)?;
        (data < block.address + block.size).then_some(after - 1)
    }

    /// Gives a storage its bytes of the block it lies in.
    fn insert(&mut self, data: u64, bytes: u64) -> StorageLocation {
        match self.find(data).and_then(|index| self.blocks.get_mut(index)) {
            Some((block, used)) if block.state == BlockState::Allocated => {
                let held = bytes.min(block.size - *used);
                *used += held;
                StorageLocation::Block(held)
            }
            None if self.pools.iter().any(|&(begin, end)| (begin..end).contains(&data)) => {
                StorageLocation::Pool
            }
            _ => StorageLocation::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DType, Nanos, Segment, SnapshotConsistency, TensorInfo};

    fn tensor(
        at: u64,
        data: u64,
        bytes: u64,
        category: TensorCategory,
        name: Option<&str>,
    ) -> TensorRow {
        TensorRow {
            tensor: TensorInfo {
                at,
                class: "TensorImpl".into(),
                storage: Some(Storage { at: data + 1, data, bytes: Some(bytes) }),
                shape: Some(vec![bytes as i64 / 4]),
                strides: Some(vec![1]),
                nested: None,
                numel: Some(bytes as i64 / 4),
                dtype: DType(6),
                device: Some(cuda(CudaIndex(0))),
                offset: 0,
                version: Some(0),
                requires_grad: false,
                grad_fn: None,
                grad: None,
                parts: Vec::new(),
                part_names: &[],
            },
            object: None,
            python_class: None,
            category,
            names: name.map(Into::into).into_iter().collect(),
            saved: Vec::new(),
            made_by: None,
            garbage: false,
        }
    }

    #[test]
    fn what_is_held_adds_up_to_what_is_allocated() {
        let block = |address, size, state| Block { address, size, requested: size, state };
        let snapshot = OwnershipSnapshot {
            tensors: vec![
                tensor(1, 0x1000, 1000, TensorCategory::Other, None),
                tensor(2, 0x1000, 1000, TensorCategory::Parameter, Some("weight")),
                TensorRow {
                    made_by: Some("AddBackward0".into()),
                    ..tensor(3, 0x2000, 512, TensorCategory::Other, None)
                },
                // Foreign memory.
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
