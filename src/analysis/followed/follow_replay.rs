//! Replays the followed changes between two maps: which blocks of the first were freed, and who allocated those of the second.
//!
//! The counters tell how many blocks were allocated and freed, and how large they were, but not which. Of the blocks of one
//! group (pool, size, bytes asked for) `replayed_group.rs` tells which is freed most likely. A change of several blocks is
//! replayed as the changes that it is likely to have been (`repeated_steps.rs`). Certain is only what no choice can change:
//!
//! * the only block of a group that was allocated, where it has a new address;
//! * blocks at new addresses where all allocations of their group were made by one stack, and each of these is certain: which of
//!   several blocks has which address is not known, and would matter when one of them is freed;
//! * a block that the first map had is the same block for sure if nothing of its group was allocated since, or nothing after one
//!   of them was freed.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, CANDIDATES_WITHIN,
};
use crate::analysis::followed::block_places::BlockPlaces;
use crate::analysis::followed::free_sites::{FreeChoice, FreeSite, FreeSites};
use crate::analysis::followed::freed_groups::{FoundFrees, FreedGroups, PoolFrees};
use crate::analysis::followed::highest_moment::{AliveBlock, FreeSign};
use crate::analysis::followed::pool_change::{
    MAX_AT_ONCE, MIN_BLOCK, PoolChange, allocated, even_group, sole_group,
};
use crate::analysis::followed::replayed_group::{
    BlockSource, FreeMoment, GroupReplay, ReplayedBlock, ReplayedFree, Stays,
};
use crate::model::{CounterDelta, Pool};

/// A block of the map with which a replay begins.
#[derive(Debug, Clone)]
pub(in crate::analysis) struct SnapshotBlock {
    pub(in crate::analysis) group: BlockGroup,
    pub(in crate::analysis) address: u64,
    pub(in crate::analysis) attribution: Arc<BlockAttribution>,
    /// Between which maps it was allocated.
    pub(in crate::analysis) batch: usize,
    /// Whether it was freed, if the map with which the replay ends has it.
    pub(in crate::analysis) stays: Stays,
    /// Whether the map with which the replay ends does not have it: what was at its address was freed for sure.
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
    pub(super) places: BlockPlaces,
    /// How many blocks were allocated until now.
    pub(super) allocations: u64,
    pub(super) changes: usize,
    /// The change of the recording that is replayed.
    pub(super) step: usize,
    pub(super) last: Option<usize>,
    freed: FreedGroups,
    /// Allocations that may have been of several groups.
    unclear_allocations: Vec<(Pool, CounterDelta)>,
    /// Frees that may have been of other groups than was taken for likely.
    unclear_frees: Vec<(Pool, CounterDelta)>,
    pub(super) is_open: bool,
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
        let mut places = BlockPlaces::default();
        for SnapshotBlock { group, address, attribution, batch, stays, is_gone } in blocks {
            let from = BlockSource::Snapshot(address);
            let (returned, given) = (None, None);
            let block = ReplayedBlock { from, attribution, returned, is_gone, batch, stays, given };
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
            allocations: 0,
            changes: 0,
            step: 0,
            last: None,
            freed: FreedGroups::default(),
            unclear_allocations: Vec::new(),
            unclear_frees: Vec::new(),
            is_open: false,
            is_addressed: false,
        }
    }

    /// Takes the next change.
    pub(in crate::analysis) fn change(&mut self, change: &[PoolChange<'_>]) {
        self.step += 1;
        self.apply(change);
    }

    /// Takes the next change, of which is not known but likely what happened in it, in order.
    pub(in crate::analysis) fn guessed_changes(
        &mut self,
        change: &[PoolChange<'_>],
        parts: &[[PoolChange<'_>; 2]],
    ) {
        self.step += 1;
        for pool in change {
            self.is_open |= pool.is_open;
            if pool.delta.allocations > 0 {
                self.unclear_allocations.push((pool.pool, pool.delta));
            }
            if pool.delta.frees > 0 {
                self.unclear_frees.push((pool.pool, pool.delta));
            }
        }
        for part in parts {
            self.apply(part);
        }
    }

    fn apply(&mut self, change: &[PoolChange<'_>]) {
        self.changes += 1;
        for pool in change {
            self.is_open |= pool.is_open;
            self.allocate(pool);
        }
        self.allocations = self.allocations.saturating_add(allocated(change));
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
        let Some(group) = even_group(change) else {
            self.unclear_allocations.push((change.pool, change.delta));
            return;
        };
        // Several blocks of one size, or of sizes that add up to the same.
        let is_clear = sole_group(change).is_some();
        if !is_clear {
            if !self.groups.contains_key(&group) {
                self.unclear_allocations.push((change.pool, change.delta));
                return;
            }
            self.unclear_allocations.push((change.pool, change.delta));
        }
        self.last = Some(self.changes);
        let replayed = self.groups.entry(group).or_default();
        for _ in 0..count.min(MAX_AT_ONCE) {
            let attribution =
                if is_clear { change.attribution.clone() } else { change.attribution.uncertain() };
            replayed.allocate(self.changes, attribution, change.returned);
        }
    }

    fn free(&mut self, change: &PoolChange<'_>) {
        let frees = PoolFrees::new(change.pool, &change.delta);
        let Some(found) = self.freed_groups(change.pool, &frees) else { return };
        if !found.is_clear || change.is_open || !self.unclear_allocations.is_empty() {
            self.unclear_frees.push((change.pool, change.delta));
        }
        let unclear = &self.unclear_allocations;
        for group in found.groups {
            if let Some(replayed) = self.groups.get_mut(&group) {
                // Which came first in this change is not known.
                replayed.reused |= replayed.last == Some(self.changes);
                let moment = FreeMoment {
                    change: self.step,
                    time: change.attribution.allocated_at,
                    site: change.site,
                    usual: self.sites.usual(group, &change.site),
                    last: self.last,
                    all_known: &|| most_of(&group, unclear, false) == 0,
                };
                replayed.free(&moment);
            }
        }
    }

    /// The groups of what was freed in one pool; `None` where nothing was.
    pub(super) fn freed_groups(&mut self, pool: Pool, frees: &PoolFrees) -> Option<FoundFrees> {
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

    /// The blocks alive now, and those freed after `since`, from the oldest to the youngest. Certain are those of kinds of which none was freed since
    /// the map before.
    pub(super) fn alive_since(&self, since: u64) -> Vec<AliveBlock> {
        let of_group = |(&kind, group): (&BlockGroup, &GroupReplay)| {
            let none_freed = !self.is_open
                && !group.freed
                && !group.is_doubtful
                && group.frees.is_empty()
                && most_of(&kind, &self.unclear_frees, true) == 0;
            let alive = |block: &ReplayedBlock| -> (_, AliveBlock) {
                let sign = |is_one, sign| if is_one { sign } else { FreeSign::None };
                let is_late = block.attribution.span.is_none_or(|span| span > CANDIDATES_WITHIN);
                let (age, address, sign, is_unseen) = match block.from {
                    BlockSource::Snapshot(address) => {
                        (0, Some(address), sign(block.is_gone, FreeSign::Gone), false)
                    }
                    BlockSource::Change(change) => {
                        (change, None, sign(block.given.is_none(), FreeSign::NoAddress), is_late)
                    }
                };
                let attribution = match block.attribution.certain && !none_freed {
                    true => block.attribution.uncertain(),
                    false => block.attribution.clone(),
                };
                let at = attribution.allocated_at;
                (
                    (age, at, block.address()),
                    AliveBlock { kind, attribution, address, sign, is_unseen },
                )
            };
            let freed = group.frees.iter().filter(|free| free.time > since);
            let freed = freed.map(|free| &free.block);
            group.alive().into_iter().chain(freed).map(alive).collect::<Vec<_>>()
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
        let mut result = ReplayResult::default();
        for (group, mut addresses) in blocks {
            let mut replayed = self.groups.remove(&group).unwrap_or_default();
            replayed.settle_addresses(&addresses.known, &mut result.attributions);
            let unclear = most_of(&group, &self.unclear_allocations, false);
            let freed_unclear = most_of(&group, &self.unclear_frees, true);
            let is_known = !self.is_open && unclear + freed_unclear == 0;
            let [given, elsewhere] = replayed.uncertain_places();
            replayed.settle_given(&mut addresses, is_known, &mut result.attributions);
            let all_new = replayed.allocated == addresses.new.len() as u64
                && unclear == 0
                && !replayed.is_doubtful;
            let none_allocated = replayed.allocated + unclear == 0;
            let none_reused = !replayed.reused && unclear + freed_unclear == 0;
            let all_stayed = (none_allocated || none_reused) && !replayed.is_doubtful;
            let open = self.is_open;
            result.add_frees(group, std::mem::take(&mut replayed.frees));
            addresses.new.sort_unstable();
            let (mut made, mut stayed) = (Vec::new(), FxHashSet::default());
            for block in replayed.live {
                match block.from {
                    BlockSource::Change(_) => made.push(block.attribution),
                    BlockSource::Snapshot(address) => drop(stayed.insert(address)),
                }
            }
            // Of the blocks that seem to have been freed, the youngest are the likeliest to be other ones now.
            addresses.known.sort_by_key(|(at, attribution)| {
                (std::cmp::Reverse(attribution.allocated_at), *at)
            });
            let freed = addresses.known.iter().filter(|(address, _)| !stayed.contains(address));
            let wanted = made.len().saturating_sub(addresses.new.len());
            let reused: Vec<u64> = freed.take(wanted).map(|(address, _)| *address).collect();
            made.drain(..made.len().saturating_sub(addresses.new.len() + reused.len()));
            // Whether who made this block made all of those.
            let made_all = |block: &BlockAttribution, others: &[Option<AllocationOrigin>]| {
                others.iter().all(|of| *of == block.certain_origin())
            };
            for (address, old) in addresses.known.iter().filter(|(a, _)| !reused.contains(a)) {
                let is_same = all_new || all_stayed;
                let same_maker = unclear == 0
                    && !replayed.is_doubtful
                    && replayed.only.is_some()
                    && old.certain_origin() == replayed.only;
                if old.certain && (open || !(is_same || same_maker) || !made_all(old, &given)) {
                    result.attributions.insert(*address, old.uncertain());
                }
            }
            // Which of several has which address is not known; later one of them is freed.
            let is_one = all_new && addresses.new.len() == 1;
            let is_certain = !open && unclear == 0 && (is_one || replayed.only.is_some());
            // At an address that the map before had as well there may still be the same block.
            let new = addresses.new.into_iter().map(|address| (address, is_certain));
            let reused = reused.into_iter().map(|address| (address, false));
            for (address, is_certain) in new.chain(reused) {
                match made.pop() {
                    Some(attribution)
                        if is_certain
                            && made_all(&attribution, &given)
                            && made_all(&attribution, &elsewhere) =>
                    {
                        result.attributions.insert(address, attribution);
                    }
                    Some(attribution) => {
                        result.attributions.insert(address, attribution.uncertain());
                    }
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

/// How many blocks of a group were at most in changes of which it is not clear what they were.
fn most_of(group: &BlockGroup, changes: &[(Pool, CounterDelta)], freed: bool) -> u64 {
    let of_group = changes.iter().filter(|(pool, _)| *pool == group.pool);
    of_group
        .map(|(_, delta)| {
            let (count, bytes) = match freed {
                false => (delta.allocations, delta.allocated_bytes),
                true => (delta.frees, delta.freed_bytes),
            };
            let others = (count.max(1) as u64 - 1).saturating_mul(MIN_BLOCK);
            let room = (bytes.max(0) as u64).saturating_sub(others);
            if room < group.size || group.size == 0 {
                return 0;
            }
            (bytes.max(0) as u64 / group.size).min(count.max(0) as u64)
        })
        .fold(0, u64::saturating_add)
}
