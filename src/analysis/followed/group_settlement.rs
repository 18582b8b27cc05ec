//! What the map at the end of a replay says of the blocks of one group: which are alive, and at which address.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::BlockAttribution;
use crate::analysis::followed::follow_replay::GroupAddresses;
use crate::analysis::followed::replayed_group::{BlockSource, GroupReplay};

impl GroupReplay {
    /// Gives the addresses of a batch that are left to the blocks of it that are alive.
    pub(super) fn settle_addresses(
        &mut self,
        known: &[(u64, Arc<BlockAttribution>)],
        attributions: &mut FxHashMap<u64, Arc<BlockAttribution>>,
    ) {
        let mut alive: FxHashSet<u64> = FxHashSet::default();
        let mut homeless: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for (at, block) in self.live.iter().enumerate() {
            let BlockSource::Snapshot(address) = block.from else { continue };
            if block.is_gone && !block.attribution.certain {
                homeless.entry(block.batch).or_default().push(at);
            } else {
                alive.insert(address);
            }
        }
        for (address, old) in known {
            if old.certain || alive.contains(address) {
                continue;
            }
            let of_batch = self.batches.get(address).and_then(|batch| homeless.get_mut(batch));
            if let Some(block) = of_batch.and_then(Vec::pop).and_then(|at| self.live.get_mut(at)) {
                block.from = BlockSource::Snapshot(*address);
                block.is_gone = false;
                attributions.insert(*address, block.charge());
            }
        }
    }

    /// Blocks whose address is known have it in the map.
    pub(super) fn settle_given(
        &mut self,
        addresses: &mut GroupAddresses,
        attributions: &mut FxHashMap<u64, Arc<BlockAttribution>>,
    ) {
        let mut given: FxHashMap<u64, Arc<BlockAttribution>> = FxHashMap::default();
        self.live.retain(|block| {
            let (BlockSource::Change(_), Some(address)) = (block.from, block.given) else {
                return true;
            };
            given.insert(address, block.charge());
            false
        });
        let mut settle = |address: u64| {
            let charge = given.remove(&address);
            let is_given = charge.is_some();
            attributions.extend(charge.map(|charge| (address, charge)));
            is_given
        };
        addresses.new.retain(|address| !settle(*address));
        addresses.known.retain(|(address, _)| !settle(*address));
    }
}
