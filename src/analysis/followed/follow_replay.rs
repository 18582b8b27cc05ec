//! Replays the followed changes between two maps: which blocks of the first were freed, and who allocated those of the second.
//!
//! The counters tell how many blocks were allocated and freed, and how large they were, but not which. So of the blocks of one
//! group (pool, size, bytes asked for) it is *likely* that the youngest is freed, except for the one that the last allocation
//! made just now: `x = f(x)` allocates its result before it drops what `x` was. Certain is only what no choice can change:
//!
//! * the only block of a group that was allocated, where it has a new address;
//! * blocks at new addresses where all allocations of their group were made by one stack, and each of these is certain: which of
//!   several blocks has which address is not known, and would matter when one of them is freed;
//! * a block that the first map had is the same block for sure if nothing of its group was allocated since, or nothing after one
//!   of them was freed.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::freed_groups::{FreedGroups, PoolFrees};
use crate::model::{CounterDelta, Pool};

/// The smallest block there is, in bytes.
pub(in crate::analysis) const MIN_BLOCK: u64 = 512;
/// For this many nanoseconds after it was allocated a block is taken to be in use if nothing else was allocated since.
const IN_USE_FOR: u64 = 100_000;
/// Blocks of one change that are followed one by one.
const MAX_AT_ONCE: i64 = 1 << 12;

/// What one followed change did to one pool.
#[derive(Debug, Clone, Copy)]
pub(in crate::analysis) struct PoolChange<'a> {
    pub(in crate::analysis) pool: Pool,
    pub(in crate::analysis) delta: &'a CounterDelta,
    /// Whether the amounts are only lower limits.
    pub(in crate::analysis) is_open: bool,
    pub(in crate::analysis) attribution: &'a Arc<BlockAttribution>,
}

/// A block that is alive in the replay.
#[derive(Debug, Clone)]
struct ReplayedBlock {
    /// The change that allocated it, or the address at which the map before had it.
    from: BlockSource,
    attribution: Arc<BlockAttribution>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockSource {
    Snapshot(u64),
    Change(usize),
}

/// The blocks of one group.
#[derive(Debug, Default)]
struct GroupReplay {
    /// From the oldest to the youngest.
    live: Vec<ReplayedBlock>,
    /// How many were allocated, known one by one.
    allocated: u64,
    /// The only stack that allocated, if all allocations are certain.
    only: Option<AllocationOrigin>,
    /// Whether one was freed, and whether another was allocated after that: it may have the address of the first.
    freed: bool,
    reused: bool,
    /// The change that allocated one last.
    last: Option<usize>,
}

impl GroupReplay {
    fn allocate(&mut self, change: usize, attribution: Arc<BlockAttribution>) {
        let origin = certain_origin(&attribution);
        self.only =
            if self.allocated == 0 { origin } else { self.only.filter(|o| Some(*o) == origin) };
        self.allocated += 1;
        self.reused |= self.freed;
        self.last = Some(change);
        self.live.push(ReplayedBlock { from: BlockSource::Change(change), attribution });
    }

    /// `last` is the change that allocated last in any group; what was allocated before `settled` stays.
    fn free(&mut self, time: u64, last: Option<usize>, settled: u64) {
        let in_use = |block: &ReplayedBlock| {
            let age = time.saturating_sub(block.attribution.allocated_at);
            Some(block.from) == last.map(BlockSource::Change) && age <= IN_USE_FOR
        };
        let is_settled = |block: &ReplayedBlock| block.attribution.allocated_at < settled;
        match self.live.len() {
            0 => {}
            count
                if count > 1
                    && self.live.last().is_some_and(in_use)
                    && !is_settled(&self.live[count - 2]) =>
            {
                self.live.remove(count - 2);
            }
            _ => drop(self.live.pop()),
        }
        self.freed = true;
    }
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
}

/// A replay under way.
#[derive(Debug, Default)]
pub(in crate::analysis) struct FollowReplay {
    groups: FxHashMap<BlockGroup, GroupReplay>,
    changes: usize,
    last: Option<usize>,
    /// Blocks that were allocated before this time have outlived many others.
    settled: u64,
    freed: FreedGroups,
    /// Allocations that may have been of several groups.
    unclear_allocations: Vec<(Pool, CounterDelta)>,
    /// Frees that may have been of other groups than was taken for likely.
    unclear_frees: Vec<(Pool, CounterDelta)>,
    is_open: bool,
}

impl FollowReplay {
    /// Begins with the blocks of a map: group, address, and who is charged. It lasts from `from` to `to`.
    pub(in crate::analysis) fn new(
        from: u64,
        to: u64,
        blocks: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
    ) -> FollowReplay {
        let settled = from.saturating_sub(2 * to.saturating_sub(from));
        let mut replay = FollowReplay { settled, ..FollowReplay::default() };
        for (group, address, attribution) in blocks {
            let block = ReplayedBlock { from: BlockSource::Snapshot(address), attribution };
            replay.groups.entry(group).or_default().live.push(block);
        }
        for group in replay.groups.values_mut() {
            group.live.sort_by_key(|block| block.attribution.allocated_at);
        }
        replay
    }

    /// Takes the next change.
    pub(in crate::analysis) fn change(&mut self, change: &[PoolChange<'_>]) {
        self.changes += 1;
        for pool in change {
            self.is_open |= pool.is_open;
            self.allocate(pool);
        }
        for pool in change {
            self.free(pool);
        }
    }

    fn allocate(&mut self, change: &PoolChange<'_>) {
        let count = change.delta.allocations;
        if count <= 0 {
            return;
        }
        let even =
            |bytes: i64| (bytes >= 0 && bytes % count == 0).then_some((bytes / count) as u64);
        let (size, requested) =
            (even(change.delta.allocated_bytes), even(change.delta.requested_bytes));
        let (Some(size), Some(requested), false) = (size, requested, change.is_open) else {
            self.unclear_allocations.push((change.pool, *change.delta));
            return;
        };
        let group = BlockGroup { size, requested, pool: change.pool };
        // Several blocks of one size, or of sizes that add up to the same.
        let is_clear = count == 1 || size == MIN_BLOCK;
        if !is_clear {
            if !self.groups.contains_key(&group) {
                self.unclear_allocations.push((change.pool, *change.delta));
                return;
            }
            self.unclear_allocations.push((change.pool, *change.delta));
        }
        self.last = Some(self.changes);
        let replayed = self.groups.entry(group).or_default();
        for _ in 0..count.min(MAX_AT_ONCE) {
            let attribution =
                if is_clear { change.attribution.clone() } else { uncertain(change.attribution) };
            replayed.allocate(self.changes, attribution);
        }
    }

    fn free(&mut self, change: &PoolChange<'_>) {
        let frees = PoolFrees::new(change.pool, change.delta);
        let live = |group: &BlockGroup| self.groups.get(group).map_or(0, |g| g.live.len());
        let Some(found) = self.freed.find(&frees, live, || {
            let youngest = |group: &GroupReplay| {
                group.live.last().map(|block| match block.from {
                    BlockSource::Snapshot(_) => (0, block.attribution.allocated_at),
                    BlockSource::Change(change) => (change, 0),
                })
            };
            let of_pool = self.groups.iter().filter(|(group, _)| group.pool == change.pool);
            let mut groups: Vec<_> = of_pool
                .filter_map(|(group, replayed)| Some((youngest(replayed)?, *group)))
                .collect();
            groups.sort_unstable_by(|a, b| b.cmp(a));
            groups.into_iter().map(|(_, group)| group).collect()
        }) else {
            return;
        };
        if !found.is_clear || change.is_open || !self.unclear_allocations.is_empty() {
            self.unclear_frees.push((change.pool, *change.delta));
        }
        for group in found.groups {
            if let Some(replayed) = self.groups.get_mut(&group) {
                // Which came first in this change is not known.
                replayed.reused |= replayed.last == Some(self.changes);
                replayed.free(change.attribution.allocated_at, self.last, self.settled);
            }
        }
    }

    /// How many blocks of a group were at most in changes of which it is not clear what they were.
    fn most_of(&self, group: &BlockGroup, changes: &[(Pool, CounterDelta)], freed: bool) -> u64 {
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

    /// Ends it with the blocks of a map.
    pub(in crate::analysis) fn finish(
        mut self,
        blocks: FxHashMap<BlockGroup, GroupAddresses>,
    ) -> ReplayResult {
        let mut result = ReplayResult::default();
        for (group, mut addresses) in blocks {
            let replayed = self.groups.remove(&group).unwrap_or_default();
            let unclear = self.most_of(&group, &self.unclear_allocations, false);
            let freed_unclear = self.most_of(&group, &self.unclear_frees, true);
            let all_new = replayed.allocated == addresses.new.len() as u64 && unclear == 0;
            let none_allocated = replayed.allocated + unclear == 0;
            let none_reused = !replayed.reused && unclear + freed_unclear == 0;
            let all_stayed = none_allocated || none_reused;
            let open = self.is_open;
            addresses.new.sort_unstable();
            let (mut made, mut stayed) = (Vec::new(), FxHashSet::default());
            for block in replayed.live {
                match block.from {
                    BlockSource::Change(_) => made.push(block.attribution),
                    BlockSource::Snapshot(address) => drop(stayed.insert(address)),
                }
            }
            // Of the blocks that seem to have been freed, the youngest are the likeliest to be other ones now.
            addresses
                .known
                .sort_by_key(|(_, attribution)| std::cmp::Reverse(attribution.allocated_at));
            let freed = addresses.known.iter().filter(|(address, _)| !stayed.contains(address));
            let wanted = made.len().saturating_sub(addresses.new.len());
            let reused: Vec<u64> = freed.take(wanted).map(|(address, _)| *address).collect();
            made.drain(..made.len().saturating_sub(addresses.new.len() + reused.len()));
            for (address, old) in addresses.known.iter().filter(|(a, _)| !reused.contains(a)) {
                let is_same = all_new || all_stayed;
                let same_maker =
                    unclear == 0 && replayed.only.is_some() && certain_origin(old) == replayed.only;
                if old.certain && (open || !(is_same || same_maker)) {
                    result.attributions.insert(*address, uncertain(old));
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
                    Some(attribution) if is_certain => {
                        result.attributions.insert(address, attribution);
                    }
                    Some(attribution) => {
                        result.attributions.insert(address, uncertain(&attribution));
                    }
                    None => result.unexplained.push((group, address)),
                }
            }
        }
        result
    }
}

/// The same, not certain.
pub(in crate::analysis) fn uncertain(attribution: &BlockAttribution) -> Arc<BlockAttribution> {
    Arc::new(BlockAttribution {
        shares: attribution.shares.clone(),
        certain: false,
        ..*attribution
    })
}

fn certain_origin(attribution: &BlockAttribution) -> Option<AllocationOrigin> {
    match attribution.shares[..] {
        [(origin, _)] if attribution.certain => Some(origin),
        _ => None,
    }
}
