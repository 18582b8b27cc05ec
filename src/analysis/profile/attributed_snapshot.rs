//! The memory of a device at the moment of a snapshot, with who made each block.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::model::{Nanos, SnapshotConsistency};

/// Which moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The highest snapshot recorded.
    Peak,
    /// The last snapshot recorded.
    End,
}

/// A device's memory at the moment of one snapshot, with the charge of every block.
#[derive(Debug, Clone)]
pub struct AttributedSnapshot {
    /// When.
    pub time: Nanos,
    /// Bytes allocated: the sum of the blocks, or the counter's value where the map is degraded.
    pub allocated: u64,
    /// Sum of the blocks, in bytes: no more than what was allocated.
    pub in_blocks: u64,
    /// Sum of the segments, in bytes; `None` of a moment between two maps.
    pub reserved: Option<u64>,
    /// Bytes freed by the program that another stream may still use.
    pub pending_free: u64,
    /// Size of the largest free block, in bytes; 0 when there is none.
    pub largest_free: u64,
    /// Whether the map is one instant's truth.
    pub consistency: SnapshotConsistency,
    /// Bytes of blocks that were there when the recording began.
    pub before_recording: u64,
    /// Whether the allocator was followed.
    pub(crate) followed: bool,
    pub(crate) blocks: Vec<(u64, Arc<BlockAttribution>)>,
    /// Where these lie, of a moment between two maps: `None` for those that were allocated since
    /// the first of them.
    pub(in crate::analysis) addresses: Vec<Option<u64>>,
    /// Addresses of those that are older than the recording and have no owner, with their indices in the list.
    pub(in crate::analysis) ownerless: Vec<(u64, u32)>,
}

impl AttributedSnapshot {
    /// Bytes in the allocator's cache: reserved, but neither allocated nor waiting to be freed. `None` where no map was read.
    pub fn cached(&self) -> Option<u64> {
        let used = self.in_blocks.saturating_add(self.pending_free);
        self.reserved.map(|reserved| reserved.saturating_sub(used))
    }

    /// Bytes of which nobody is known who can have allocated them.
    pub(super) fn not_seen(&self) -> u64 {
        self.blocks.iter().filter(|(_, charge)| charge.is_not_seen()).map(|(size, _)| size).sum()
    }

    /// Adds a block, at its address where that is known.
    pub(super) fn push(&mut self, address: Option<u64>, size: u64, charge: Arc<BlockAttribution>) {
        if charge.allocated_at == 0 {
            self.before_recording += size;
        }
        if let (Some(address), [(AllocationOrigin::Before, _)]) = (address, &charge.shares[..]) {
            self.ownerless.push((address, self.blocks.len() as u32));
        }
        self.blocks.push((size, charge));
    }

    /// Gives blocks without an owner to theirs, by address and size.
    pub(super) fn set_owners(&mut self, owned: &FxHashMap<u64, (u64, Arc<BlockAttribution>)>) {
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

    /// Bytes whose birth the recording saw, and the height to decide between equals.
    pub(super) fn explains(&self) -> (u64, u64) {
        let explained = self.rank().saturating_sub(self.before_recording);
        (explained, self.rank())
    }

    /// Height for comparison: a degraded map has to be 1 % higher than a consistent one to win.
    pub(super) fn rank(&self) -> u64 {
        match self.consistency {
            SnapshotConsistency::Consistent => self.allocated,
            SnapshotConsistency::Degraded { .. } => self.allocated - self.allocated / 100,
        }
    }
}
