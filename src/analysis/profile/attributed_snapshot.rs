//! The memory of a device at the moment of a snapshot, with who made each block.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::BlockAttribution;
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
    /// Bytes allocated: the sum of the blocks, or the counter's value where the map is degraded and
    /// the counter is greater.
    pub allocated: u64,
    /// Sum of the allocated blocks in the map, in bytes.
    pub in_blocks: u64,
    /// Sum of the segments, in bytes.
    pub reserved: u64,
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
    /// Addresses of those that are older than the recording and have no owner, with their indices in the list.
    pub(in crate::analysis) ownerless: Vec<(u64, u32)>,
}

impl AttributedSnapshot {
    /// Bytes in the allocator's cache: reserved, but neither allocated nor waiting to be freed.
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.in_blocks).saturating_sub(self.pending_free)
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
