//! Attributes new blocks by samples.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{DeviceProfile, LiveBlock, SnapshotBlocks};
use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, CounterInterval, PerPool, SnapshotInterval,
    attribute_allocations, hidden_frees, per_pool,
};
use crate::model::{Metric, Nanos};

/// Blocks without an attribution, by size class.
pub(super) fn new_blocks(blocks: &FxHashMap<u64, LiveBlock>) -> FxHashMap<BlockGroup, u64> {
    let mut new: FxHashMap<BlockGroup, u64> = FxHashMap::default();
    for block in blocks.values().filter(|block| block.attribution.is_none()) {
        *new.entry(block.kind).or_default() += 1;
    }
    new
}

impl DeviceProfile {
    /// Attributes the `new` blocks (default: those without attribution) by counter changes since
    /// the previous snapshot. Returns the work; above `max_work`, attributes nothing.
    pub(super) fn charges_by_samples(
        &mut self,
        snapshot: &SnapshotBlocks,
        new: Option<FxHashMap<BlockGroup, u64>>,
        survived: PerPool,
        (tick, seen_last): (Nanos, &[(AllocationOrigin, u64)]),
        max_work: u64,
    ) -> (FxHashMap<BlockGroup, Arc<BlockAttribution>>, u64) {
        let new = new.unwrap_or_else(|| new_blocks(&snapshot.blocks));
        let mut in_blocks: PerPool = [0; 3];
        for block in snapshot.blocks.values() {
            in_blocks[0] += block.kind.size as i64;
            in_blocks[block.kind.pool as usize] += block.kind.size as i64;
        }
        if new.is_empty() {
            return Default::default();
        }
        self.add_later_allocations(in_blocks, tick, snapshot.time, seen_last);
        let work = new.len() as u64 * self.ledger.work();
        if work > max_work {
            return (FxHashMap::default(), work);
        }
        let between = SnapshotInterval {
            survived,
            from: self.last_snapshot.map_or(0, |t| t.0),
            to: snapshot.time.0,
            seen_last,
        };
        (attribute_allocations(&self.ledger, &new, &between), work)
    }

    /// Attributes by samples what polls missed; later evidence replaces this. `new`: all new blocks
    /// of the snapshot.
    pub(super) fn charge_unseen(
        &mut self,
        snapshot: &mut SnapshotBlocks,
        new: FxHashMap<BlockGroup, u64>,
        survived: PerPool,
        last: (Nanos, &[(AllocationOrigin, u64)]),
        max_work: u64,
    ) {
        let is_unseen = |block: &LiveBlock| {
            block.sampled.is_none() && block.attribution.as_ref().is_some_and(|it| it.is_not_seen())
        };
        if !snapshot.blocks.values().any(is_unseen) {
            return;
        }
        let (charges, _) = self.charges_by_samples(snapshot, Some(new), survived, last, max_work);
        for block in snapshot.blocks.values_mut().filter(|block| is_unseen(block)) {
            let has_stack =
                |charge: &&Arc<BlockAttribution>| charge.shares.iter().any(|(it, _)| it.is_stack());
            block.sampled = charges.get(&block.kind).filter(has_stack).cloned();
        }
    }

    /// Removes the attribution of reused blocks (rule 2).
    pub(super) fn find_reused(
        &self,
        blocks: &mut FxHashMap<u64, LiveBlock>,
        survived: &mut PerPool,
    ) {
        let mut hidden = hidden_frees(&self.ledger, *survived);
        if hidden.iter().all(|&h| h == 0) {
            return;
        }
        let mut youngest: Vec<(u64, u64)> = blocks
            .iter()
            .filter_map(|(&address, b)| Some((b.attribution.as_ref()?.allocated_at, address)))
            .filter(|&(born, _)| born > 0)
            .collect();
        youngest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, address) in youngest {
            let Some(block) = blocks.get_mut(&address) else {
                continue;
            };
            let size = block.kind.size as i64;
            let pool = block.kind.pool as usize;
            let pool_or_all = if self.ledger.unpooled { 0 } else { pool };
            if size <= hidden[pool_or_all] {
                hidden[pool_or_all] -= size;
                block.attribution = None;
                survived[0] -= size;
                survived[pool] -= size;
            }
        }
    }

    /// Adds an interval for bytes allocated after the counters of the snapshot's tick.
    fn add_later_allocations(
        &mut self,
        in_blocks: PerPool,
        tick: Nanos,
        time: Nanos,
        seen: &[(AllocationOrigin, u64)],
    ) {
        let Some((_, counters)) = &self.counters else {
            return;
        };
        let current = per_pool(|p| counters.stat(Metric::AllocatedBytes, p).current);
        let mut bytes = [0; 3];
        for p in 0..3 {
            bytes[p] = (in_blocks[p] - current[p]).max(0);
        }
        if bytes[0] > 0 {
            self.ledger.push(CounterInterval {
                from: tick.0.min(time.0),
                to: time.0.max(tick.0),
                bytes,
                count: [0; 3],
                requested: [0; 3],
                low_after: in_blocks,
                open: true,
                seen: seen.to_vec(),
            });
        }
    }
}
