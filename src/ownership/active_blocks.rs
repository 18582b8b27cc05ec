//! Blocks in use, and the bytes that tensors cover.

use std::collections::BTreeMap;

use crate::model::{AllocatorSnapshot, Block, BlockState, CudaIndex, PoolId, TensorDevice};

/// The tensors' name of a GPU.
pub fn cuda(device: CudaIndex) -> TensorDevice {
    TensorDevice { kind: 1, index: u8::try_from(device.0).ok() }
}

/// Blocks in use on all devices.
pub struct InUse(BTreeMap<TensorDevice, ActiveBlocks>);

impl InUse {
    /// Collects them from snapshots.
    pub fn new(snapshots: &[AllocatorSnapshot]) -> InUse {
        InUse(
            snapshots
                .iter()
                .map(|snapshot| (cuda(snapshot.device), ActiveBlocks::new(snapshot)))
                .collect(),
        )
    }

    /// Whether a storage's memory is in use; true for devices without a snapshot.
    pub fn holds(&self, device: TensorDevice, data: u64) -> bool {
        self.0.get(&device).is_none_or(|blocks| blocks.find(data).is_some())
    }

    /// Bytes from `data` to the end of its block, or of a private pool's segment; else 0. `None`
    /// for devices without a snapshot.
    pub fn room(&self, device: TensorDevice, data: u64) -> Option<u64> {
        let blocks = self.0.get(&device)?;
        let block = blocks.find(data).and_then(|index| blocks.blocks.get(index));
        let block = block.map(|(block, _)| block.address + block.size);
        let pool = || blocks.pools.iter().find(|(start, end)| (*start..*end).contains(&data));
        let end = block.or_else(|| pool().map(|(_, end)| *end));
        Some(end.map_or(0, |end| end - data))
    }
}

pub(super) enum StorageLocation {
    /// In a block; this many of its bytes belong to the storage.
    Block(u64),
    /// In a private pool's segment, where graphs write without the allocator.
    Pool,
    Elsewhere,
}

/// By address, each with the bytes that tensors cover.
pub(super) struct ActiveBlocks {
    pub(super) blocks: Vec<(Block, u64)>,
    pools: Vec<(u64, u64)>,
}

impl ActiveBlocks {
    pub(super) fn new(snapshot: &AllocatorSnapshot) -> ActiveBlocks {
        let in_use = snapshot.blocks().filter(|(_, block)| block.state != BlockState::Inactive);
        let mut blocks: Vec<(Block, u64)> = in_use.map(|(_, block)| (*block, 0)).collect();
        blocks.sort_unstable_by_key(|(block, _)| block.address);
        let private = snapshot.segments.iter().filter(|segment| segment.pool != PoolId::default());
        let pools = private.map(|segment| (segment.address, segment.address + segment.size));
        ActiveBlocks { blocks, pools: pools.collect() }
    }

    fn find(&self, data: u64) -> Option<usize> {
        let after = self.blocks.partition_point(|(block, _)| block.address <= data);
        let (block, _) = self.blocks.get(after.checked_sub(1)?)?;
        (data < block.address + block.size).then_some(after - 1)
    }

    pub(super) fn address(&self, data: u64) -> Option<u64> {
        Some(self.blocks.get(self.find(data)?)?.0.address)
    }

    pub(super) fn insert(&mut self, data: u64, bytes: u64) -> StorageLocation {
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
