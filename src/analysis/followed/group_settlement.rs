//! What the map at the end of a replay says of the blocks of one group: which are alive, and at which address.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::block_attribution::BlockAttribution;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::follow_replay::GroupAddresses;
use crate::analysis::followed::free_sites::FreeSites;
use crate::analysis::followed::replayed_group::{
    BlockSource, GivenAddress, GroupReplay, ReplayedBlock,
};

impl GroupReplay {
    /// Blocks of the map before that must have been freed and were not: in their place others were taken, which are alive.
    pub(super) fn revive(&mut self, group: BlockGroup, sites: &FreeSites) {
        let mut wrong: Vec<(bool, u64, usize)> = Vec::new();
        for (at, free) in self.frees.iter().enumerate() {
            let BlockSource::Change(_) = free.block.from else { continue };
            if free.is_seen {
                continue;
            }
            let usual = sites.usual(group, &free.site);
            let is_usual = usual.is_some() && free.block.attribution.only_stack() == usual;
            let age = free.time.saturating_sub(free.block.attribution.allocated_at);
            wrong.push((!is_usual, age, at));
        }
        wrong.sort_unstable();
        while let Some(at) =
            self.live.iter().rposition(|block| block.is_from_map() && self.can_free(block))
        {
            let Some((_, _, free)) = wrong.pop() else { break };
            let Some(site) = self.frees.get(free).map(|free| free.site) else { break };
            let usual = sites.usual(group, &site);
            let batch = self.live[at].batch;
            let is_usual = |block: &ReplayedBlock| {
                block.is_from_map()
                    && block.batch == batch
                    && usual.is_some()
                    && block.attribution.only_stack() == usual
                    && !block.attribution.certain
            };
            let at = if self.live[at].attribution.certain {
                at
            } else {
                self.live.iter().rposition(is_usual).unwrap_or(at)
            };
            let mut block = self.live.remove(at);
            self.take_address(&block);
            if let Some(free) = self.frees.get_mut(free) {
                std::mem::swap(&mut free.block, &mut block);
            }
            self.live.push(block);
        }
        self.live.sort_by_key(|block| block.attribution.allocated_at);
    }

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
                attributions.insert(*address, block.attribution.uncertain());
            }
        }
    }

    /// Blocks whose address is known have it in the map.
    pub(super) fn settle_given(
        &mut self,
        addresses: &mut GroupAddresses,
        is_known: bool,
        attributions: &mut FxHashMap<u64, Arc<BlockAttribution>>,
    ) {
        let mut given: FxHashMap<u64, Arc<BlockAttribution>> = FxHashMap::default();
        self.live.retain(|block| {
            let (BlockSource::Change(_), Some(GivenAddress { address, is_sure })) =
                (block.from, block.given)
            else {
                return true;
            };
            let is_certain = is_sure && is_known;
            let charge =
                if is_certain { block.attribution.clone() } else { block.attribution.uncertain() };
            given.insert(address, charge);
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
