//! What a look at holders adds up to, device by device.
//!
//! Every allocated block of a device belongs to one category, or to no tensor. The tensors' bytes by category, what rounding
//! adds to them, and the blocks of no tensor are together what the allocator counts as allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::blocks::{Block, BlockMap, BlockState, PoolId};
use super::gpu::CudaIndex;
use super::holders::{Category, HolderMap, TensorRow};
use super::record::Nanos;
use super::tensors::{Storage, TensorDevice};

/// Bytes and number of the storages of a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
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
pub struct DeviceHoldings {
    /// The tensors' bytes by category; a storage counts once, in the first of its categories.
    pub by_category: BTreeMap<Category, Held>,
    /// Bytes and storages among these without any name, and kept by no node.
    pub unnamed: Held,
    /// Storages among these that only garbage holds: `gc.collect()` would free them.
    pub garbage: Held,
    /// Bytes that `torch.cuda.empty_cache()` would return: [`BlockMap::releasable`].
    pub releasable: u64,
    /// What the allocator added to the bytes asked for.
    pub rounding: u64,
    /// Allocated blocks that no tensor was found in: work spaces, tensors that only C++ holds.
    pub without_tensor: Held,
    /// Freed by the program, while another stream may still use them.
    pub pending_free: Held,
    /// Storages in private pools where the allocator has no block in use: what a CUDA graph made when it was replayed.
    pub in_pools: Held,
    /// Storages in no block: memory of other libraries, or shared by another process.
    pub elsewhere: Held,
    /// `allocated_bytes` by the blocks; `None` for devices without PyTorch's native CUDA allocator.
    pub allocated: Option<u64>,
    /// Its tensors as Python counts them.
    pub in_python: PythonTensors,
}

impl DeviceHoldings {
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
    pub category: Category,
    /// Indices of its tensors in [`HolderMap::tensors`], the best named first.
    pub tensors: Vec<usize>,
}

impl StorageGroup {
    /// [`Storage::memory`].
    pub fn bytes(&self) -> u64 {
        self.storage.memory()
    }
}

/// Storages with the same holder, or the memory of a cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldStorages {
    /// What they are for.
    pub category: Category,
    /// Who holds them: the best name, or the node that keeps them.
    pub holder: Arc<str>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// A device's memory by holder at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldOnDevice {
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
    pub held: Vec<HeldStorages>,
}

/// The CUDA memory of a process by holder at one moment: what a recording keeps of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderSnapshot {
    /// When this was recorded.
    pub time: Nanos,
    /// For how long; `None` when it ran on.
    pub pause: Option<Nanos>,
    /// Its devices.
    pub devices: Vec<HeldOnDevice>,
    /// How long before `time` the process was stopped: a look is recorded when it has been understood.
    pub age: Nanos,
    /// Blocks that no name tells of, so that who made them can be looked up; only in exact recordings.
    pub nameless: Vec<NamelessBlock>,
}

/// Memory that no variable, module or optimizer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamelessBlock {
    /// Index of its device in [`HolderSnapshot::devices`].
    pub device: u32,
    /// Index of its holder in [`HeldOnDevice::held`]; `None` for a block in no tensor.
    pub held: Option<u32>,
    /// Its address.
    pub address: u64,
    /// Bytes of it that count to the holder.
    pub bytes: u64,
}

/// Nameless blocks kept of one look; more are left without makers.
const MOST_NAMELESS: usize = 1 << 16;

/// What a recording keeps of a look at `time`.
pub fn snapshot(map: &HolderMap, time: Nanos) -> HolderSnapshot {
    let mut devices: BTreeMap<TensorDevice, (HeldOnDevice, Blocks)> = BTreeMap::new();
    for blocks in &map.blocks {
        let on_device = HeldOnDevice {
            device: blocks.device,
            allocated: blocks.allocated(),
            rounding: 0,
            without_tensor: 0,
            results: Some(0),
            held: Vec::new(),
        };
        devices.insert(cuda(blocks.device), (on_device, Blocks::new(blocks)));
    }
    let mut known: FxHashMap<(TensorDevice, Category, Arc<str>), usize> = FxHashMap::default();
    let mut nameless = Vec::new();
    for group in storages(map) {
        let Some((on_device, blocks)) = devices.get_mut(&group.device) else { continue };
        let Place::Block(bytes @ 1..) = blocks.take(group.storage.data, group.bytes()) else {
            continue;
        };
        let holder: Arc<str> = holder(map, &map.tensors[group.tensors[0]]).into();
        let held = &mut on_device.held;
        let key = (group.device, group.category, holder.clone());
        let index = *known.entry(key).or_insert_with(|| {
            held.push(HeldStorages { category: group.category, holder, bytes: 0, count: 0 });
            held.len() - 1
        });
        held[index].bytes += bytes;
        held[index].count += 1;
        let is_result = |&tensor: &usize| map.tensors[tensor].made_by.is_some();
        if group.category == Category::Other && group.tensors.iter().any(is_result) {
            *on_device.results.get_or_insert(0) += bytes;
        }
        if group.tensors.iter().all(|&tensor| map.tensors[tensor].names.is_empty()) {
            let address = group.storage.data;
            nameless.push((group.device, Some(index as u32), address, bytes));
        }
    }
    let places: FxHashMap<TensorDevice, u32> = devices.keys().copied().zip(0..).collect();
    let finished = devices.into_iter().map(|(device, (mut on_device, blocks))| {
        for (block, used) in blocks.blocks {
            match (block.state, used) {
                (BlockState::PendingFree, _) => {}
                (_, 0) => {
                    on_device.without_tensor += block.size;
                    nameless.push((device, None, block.address, block.size));
                }
                (_, used) => on_device.rounding += block.size - used,
            }
        }
        on_device
    });
    HolderSnapshot {
        time,
        pause: map.pause.map(|pause| Nanos(pause.as_nanos() as u64)),
        devices: finished.collect(),
        age: Nanos(0),
        nameless: nameless
            .into_iter()
            .filter_map(|(device, held, address, bytes)| {
                Some(NamelessBlock { device: *places.get(&device)?, held, address, bytes })
            })
            .take(MOST_NAMELESS)
            .collect(),
    }
}

/// The best that can be said of who holds a tensor.
pub fn holder(map: &HolderMap, row: &TensorRow) -> String {
    if let Some(name) = row.names.first() {
        return name.to_string();
    }
    if let Some(saved) = row.saved.first() {
        return format!("[saved by {}]", map.nodes[saved.node].class);
    }
    match (&row.made_by, &row.python_class) {
        (Some(node), _) => format!("[result of {node}]"),
        (None, Some(class)) => format!("[a {class} without a name]"),
        (None, None) => "[without a name]".to_owned(),
    }
}

/// The storages of a look, the largest first; those on the same bytes are one.
pub fn storages(map: &HolderMap) -> Vec<StorageGroup> {
    let mut groups: Vec<StorageGroup> = Vec::new();
    let mut known: FxHashMap<(TensorDevice, u64), usize> = FxHashMap::default();
    for (index, row) in map.tensors.iter().enumerate() {
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
        group.tensors.sort_by_key(|&index| worth(&map.tensors[index], index));
    }
    groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes()), group.tensors[0]));
    groups
}

/// What says most about a storage comes first: a name, an object, the whole of it.
fn worth(row: &TensorRow, index: usize) -> impl Ord + use<> {
    let whole = row.tensor.storage.and_then(|storage| storage.bytes) == row.tensor.logical_bytes();
    (row.names.is_empty(), row.category, row.object.is_none(), !whole, index)
}

/// Sums by device; a device without tensors but with blocks is there too.
pub fn holdings(map: &HolderMap) -> BTreeMap<TensorDevice, DeviceHoldings> {
    let mut devices: BTreeMap<TensorDevice, DeviceHoldings> = BTreeMap::new();
    let mut blocks: BTreeMap<TensorDevice, Blocks> = BTreeMap::new();
    for map in &map.blocks {
        let device = cuda(map.device);
        let sums = devices.entry(device).or_default();
        sums.allocated = Some(map.allocated());
        sums.releasable = map.releasable();
        blocks.insert(device, Blocks::new(map));
    }
    for row in map.tensors.iter().filter(|row| row.object.is_some()) {
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
    for group in storages(map) {
        let sums = devices.entry(group.device).or_default();
        let bytes = group.bytes();
        if bytes == 0 || group.device.is_meta() {
            continue;
        }
        let held = match blocks.get_mut(&group.device) {
            None => bytes,
            Some(blocks) => match blocks.take(group.storage.data, bytes) {
                Place::Block(held) => held,
                Place::Pool => {
                    sums.in_pools.add(bytes);
                    continue;
                }
                Place::Elsewhere => {
                    sums.elsewhere.add(bytes);
                    continue;
                }
            },
        };
        sums.by_category.entry(group.category).or_default().add(held);
        let first = &map.tensors[group.tensors[0]];
        if first.names.is_empty() && group.tensors.iter().all(|&t| map.tensors[t].saved.is_empty())
        {
            sums.unnamed.add(held);
        }
        let kept = |row: &TensorRow| !row.saved.is_empty() || row.object.is_some() && !row.garbage;
        let mut rows = group.tensors.iter().map(|&tensor| &map.tensors[tensor]);
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

impl Held {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.storages += 1;
    }
}

/// What the allocators of all devices have in use.
pub struct InUse(BTreeMap<TensorDevice, Blocks>);

impl InUse {
    /// By these maps.
    pub fn of(maps: &[BlockMap]) -> InUse {
        InUse(maps.iter().map(|map| (cuda(map.device), Blocks::new(map))).collect())
    }

    /// Whether a storage at `data` has memory that is in use; true for devices without a map.
    pub fn holds(&self, device: TensorDevice, data: u64) -> bool {
        self.0.get(&device).is_none_or(|blocks| blocks.find(data).is_some())
    }
}

/// Where a storage lies.
enum Place {
    /// In a block, so many bytes of which are its own.
    Block(u64),
    /// In what a private pool keeps: graphs write there without asking the allocator.
    Pool,
    Elsewhere,
}

/// The blocks in use of a device, by address, and how much of each its tensors account for.
struct Blocks {
    blocks: Vec<(Block, u64)>,
    /// Begin and end of the segments of private pools.
    pools: Vec<(u64, u64)>,
}

impl Blocks {
    fn new(map: &BlockMap) -> Blocks {
        let in_use = map.blocks().filter(|(_, block)| block.state != BlockState::Inactive);
        let mut blocks: Vec<(Block, u64)> = in_use.map(|(_, block)| (*block, 0)).collect();
        blocks.sort_unstable_by_key(|(block, _)| block.address);
        let private = map.segments.iter().filter(|segment| segment.pool != PoolId::default());
        let pools = private.map(|segment| (segment.address, segment.address + segment.size));
        Blocks { blocks, pools: pools.collect() }
    }

    /// The index of the block that `data` lies in.
    fn find(&self, data: u64) -> Option<usize> {
        let after = self.blocks.partition_point(|(block, _)| block.address <= data);
        let (block, _) = self.blocks.get(after.checked_sub(1)?)?;
        (data < block.address + block.size).then_some(after - 1)
    }

    /// Gives a storage its bytes of the block it lies in.
    fn take(&mut self, data: u64, bytes: u64) -> Place {
        match self.find(data).and_then(|index| self.blocks.get_mut(index)) {
            Some((block, used)) if block.state == BlockState::Allocated => {
                let held = bytes.min(block.size - *used);
                *used += held;
                Place::Block(held)
            }
            None if self.pools.iter().any(|&(begin, end)| (begin..end).contains(&data)) => {
                Place::Pool
            }
            _ => Place::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, DType, Nanos, Segment, TensorInfo};

    fn tensor(at: u64, data: u64, bytes: u64, category: Category, name: Option<&str>) -> TensorRow {
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
        let map = HolderMap {
            tensors: vec![
                tensor(1, 0x1000, 1000, Category::Other, None),
                tensor(2, 0x1000, 1000, Category::Parameter, Some("weight")),
                TensorRow {
                    made_by: Some("AddBackward0".into()),
                    ..tensor(3, 0x2000, 512, Category::Other, None)
                },
                // Foreign memory.
                tensor(4, 0x9000, 64, Category::Other, Some("x")),
            ],
            blocks: vec![BlockMap {
                time: Nanos(0),
                device: CudaIndex(0),
                retries: 0,
                consistency: Consistency::Consistent,
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
            ..HolderMap::default()
        };
        let sums = &holdings(&map)[&cuda(CudaIndex(0))];
        assert_eq!(sums.by_category[&Category::Parameter], Held { bytes: 1000, storages: 1 });
        assert_eq!(sums.by_category[&Category::Other], Held { bytes: 512, storages: 1 });
        assert_eq!(sums.unnamed, Held { bytes: 512, storages: 1 });
        assert_eq!((sums.rounding, sums.without_tensor.bytes), (24, 2048));
        assert_eq!((sums.pending_free.bytes, sums.elsewhere.bytes), (512, 64));
        let all = sums.in_tensors() + sums.rounding + sums.without_tensor.bytes;
        assert_eq!(Some(all), sums.allocated);
        assert_eq!(storages(&map)[0].tensors, [1, 0]);

        let kept = &snapshot(&map, Nanos(7)).devices[0];
        assert_eq!((kept.allocated, kept.rounding, kept.without_tensor), (all, 24, 2048));
        assert_eq!(kept.results, Some(512));
        let held: Vec<_> = kept.held.iter().map(|h| (h.category, &*h.holder, h.bytes)).collect();
        let parameter = (Category::Parameter, "weight", 1000);
        assert_eq!(held, [parameter, (Category::Other, "[result of AddBackward0]", 512)]);
    }
}
