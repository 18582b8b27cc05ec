//! Replays the followed changes between two maps: which blocks of the first were freed, and who
//! allocated those of the second.
//!
//! The counters tell how many blocks were allocated and freed, and how large they were, but not
//! which. Of the blocks of one group (pool, size, bytes asked for) `replayed_group.rs` tells which
//! is freed most likely. A change of several blocks is replayed as the changes that it is likely to
//! have been (`repeated_steps.rs`). All of this is likely; `proof.rs` says what is proven.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};
use crate::analysis::followed::free_sites::{CheckedFrees, FreeChoice, FreeSite, FreeSites};
use crate::analysis::followed::freed_groups::{FreedGroups, PoolFrees};
use crate::analysis::followed::highest_moment::{AliveBlock, FreeSign};
use crate::analysis::followed::pool_change::{MAX_AT_ONCE, PoolChange, even_group, sole_group};
use crate::analysis::followed::replayed_group::{
    BlockSource, FreeMoment, GroupReplay, ReplayedBlock, ReplayedFree,
};
use crate::model::Pool;

/// A block of the map with which a replay begins.
#[derive(Debug, Clone)]
pub(in crate::analysis) struct SnapshotBlock {
    pub(in crate::analysis) group: BlockGroup,
    pub(in crate::analysis) address: u64,
    pub(in crate::analysis) attribution: Arc<BlockAttribution>,
    /// Between which maps it was allocated.
    pub(in crate::analysis) batch: usize,
    /// Whether several maps had it in its place: then it was most likely never freed.
    pub(in crate::analysis) lasts: bool,
    /// Whether the map with which the replay ends does not have it: what was at its address was
    /// freed for sure.
    pub(in crate::analysis) is_gone: bool,
}

/// The blocks of one group in the map that ends the replay.
#[derive(Debug, Default)]
pub(in crate::analysis) struct GroupAddresses {
    /// Those that the map before had as well.
    pub(in crate::analysis) known: Vec<(u64, Arc<BlockAttribution>)>,
    /// The others.
    pub(in crate::analysis) new: Vec<u64>,
}

/// What a replay found out.
#[derive(Debug, Default)]
pub(in crate::analysis) struct ReplayResult {
    /// Blocks whose attribution is another than before.
    pub(in crate::analysis) attributions: FxHashMap<u64, Arc<BlockAttribution>>,
    /// New blocks of which no single allocation is known.
    pub(in crate::analysis) unexplained: Vec<(BlockGroup, u64)>,
    /// What was freed where.
    pub(in crate::analysis) freed: Vec<(BlockGroup, FreeSite, AllocationOrigin)>,
    /// Frees that may have been of a block with another origin.
    pub(in crate::analysis) choices: Vec<(BlockGroup, FreeChoice)>,
    /// How often the youngest of several blocks was freed.
    pub(in crate::analysis) checked: CheckedFrees,
}

impl ReplayResult {
    fn add_frees(&mut self, group: BlockGroup, frees: Vec<ReplayedFree>) {
        for ReplayedFree { block, site, time, is_open, .. } in frees {
            let freed = block.attribution;
            self.freed.extend(freed.only_stack().map(|origin| (group, site, origin)));
            if is_open && site != [None; 2] {
                self.choices.push((group, FreeChoice { site, time, freed }));
            }
        }
    }
}

/// A replay under way.
#[derive(Debug)]
pub(in crate::analysis) struct FollowReplay<'a> {
    pub(super) sites: &'a FreeSites,
    pub(super) groups: FxHashMap<BlockGroup, GroupReplay>,
    /// The group of the block at each address, where that is known.
    pub(super) places: FxHashMap<u64, BlockGroup>,
    pub(super) changes: usize,
    /// The change of the recording that is replayed.
    pub(super) step: usize,
    pub(super) last: Option<usize>,
    freed: FreedGroups,
    /// How often the youngest of several blocks was freed.
    pub(super) checked: CheckedFrees,
    /// Whether addresses were read.
    pub(super) is_addressed: bool,
}

impl<'a> FollowReplay<'a> {
    /// Begins with the blocks of a map.
    pub(in crate::analysis) fn new(
        blocks: impl Iterator<Item = SnapshotBlock>,
        sites: &'a FreeSites,
    ) -> FollowReplay<'a> {
        let mut groups: FxHashMap<BlockGroup, GroupReplay> = FxHashMap::default();
        let mut places = FxHashMap::default();
        for SnapshotBlock { group, address, attribution, batch, lasts, is_gone } in blocks {
            let from = BlockSource::Snapshot(address);
            let (returned, given, doubted) = (None, None, attribution.doubted);
            let block = ReplayedBlock {
                from,
                attribution,
                returned,
                is_gone,
                batch,
                lasts,
                given,
                doubted,
            };
            let of_group = groups.entry(group).or_default();
            if is_gone && !block.attribution.certain {
                *of_group.gone.entry(batch).or_default() += 1;
            }
            of_group.batches.insert(address, batch);
            places.insert(address, group);
            of_group.live.push(block);
        }
        for group in groups.values_mut() {
            group.live.sort_by_key(|block| (block.attribution.allocated_at, block.address()));
        }
        FollowReplay {
            sites,
            groups,
            places,
            changes: 0,
            step: 0,
            last: None,
            freed: FreedGroups::default(),
            checked: CheckedFrees::default(),
            is_addressed: false,
        }
    }

    /// Takes the next change.
    pub(in crate::analysis) fn change(&mut self, change: &[PoolChange<'_>]) {
        self.step += 1;
        self.apply(change);
    }

    /// Takes the next change, of which is not known but likely what happened in it, in order.
    pub(in crate::analysis) fn guessed_changes(&mut self, parts: &[[PoolChange<'_>; 2]]) {
        self.step += 1;
        for part in parts {
            self.apply(part);
        }
    }

    fn apply(&mut self, change: &[PoolChange<'_>]) {
        self.changes += 1;
        for pool in change {
            self.allocate(pool);
        }
        for pool in change {
            self.free(pool);
        }
    }

    /// Takes what was allocated in one pool.
    fn allocate(&mut self, change: &PoolChange<'_>) {
        let count = change.delta.allocations;
        if count <= 0 {
            return;
        }
        let Some(group) = even_group(change) else { return };
        // Several blocks of one size, or of sizes that add up to the same.
        if sole_group(change).is_none() && !self.groups.contains_key(&group) {
            return;
        }
        self.last = Some(self.changes);
        let replayed = self.groups.entry(group).or_default();
        for _ in 0..count.min(MAX_AT_ONCE) {
            replayed.push(self.changes, change.attribution.clone(), change.returned);
        }
    }

    fn free(&mut self, change: &PoolChange<'_>) {
        let frees = PoolFrees::new(change.pool, &change.delta);
        let groups = self.freed_groups(change.pool, &frees);
        for group in groups {
            if let Some(replayed) = self.groups.get_mut(&group) {
                let moment = FreeMoment {
                    change: self.step,
                    time: change.attribution.allocated_at,
                    site: change.site,
                    usual: self.sites.usual(group, &change.site),
                    youngest: self.sites.youngest,
                    last: self.last,
                };
                replayed.free(&moment, &mut self.checked);
            }
        }
    }

    /// The groups of what was freed in one pool.
    pub(super) fn freed_groups(&mut self, pool: Pool, frees: &PoolFrees) -> Vec<BlockGroup> {
        let live = |group: &BlockGroup| self.groups.get(group).map_or(0, |g| g.live.len());
        self.freed.find(frees, live, || {
            let youngest = |group: &GroupReplay| {
                group.live.last().map(|block| match block.from {
                    BlockSource::Snapshot(_) => (0, block.attribution.allocated_at),
                    BlockSource::Change(change) => (change, 0),
                })
            };
            let of_pool = self.groups.iter().filter(|(group, _)| group.pool == pool);
            let mut groups: Vec<_> = of_pool
                .filter_map(|(group, replayed)| Some((youngest(replayed)?, *group)))
                .collect();
            groups.sort_unstable_by(|a, b| b.cmp(a));
            groups.into_iter().map(|(_, group)| group).collect()
        })
    }

    /// The blocks alive now, and those freed after `since`, from the oldest to the youngest.
    pub(super) fn alive_since(&self, since: u64) -> Vec<AliveBlock> {
        let of_group = |(&kind, group): (&BlockGroup, &GroupReplay)| {
            let alive = |block: &ReplayedBlock| -> (_, AliveBlock) {
                let sign = |is_one, sign| if is_one { sign } else { FreeSign::None };
                let (age, address, sign) = match block.from {
                    BlockSource::Snapshot(address) => {
                        (0, Some(address), sign(block.is_gone, FreeSign::Gone))
                    }
                    BlockSource::Change(change) => {
                        (change, None, sign(block.given.is_none(), FreeSign::NoAddress))
                    }
                };
                let attribution = block.charge();
                let at = attribution.allocated_at;
                ((age, at, block.address()), AliveBlock { kind, attribution, address, sign })
            };
            let freed = group.frees.iter().filter(|free| free.time > since);
            let freed = freed.map(|free| &free.block);
            group.live.iter().chain(freed).map(alive).collect::<Vec<_>>()
        };
        let mut blocks: Vec<_> = self.groups.iter().flat_map(of_group).collect();
        blocks.sort_by_key(|(age, block)| (*age, block.kind.size, block.kind.requested));
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// Ends it with the blocks of a map.
    pub(in crate::analysis) fn finish(
        mut self,
        blocks: FxHashMap<BlockGroup, GroupAddresses>,
    ) -> ReplayResult {
        let mut result = ReplayResult { checked: self.checked, ..ReplayResult::default() };
        for (group, mut addresses) in blocks {
            let mut replayed = self.groups.remove(&group).unwrap_or_default();
            replayed.settle_addresses(&addresses.known, &mut result.attributions);
            replayed.settle_given(&mut addresses, &mut result.attributions);
            result.add_frees(group, std::mem::take(&mut replayed.frees));
            addresses.new.sort_unstable();
            let (mut made, mut stayed) = (Vec::new(), FxHashSet::default());
            for block in replayed.live {
                match block.from {
                    BlockSource::Change(_) => made.push(block.charge()),
                    BlockSource::Snapshot(address) => {
                        if block.doubted && !block.attribution.doubted {
                            result.attributions.insert(address, block.charge());
                        }
                        stayed.insert(address);
                    }
                }
            }
            // Of the blocks that seem to have been freed, the youngest are the likeliest to be
            // other ones now.
            addresses.known.sort_by_key(|(at, attribution)| {
                (std::cmp::Reverse(attribution.allocated_at), *at)
            });
            let freed = addresses.known.iter().filter(|(address, _)| !stayed.contains(address));
            let wanted = made.len().saturating_sub(addresses.new.len());
            let reused: Vec<u64> = freed.take(wanted).map(|(address, _)| *address).collect();
            made.drain(..made.len().saturating_sub(addresses.new.len() + reused.len()));
            // At an address that the map before had as well there may still be the same block.
            for address in addresses.new.into_iter().chain(reused) {
                match made.pop() {
                    Some(attribution) => drop(result.attributions.insert(address, attribution)),
                    None => result.unexplained.push((group, address)),
                }
            }
        }
        for (group, replayed) in self.groups {
            result.add_frees(group, replayed.frees);
        }
        result
    }
}
