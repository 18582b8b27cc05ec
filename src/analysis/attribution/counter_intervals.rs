//! What the counters did between two block maps: the intervals in which something was allocated.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::sample_window::END_WEIGHT;
use crate::analysis::attribution::waiting::WaitingPlaces;
use crate::model::{AllocatorCounters, Metric, Pool};

/// The most intervals kept; beyond it neighbours are merged.
const MAX_INTERVALS: usize = 8192;

/// Up to this many allocations between two samples, their stacks mostly show the right layer. Of a
/// hundred, they show nothing.
pub(crate) const FEW_ALLOCATIONS: i64 = 16;

/// One number per [`Pool`]: all, small, large.
pub(crate) type PerPool = [i64; 3];

/// An interval between two neighbouring looks in which memory was allocated.
#[derive(Debug, Clone)]
pub(crate) struct CounterInterval {
    /// Begin and end, in nanoseconds since the recording began.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes allocated in it.
    pub(crate) bytes: PerPool,
    /// Allocations in it; 0 when unknown.
    pub(crate) count: PerPool,
    /// Bytes asked for in it; 0 when unknown.
    pub(crate) requested: PerPool,
    /// The least `current` seen at its end and from then on until the next interval of the ledger.
    pub(crate) low_after: PerPool,
    /// Whether `bytes` and `count` are only lower limits (totals were reset in it, or it was guessed).
    pub(crate) open: bool,
    /// Who was seen at its two ends, with weights; empty when no stack was seen.
    pub(crate) seen: Vec<(AllocationOrigin, u64)>,
}

impl CounterInterval {
    /// Whether a block of `size` bytes, of which `requested` were asked for, can have been born in it.
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
            // Every other allocation of the interval needs its smallest possible size.
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

    /// How many such blocks can have been born in it at most.
    pub(crate) fn most_blocks(&self, pool: Pool, size: u64, requested: u64) -> u64 {
        let p = pool as usize;
        match self.has_room(pool, size, requested) {
            false => 0,
            true if self.open || self.count[p] <= 0 => u64::MAX,
            true => (self.count[p] as u64).min(self.bytes[p].max(0) as u64 / size.max(1)),
        }
    }

    /// Whether its only allocation was a block of this size.
    pub(crate) fn is_just(&self, pool: Pool, size: u64) -> bool {
        !self.open && self.count[pool as usize] == 1 && self.bytes[pool as usize] == size as i64
    }

    /// Whether the stacks at its ends do not say where its allocations were.
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

/// The intervals since a snapshot.
#[derive(Debug, Default)]
pub(crate) struct CounterIntervals {
    pub(crate) intervals: Vec<CounterInterval>,
    /// How many were seen at the ends of all of them, at most.
    seen: usize,
    /// Whether the counters per pool do not add up to those of all pools, so that only these are used.
    pub(crate) unpooled: bool,
    /// The least `current` seen at all since the map.
    pub(crate) low: Option<PerPool>,
}

impl CounterIntervals {
    /// Steps that it may take to charge the blocks of one size.
    pub(crate) fn work(&self) -> u64 {
        (8 * self.intervals.len() + self.seen) as u64
    }

    /// Books the step from one look at the counters to the next.
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
        self.fell_to(current);
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

    /// Books bytes that a map shows and no counter has told of yet.
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

    fn fell_to(&mut self, current: PerPool) {
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

    /// Leaves out the places of which is known by now that threads only wait there: what was seen beside nothing else is nobody's.
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

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        let seen = self.seen * size_of::<(AllocationOrigin, u64)>();
        (self.intervals.len() * size_of::<CounterInterval>() + seen) as u64
    }

    /// Begins anew at a map.
    pub(crate) fn clear(&mut self) {
        self.intervals.clear();
        self.seen = 0;
        self.low = None;
    }

    /// Forgets what happened before `time`.
    pub(crate) fn forget_before(&mut self, time: u64) {
        self.intervals.retain(|i| i.to > time);
        self.low = None;
    }
}

pub(crate) fn per_pool(value: impl Fn(Pool) -> i64) -> PerPool {
    Pool::ALL.map(value)
}

/// Whether `reset_accumulated_memory_stats` ran between two looks: it breaks
/// `current - (allocated - freed)`, which nothing else changes.
pub(crate) fn was_reset(old: crate::model::Stat, new: crate::model::Stat) -> bool {
    // A damaged trace may claim any number.
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
    fn counters_of_any_size_in_a_damaged_trace_make_no_panic() {
        let least = Stat { current: i64::MIN, peak: 0, allocated: i64::MIN, freed: i64::MAX };
        let most = Stat { current: i64::MAX, peak: 0, allocated: i64::MAX, freed: i64::MIN };
        assert!(was_reset(most, least));
        let mut counters = AllocatorCounters::default();
        counters.stats.iter_mut().for_each(|pools| *pools = [most; 3]);
        assert!(!pools_add_up(&counters));
    }

    /// Of a model of which thirty blocks were to be explained, two of 4 MiB cannot be more than two of 2 MiB.
    #[test]
    fn no_more_blocks_are_born_in_an_interval_than_it_counted() {
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
