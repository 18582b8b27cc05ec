//! Attribution by samples: which stacks get a snapshot's new blocks.
//!
//! Between two snapshots, counters and stacks are sampled several hundred times a second. Each
//! interval has bytes, number and pool of its allocations, and the stacks at its ends.
//!
//! 1. A block is *new* if the previous snapshot lacks its address, size and requested size. Others
//!    keep their attribution; those of the first snapshot are `[before recording]`.
//! 2. A free and a new allocation may hide at one address. If `current` fell below the sum of the
//!    surviving blocks, at least the difference is new: the youngest blocks that fit into it.
//! 3. An interval is possible for a block if its pool grew by at least the block plus the least
//!    sizes of its other allocations (exactly by the block if it is the only one), and as many
//!    bytes were requested.
//! 4. New blocks live until the snapshot: those allocated up to a sample take at most the least
//!    later `current` minus the surviving blocks. The rise of this limit over an interval is its
//!    *share*. The shares add up to the new bytes.
//! 5. Size classes are attributed as one, largest first: to possible intervals whose share holds a
//!    block, else with any share, else to all possible ones, by remaining share. If enough
//!    intervals have just this block as only allocation, only these count.
//! 6. The stacks at each end get half of an interval's bytes; an end without a stack that can
//!    allocate leaves its half to the other (`sample_window.rs`). Without any, the bytes are
//!    `[not seen]`: a thread woke, allocated and slept again elsewhere.
//! 7. The largest part gets the remainder, so that the parts add up to the block.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::counter_intervals::{CounterInterval, CounterIntervals, PerPool};
use crate::model::Pool;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockGroup {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) pool: Pool,
}

pub(crate) struct SnapshotInterval<'a> {
    pub(crate) survived: PerPool,
    /// In nanoseconds since the recording began.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// For allocations later than the counters.
    pub(crate) seen_last: &'a [(AllocationOrigin, u64)],
}

/// Rule 2: bytes freed and allocated again, at least.
pub(crate) fn hidden_frees(ledger: &CounterIntervals, survived: PerPool) -> PerPool {
    let mut hidden = [0; 3];
    if let Some(low) = ledger.low {
        for &p in pools(ledger) {
            hidden[p as usize] = (survived[p as usize] - low[p as usize]).max(0);
        }
    }
    hidden
}

pub(crate) fn pools(ledger: &CounterIntervals) -> &'static [Pool] {
    if ledger.unpooled { &[Pool::All] } else { &[Pool::Small, Pool::Large] }
}

/// `new_blocks`: their number by size class.
pub(crate) fn attribute_allocations(
    ledger: &CounterIntervals,
    new_blocks: &FxHashMap<BlockGroup, u64>,
    between: &SnapshotInterval<'_>,
) -> FxHashMap<BlockGroup, Arc<BlockAttribution>> {
    let mut charges = FxHashMap::default();
    for &pool in pools(ledger) {
        let mut kinds: Vec<(BlockGroup, u64)> = new_blocks
            .iter()
            .filter(|(k, _)| ledger.unpooled || k.pool == pool)
            .map(|(&k, &n)| (k, n))
            .collect();
        kinds.sort_unstable_by(|a, b| b.cmp(a));
        // A forged trace may overflow.
        let total =
            kinds.iter().fold(0u64, |sum, (k, n)| sum.saturating_add(k.size.saturating_mul(*n)));
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        let survived = between.survived[pool as usize];
        let mut shares = allocation_shares(&ledger.intervals, pool, survived, total);
        for (kind, blocks) in kinds {
            let chosen = choose(ledger, pool, kind, blocks, &mut shares);
            let charge = spread(&ledger.intervals, &chosen, between);
            charges.insert(kind, Arc::new(charge));
        }
    }
    charges
}

/// Rule 4.
fn allocation_shares(
    intervals: &[CounterInterval],
    pool: Pool,
    survived: i64,
    total: i64,
) -> Vec<i64> {
    let mut shares = vec![0; intervals.len()];
    let mut low = survived.saturating_add(total);
    for (share, interval) in shares.iter_mut().zip(intervals).rev() {
        low = low.min(interval.low_after[pool as usize]);
        *share = low.saturating_sub(survived).clamp(0, total);
    }
    let mut before = 0;
    for share in &mut shares {
        let limit = *share;
        *share = limit - before;
        before = limit;
    }
    shares
}

/// Rules 3 and 5: intervals with weights.
fn choose(
    ledger: &CounterIntervals,
    pool: Pool,
    group: BlockGroup,
    blocks: u64,
    shares: &mut [i64],
) -> Vec<(usize, i64)> {
    let intervals = &ledger.intervals;
    let possible: Vec<usize> = (0..intervals.len())
        .filter(|&i| intervals[i].has_room(pool, group.size, group.requested))
        .collect();
    let pick = |test: &dyn Fn(usize) -> bool| -> Vec<usize> {
        possible.iter().copied().filter(|&i| test(i)).collect()
    };
    let mut chosen = pick(&|i| intervals[i].is_just(pool, group.size) && shares[i] > 0);
    if (chosen.len() as u64) < blocks {
        chosen = pick(&|i| shares[i] >= group.size as i64);
    }
    if chosen.is_empty() {
        chosen = pick(&|i| shares[i] > 0);
    }
    if chosen.is_empty() {
        let mut rest = pick(&|_| true);
        if rest.is_empty() {
            rest = (0..intervals.len()).collect();
        }
        let grown = |i: usize| intervals[i].bytes[pool as usize].max(1);
        return rest.into_iter().map(|i| (i, grown(i))).collect();
    }
    let weighted: Vec<(usize, i64)> = chosen.into_iter().map(|i| (i, shares[i])).collect();
    let sum: i128 = weighted.iter().map(|&(_, w)| i128::from(w)).sum();
    let mass = i128::from(group.size) * i128::from(blocks);
    for &(i, weight) in &weighted {
        let used = mass * i128::from(weight) / sum.max(1);
        shares[i] = shares[i].saturating_sub(used as i64).max(0);
    }
    weighted
}

/// Rule 6.
fn spread(
    intervals: &[CounterInterval],
    chosen: &[(usize, i64)],
    between: &SnapshotInterval<'_>,
) -> BlockAttribution {
    let mut sums: FxHashMap<AllocationOrigin, u128> = FxHashMap::default();
    let (mut from, mut to) = (u64::MAX, 0);
    // Weight of intervals with many allocations, minus that of the others.
    let mut many = 0i128;
    for &(i, weight) in chosen {
        let interval = &intervals[i];
        from = from.min(interval.from);
        to = to.max(interval.to);
        let weight = weight.max(0) as u128 * 4096;
        many += if interval.has_many() { weight as i128 } else { -(weight as i128) };
        let whole: u128 = interval.seen.iter().map(|s| u128::from(s.1)).sum();
        if whole == 0 {
            *sums.entry(AllocationOrigin::NoStack).or_default() += weight;
        }
        for &(origin, part) in &interval.seen {
            *sums.entry(origin).or_default() += weight * u128::from(part) / whole.max(1);
        }
    }
    if chosen.is_empty() {
        (from, to) = (between.from, between.to);
        for &(origin, part) in between.seen_last {
            *sums.entry(origin).or_default() += u128::from(part);
        }
    }
    let most = sums.values().copied().max().unwrap_or(0);
    let shift = (128 - most.leading_zeros()).saturating_sub(56);
    let mut shares: Vec<(AllocationOrigin, u64)> = sums
        .into_iter()
        .map(|(origin, sum)| (origin, (sum >> shift) as u64))
        .filter(|s| s.1 > 0)
        .collect();
    shares.sort_unstable();
    if shares.is_empty() {
        shares.push((AllocationOrigin::NoStack, 1));
    }
    BlockAttribution {
        shares,
        span: Some(to.saturating_sub(from)),
        allocated_at: to,
        certain: false,
        contested: many > 0,
        doubted: false,
    }
}
