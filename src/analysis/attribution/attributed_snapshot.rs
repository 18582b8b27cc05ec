//! A snapshot, with each block's attribution.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::model::{Nanos, SnapshotConsistency};

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The highest snapshot.
    Peak,
    /// The last snapshot.
    End,
}

/// A device's memory at one moment, in bytes, with the attribution of every block.
#[derive(Debug, Clone)]
pub struct AttributedSnapshot {
    /// Its time.
    pub time: Nanos,
    /// Sum of the blocks, or the counter in an inconsistent snapshot.
    pub allocated: u64,
    /// Sum of the blocks, at most `allocated`.
    pub in_blocks: u64,
    /// Sum of the segments; `None` for a moment between two snapshots.
    pub reserved: Option<u64>,
    /// Freed, but another stream may still use it.
    pub pending_free: u64,
    /// The largest free block, or 0.
    pub largest_free: u64,
    /// Whether it shows one instant.
    pub consistency: SnapshotConsistency,
    /// In blocks older than the recording.
    pub before_recording: u64,
    pub(crate) followed: bool,
    pub(crate) blocks: Vec<(u64, Arc<BlockAttribution>)>,
    /// Addresses, for a moment between two snapshots; `None`: allocated since the first.
    pub(in crate::analysis) addresses: Vec<Option<u64>>,
    /// Address and index of blocks older than the recording without an owner.
    pub(in crate::analysis) ownerless: Vec<(u64, u32)>,
}

impl AttributedSnapshot {
    /// Reserved, but neither allocated nor waiting to be freed; `None` without a snapshot.
    pub fn cached(&self) -> Option<u64> {
        let used = self.in_blocks.saturating_add(self.pending_free);
        self.reserved.map(|reserved| reserved.saturating_sub(used))
    }

    pub(in crate::analysis) fn not_seen(&self) -> u64 {
        self.blocks.iter().filter(|(_, charge)| charge.is_not_seen()).map(|(size, _)| size).sum()
    }

    pub(in crate::analysis) fn push(
        &mut self,
        address: Option<u64>,
        size: u64,
        charge: Arc<BlockAttribution>,
    ) {
        if charge.allocated_at == 0 {
            self.before_recording += size;
        }
        if let (Some(address), [(AllocationOrigin::Before, _)]) = (address, &charge.shares[..]) {
            self.ownerless.push((address, self.blocks.len() as u32));
        }
        self.blocks.push((size, charge));
    }

    pub(in crate::analysis) fn set_owners(
        &mut self,
        owned: &FxHashMap<u64, (u64, Arc<BlockAttribution>)>,
    ) {
        let blocks = &mut self.blocks;
        self.ownerless.retain(|(address, index)| {
            let owned = owned.get(address);
            match owned.zip(blocks.get_mut(*index as usize)) {
                Some(((size, attribution), block)) if block.0 == *size => {
                    block.1 = attribution.clone();
                    false
                }
                _ => true,
            }
        });
    }

    /// Bytes allocated during the recording; between equals, the rank decides.
    pub(in crate::analysis) fn explains(&self) -> (u64, u64) {
        let explained = self.rank().saturating_sub(self.before_recording);
        (explained, self.rank())
    }

    /// Level for comparison: an inconsistent snapshot must be 1 % higher to win.
    pub(in crate::analysis) fn rank(&self) -> u64 {
        match self.consistency {
            SnapshotConsistency::Consistent => self.allocated,
            SnapshotConsistency::Degraded { .. } => self.allocated - self.allocated / 100,
        }
    }
}
