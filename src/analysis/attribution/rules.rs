//! The attribution rule: which stacks the blocks born between two snapshots are charged to.
//!
//! A map shows which blocks live; it does not show who allocated them. Between two maps the counters and
//! the Python stacks are looked at several hundred times a second, so for each short interval
//! between two looks it is known how much was allocated, in how many allocations, in which pool, and
//! which stacks stood at its two ends. The rule, in order:
//!
//! 1. *Born* is every allocated block that the map before did not have with this address, size and
//!    requested size. A block that was there already keeps its charge. One that the first map shows
//!    is charged to `[before recording]`.
//! 2. A block can hide a second birth at the same address. If `current` fell below the sum of
//!    the blocks that seem to have lived on, at least the difference was freed and allocated again; the
//!    blocks born last are taken for it, as far as they fit into the difference.
//! 3. An interval is possible for a birth only if the block fits into what was allocated in it: its
//!    pool grew by at least the block's size plus the least sizes of the interval's other
//!    allocations, exactly by it if there was only one, and as many bytes were asked for.
//! 4. Blocks alive at the map were alive ever since their birth, so what was born up to a look is at
//!    most the least `current` from that look to the map, minus the blocks that lived on. The rise
//!    of this limit over an interval is its *share of births*: memory that was allocated and freed
//!    again in between has none. The shares of all intervals add up to the bytes born.
//! 5. Blocks of one size are charged together, the largest first: to the intervals possible for them
//!    whose share holds the whole block, else to those that have any share, else to those that are
//!    possible at all; in proportion to the shares left. When as many intervals as blocks had this
//!    block's size as their only allocation, only these count.
//! 6. An interval's bytes go half to the stacks seen at its begin, half to those at its end; an end
//!    at which no stack was seen, or none that can have allocated, leaves its half to the other. Which threads count is
//!    told in `sample_window.rs`. Where none can have done it, the bytes are `[not seen]`: a thread woke up, allocated and
//!    slept again between two samples, and where it slept says nothing of where it was.
//! 7. Bytes are whole: what remains after division goes to the largest part, so that the parts add
//!    up to the block.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::counter_intervals::{CounterInterval, CounterIntervals, PerPool};
use crate::model::Pool;

/// Blocks of one kind born in the same time; charged alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockGroup {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) pool: Pool,
}

/// What is known of a time between two maps besides its ledger.
pub(crate) struct SnapshotInterval<'a> {
    /// Bytes of the blocks that lived on, per pool.
    pub(crate) survived: PerPool,
    /// The maps' times, in nanoseconds since the recording began.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Who was seen last, for births that the counters know nothing of.
    pub(crate) seen_last: &'a [(AllocationOrigin, u64)],
}

/// How many bytes that seem to have lived on were freed and allocated again, at least.
pub(crate) fn hidden_frees(ledger: &CounterIntervals, lived_on: PerPool) -> PerPool {
    let mut hidden = [0; 3];
    if let Some(low) = ledger.low {
        for &p in pools(ledger) {
            hidden[p as usize] = (lived_on[p as usize] - low[p as usize]).max(0);
        }
    }
    hidden
}

/// The pools whose counters are to be used: each by itself, or all as one.
pub(crate) fn pools(ledger: &CounterIntervals) -> &'static [Pool] {
    if ledger.unpooled { &[Pool::All] } else { &[Pool::Small, Pool::Large] }
}

/// Charges births; `born` has the number of blocks of each kind.
pub(crate) fn attribute_allocations(
    ledger: &CounterIntervals,
    born: &FxHashMap<BlockGroup, u64>,
    between: &SnapshotInterval<'_>,
) -> FxHashMap<BlockGroup, Arc<BlockAttribution>> {
    let mut charges = FxHashMap::default();
    for &pool in pools(ledger) {
        let mut kinds: Vec<(BlockGroup, u64)> = born
            .iter()
            .filter(|(k, _)| ledger.unpooled || k.pool == pool)
            .map(|(&k, &n)| (k, n))
            .collect();
        kinds.sort_unstable_by(|a, b| b.cmp(a));
        // A forged trace may say more than there are numbers for.
        let total =
            kinds.iter().fold(0u64, |sum, (k, n)| sum.saturating_add(k.size.saturating_mul(*n)));
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        let lived_on = between.survived[pool as usize];
        let mut shares = allocation_shares(&ledger.intervals, pool, lived_on, total);
        for (kind, blocks) in kinds {
            let chosen = choose(ledger, pool, kind, blocks, &mut shares);
            let charge = spread(&ledger.intervals, &chosen, between);
            charges.insert(kind, Arc::new(charge));
        }
    }
    charges
}

/// Rule 4: how much of the `total` bytes born falls to each interval.
fn allocation_shares(
    intervals: &[CounterInterval],
    pool: Pool,
    lived_on: i64,
    total: i64,
) -> Vec<i64> {
    let mut shares = vec![0; intervals.len()];
    let mut low = lived_on.saturating_add(total);
    for (share, interval) in shares.iter_mut().zip(intervals).rev() {
        low = low.min(interval.low_after[pool as usize]);
        *share = low.saturating_sub(lived_on).clamp(0, total);
    }
    let mut before = 0;
    for share in &mut shares {
        let limit = *share;
        *share = limit - before;
        before = limit;
    }
    shares
}

/// Rules 3 and 5: the intervals that blocks of one kind are charged to, with weights.
fn choose(
    ledger: &CounterIntervals,
    pool: Pool,
    kind: BlockGroup,
    blocks: u64,
    shares: &mut [i64],
) -> Vec<(usize, i64)> {
    let intervals = &ledger.intervals;
    let possible: Vec<usize> = (0..intervals.len())
        .filter(|&i| intervals[i].has_room(pool, kind.size, kind.requested))
        .collect();
    let pick = |test: &dyn Fn(usize) -> bool| -> Vec<usize> {
        possible.iter().copied().filter(|&i| test(i)).collect()
    };
    let mut chosen = pick(&|i| intervals[i].is_just(pool, kind.size) && shares[i] > 0);
    if (chosen.len() as u64) < blocks {
        chosen = pick(&|i| shares[i] >= kind.size as i64);
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
    let mass = i128::from(kind.size) * i128::from(blocks);
    for &(i, weight) in &weighted {
        let used = mass * i128::from(weight) / sum.max(1);
        shares[i] = shares[i].saturating_sub(used as i64).max(0);
    }
    weighted
}

/// Rule 6: from intervals to stacks.
fn spread(
    intervals: &[CounterInterval],
    chosen: &[(usize, i64)],
    between: &SnapshotInterval<'_>,
) -> BlockAttribution {
    let mut sums: FxHashMap<AllocationOrigin, u128> = FxHashMap::default();
    let (mut from, mut to) = (u64::MAX, 0);
    // By how much more is charged to intervals of many allocations.
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
    }
}
