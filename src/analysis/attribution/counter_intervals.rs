//! Intervals with allocations between two snapshots.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::sample_window::END_WEIGHT;
use crate::analysis::attribution::waiting::WaitingPlaces;
use crate::model::{AllocatorCounters, Metric, Pool};

/// Beyond it, neighbours are merged.
const MAX_INTERVALS: usize = 8192;

/// Up to this many allocations between two samples, their stacks mostly show the right layer.
pub(crate) const FEW_ALLOCATIONS: i64 = 16;

pub(crate) type PerPool = [i64; 3];

#[derive(Debug, Clone)]
pub(crate) struct CounterInterval {
    /// In nanoseconds since the recording began.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: PerPool,
    /// 0: unknown.
    pub(crate) count: PerPool,
    /// In bytes; 0: unknown.
    pub(crate) requested: PerPool,
    /// Least `current` up to the next interval.
    pub(crate) low_after: PerPool,
    /// `bytes` and `count` are lower limits after a reset or estimate.
    pub(crate) open: bool,
    /// Stacks at its ends, with weights.
    pub(crate) seen: Vec<(AllocationOrigin, u64)>,
}

impl CounterInterval {
    pub(crate) fn has_room(&self, pool: Pool, size: u64, requested: u64) -> bool {
        if self.open {
            return true;
        }
        let p = pool as usize;
        let (bytes, count) = (self.bytes[p], self.count[p]);
        let size = size as i64;
        if size > bytes {
            return false;
        }
        if count > 0 {
            // The other allocations need their least sizes.
            let least = if pool == Pool::Large { (1 << 20) + 512 } else { 512 };
            if size.saturating_add((count - 1).saturating_mul(least)) > bytes
                || (count == 1 && size != bytes)
            {
                return false;
            }
        }
        let asked = self.requested[p];
        asked == 0 || requested as i64 <= asked
    }

    pub(crate) fn most_blocks(&self, pool: Pool, size: u64, requested: u64) -> u64 {
        let p = pool as usize;
        match self.has_room(pool, size, requested) {
            false => 0,
            true if self.open || self.count[p] <= 0 => u64::MAX,
            true => (self.count[p] as u64).min(self.bytes[p].max(0) as u64 / size.max(1)),
        }
    }

    pub(crate) fn is_just(&self, pool: Pool, size: u64) -> bool {
        !self.open && self.count[pool as usize] == 1 && self.bytes[pool as usize] == size as i64
    }

    /// Too many allocations: the stacks at its ends do not show their sites.
    pub(crate) fn has_many(&self) -> bool {
        self.count[Pool::All as usize] > FEW_ALLOCATIONS
    }

    fn absorb(&mut self, later: CounterInterval) {
        self.to = later.to;
        for p in 0..3 {
            self.bytes[p] = self.bytes[p].saturating_add(later.bytes[p]);
            self.count[p] = self.count[p].saturating_add(later.count[p]);
            self.requested[p] = self.requested[p].saturating_add(later.requested[p]);
        }
        self.low_after = later.low_after;
        self.open |= later.open;
        let mut seen: FxHashMap<AllocationOrigin, u64> = FxHashMap::default();
        for (origin, weight) in self.seen.drain(..).chain(later.seen) {
            *seen.entry(origin).or_default() += weight;
        }
        self.seen = seen.into_iter().collect();
        self.seen.sort_unstable();
    }
}

#[derive(Debug, Default)]
pub(crate) struct CounterIntervals {
    pub(crate) intervals: Vec<CounterInterval>,
    /// Upper limit of stacks in all intervals.
    seen: usize,
    /// The pools do not add up, so only the total is used.
    pub(crate) unpooled: bool,
    /// Least `current` since the snapshot.
    pub(crate) low: Option<PerPool>,
}

impl CounterIntervals {
    pub(crate) fn work(&self) -> u64 {
        (8 * self.intervals.len() + self.seen) as u64
    }

    pub(crate) fn step(
        &mut self,
        (from, to): (u64, u64),
        old: &AllocatorCounters,
        new: &AllocatorCounters,
        seen: &[(AllocationOrigin, u64)],
    ) {
        self.unpooled |= !pools_add_up(new);
        let current = per_pool(|p| new.stat(Metric::AllocatedBytes, p).current);
        let reset = Pool::ALL.into_iter().any(|p| {
            was_reset(old.stat(Metric::AllocatedBytes, p), new.stat(Metric::AllocatedBytes, p))
        });
        let grown = |metric: Metric| {
            per_pool(|p| {
                let (a, b) = (old.stat(metric, p), new.stat(metric, p));
                if reset {
                    b.allocated.max(b.current.saturating_sub(a.current)).max(0)
                } else {
                    b.allocated.saturating_sub(a.allocated).max(0)
                }
            })
        };
        let bytes = grown(Metric::AllocatedBytes);
        self.lower_minimum(current);
        if bytes[0] == 0 {
            return;
        }
        self.push(CounterInterval {
            from,
            to,
            bytes,
            count: grown(Metric::Allocation),
            requested: grown(Metric::RequestedBytes),
            low_after: current,
            open: reset,
            seen: seen.to_vec(),
        });
    }

    pub(crate) fn push(&mut self, interval: CounterInterval) {
        self.seen += interval.seen.len();
        self.intervals.push(interval);
        if self.intervals.len() > MAX_INTERVALS {
            let mut halved: Vec<CounterInterval> = Vec::with_capacity(MAX_INTERVALS / 2 + 1);
            for (i, interval) in self.intervals.drain(..).enumerate() {
                match halved.last_mut() {
                    Some(last) if i % 2 == 1 => last.absorb(interval),
                    _ => halved.push(interval),
                }
            }
            self.intervals = halved;
            self.seen = self.intervals.iter().map(|interval| interval.seen.len()).sum();
        }
    }

    fn lower_minimum(&mut self, current: PerPool) {
        let lower = |low: &mut PerPool| {
            for (low, now) in low.iter_mut().zip(current) {
                *low = (*low).min(now);
            }
        };
        lower(self.low.get_or_insert(current));
        if let Some(last) = self.intervals.last_mut() {
            lower(&mut last.low_after);
        }
    }

    /// Removes waiting stacks; without others, `NotSeen` remains.
    pub(crate) fn leave_out(&mut self, places: &WaitingPlaces) {
        let waits = |&(origin, _): &(AllocationOrigin, u64)| matches!(origin, AllocationOrigin::Stack(_, stack) if places.has(stack));
        for interval in &mut self.intervals {
            if interval.seen.iter().any(waits) {
                interval.seen.retain(|seen| !waits(seen));
                if interval.seen.is_empty() {
                    interval.seen.push((AllocationOrigin::NotSeen, END_WEIGHT));
                }
            }
        }
        self.seen = self.intervals.iter().map(|interval| interval.seen.len()).sum();
    }

    pub(crate) fn memory(&self) -> u64 {
        let seen = self.seen * size_of::<(AllocationOrigin, u64)>();
        (self.intervals.len() * size_of::<CounterInterval>() + seen) as u64
    }

    pub(crate) fn clear(&mut self) {
        self.intervals.clear();
        self.seen = 0;
        self.low = None;
    }

    pub(crate) fn forget_before(&mut self, time: u64) {
        self.intervals.retain(|i| i.to > time);
        self.low = None;
    }
}

pub(crate) fn per_pool(value: impl Fn(Pool) -> i64) -> PerPool {
    Pool::ALL.map(value)
}

/// Only `reset_accumulated_memory_stats` changes `current - (allocated - freed)`.
pub(crate) fn was_reset(old: crate::model::Stat, new: crate::model::Stat) -> bool {
    let offset = |s: crate::model::Stat| s.current.wrapping_sub(s.allocated.wrapping_sub(s.freed));
    offset(old) != offset(new) || new.allocated < old.allocated || new.freed < old.freed
}

fn pools_add_up(counters: &AllocatorCounters) -> bool {
    [Metric::AllocatedBytes, Metric::Allocation].into_iter().all(|m| {
        let [all, small, large] = counters.stats[m as usize];
        small.current.checked_add(large.current) == Some(all.current)
            && small.allocated.checked_add(large.allocated) == Some(all.allocated)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Stat;

    #[test]
    fn extreme_counters_of_a_damaged_trace_do_not_panic() {
        let least = Stat { current: i64::MIN, peak: 0, allocated: i64::MIN, freed: i64::MAX };
        let most = Stat { current: i64::MAX, peak: 0, allocated: i64::MAX, freed: i64::MIN };
        assert!(was_reset(most, least));
        let mut counters = AllocatorCounters::default();
        counters.stats.iter_mut().for_each(|pools| *pools = [most; 3]);
        assert!(!pools_add_up(&counters));
    }

    /// Two allocations are at most two blocks.
    #[test]
    fn an_interval_limits_its_number_of_blocks() {
        const MIB: u64 = 1 << 20;
        let sum = |of: i64| [of, 0, of];
        let interval = CounterInterval {
            from: 0,
            to: 1,
            bytes: sum(8 << 20),
            count: sum(2),
            requested: sum(8 << 20),
            low_after: [0; 3],
            open: false,
            seen: Vec::new(),
        };
        let most = |interval: &CounterInterval, size| interval.most_blocks(Pool::Large, size, size);
        assert_eq!(most(&interval, 2 * MIB), 2);
        assert_eq!(most(&interval, 6 * MIB), 1);
        assert_eq!(most(&interval, 9 * MIB), 0);
        assert_eq!(most(&CounterInterval { open: true, ..interval }, 9 * MIB), u64::MAX);
    }
}
