//! One device where the allocator was followed: its changes are kept until the next map, which they explain.

use rustc_hash::FxHashMap;

use super::{DeviceProfile, LiveBlock, SnapshotBlocks};
use crate::analysis::attribution::counter_intervals::PerPool;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::autograd::EngineFrames;
use crate::analysis::followed::NewBlock;
use crate::model::{FollowedChange, Pool, SnapshotConsistency, StackTable};

impl DeviceProfile {
    /// Takes a followed change. Stacks that it names have to be defined.
    pub(crate) fn follow(
        &mut self,
        change: &FollowedChange,
        stacks: &StackTable,
        engine: &EngineFrames,
    ) {
        self.followed.get_or_insert_default().push(change, stacks, engine);
    }

    /// Forgets the followed changes that the map has told of.
    pub(super) fn forget_changes(&mut self, snapshot: &SnapshotBlocks) {
        let Some(followed) = &mut self.followed else { return };
        match snapshot.consistency {
            SnapshotConsistency::Consistent => {
                let until = followed.until_map(snapshot.time.0, live_bytes(&snapshot.blocks));
                followed.forget(&until);
            }
            // A block overlooked now and seen next time may have been born before this map.
            SnapshotConsistency::Degraded { .. } => {
                followed.forget_before(self.last_snapshot.map_or(snapshot.time.0, |t| t.0));
            }
        }
    }

    /// Charges the new blocks of a map by the followed changes.
    pub(super) fn charge_followed(&mut self, snapshot: &mut SnapshotBlocks) {
        let Some(followed) = &self.followed else { return };
        let until = followed.until_map(snapshot.time.0, live_bytes(&snapshot.blocks));
        let mut before: FxHashMap<BlockGroup, u64> = FxHashMap::default();
        for block in self.living.values().chain(self.overlooked.values()) {
            *before.entry(block.kind).or_default() += 1;
        }
        let mut lived_on: FxHashMap<BlockGroup, u64> = FxHashMap::default();
        let known = snapshot.blocks.iter().filter(|(_, block)| block.attribution.is_some());
        let mut youngest: Vec<(u64, u64)> = Vec::new();
        for (&address, block) in known {
            *lived_on.entry(block.kind).or_default() += 1;
            youngest.push((
                block.attribution.as_ref().map_or(0, |charge| charge.allocated_at),
                address,
            ));
        }
        let mut reborn = until.reborn(&before, &lived_on);
        youngest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, address) in youngest {
            let Some(block) = snapshot.blocks.get_mut(&address) else { continue };
            if let Some(left) = reborn.get_mut(&block.kind).filter(|left| **left > 0) {
                *left -= 1;
                block.attribution = None;
            }
        }
        let mut kept: PerPool = [0; 3];
        let mut new = Vec::new();
        for (&address, block) in &snapshot.blocks {
            if block.attribution.is_none() {
                new.push(NewBlock { kind: block.kind, address });
            } else {
                kept[0] += block.kind.size as i64;
                kept[block.kind.pool as usize] += block.kind.size as i64;
            }
        }
        let charges = until.charge(&new, kept);
        for (address, charge) in charges {
            if let Some(block) = snapshot.blocks.get_mut(&address) {
                block.attribution = Some(charge);
            }
        }
        for block in snapshot.blocks.values_mut() {
            let likely =
                block.attribution.as_ref().and_then(|charge| followed.likely(block.kind, charge));
            if let Some(charge) = likely {
                block.attribution = Some(charge);
            }
        }
    }
}

/// Bytes allocated in the small and in the large pool.
fn live_bytes(blocks: &FxHashMap<u64, LiveBlock>) -> [i64; 2] {
    let of = |pool| {
        let sizes = blocks.values().filter(|b| b.kind.pool == pool).map(|b| b.kind.size as i64);
        sizes.sum()
    };
    [of(Pool::Small), of(Pool::Large)]
}
