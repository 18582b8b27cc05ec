//! Self-checks of counters and blocks.

use super::layout::pool_of;
use crate::model::{AllocatorCounters, Metric, Pool, Stat};

const IMPOSSIBLE: i64 = 1 << 60;

/// `allocated >= freed` is no invariant: `reset_accumulated_memory_stats` sets both to 0.
pub(super) fn array_is_whole([all, small, large]: &[Stat; 3]) -> bool {
    let sane = |s: &Stat| {
        s.current <= s.peak
            && s.peak < IMPOSSIBLE
            && s.current > -IMPOSSIBLE
            && (0..IMPOSSIBLE).contains(&s.allocated)
            && (0..IMPOSSIBLE).contains(&s.freed)
    };
    sane(all)
        && sane(small)
        && sane(large)
        && all.current == small.current + large.current
        && all.allocated == small.allocated + large.allocated
        && all.freed == small.freed + large.freed
}

pub(super) fn counters_are_whole(counters: &AllocatorCounters) -> bool {
    let now = |metric| counters.stat(metric, Pool::All).current;
    counters.stats.iter().all(array_is_whole)
        && counters.num_alloc_retries >= 0
        && counters.num_ooms >= 0
        && counters.oversize_allocations.current <= counters.oversize_allocations.peak
        && counters.oversize_segments.current <= counters.oversize_segments.peak
        && now(Metric::RequestedBytes) <= now(Metric::ActiveBytes)
        && now(Metric::AllocatedBytes) <= now(Metric::ActiveBytes)
        && now(Metric::ActiveBytes) <= now(Metric::ReservedBytes)
        && now(Metric::Allocation) <= now(Metric::Active)
        && now(Metric::RequestedBytes) >= 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockSums {
    pools: [PoolSums; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct PoolSums {
    allocation: u64,
    active: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    active_bytes: u64,
    requested_bytes: u64,
}

impl BlockSums {
    pub(super) fn add(
        &mut self,
        small: bool,
        allocated: bool,
        active: bool,
        size: u64,
        requested: u64,
    ) {
        for pool in [Pool::All, pool_of(small)] {
            let sums = &mut self.pools[pool as usize];
            sums.reserved_bytes = sums.reserved_bytes.saturating_add(size);
            if allocated {
                sums.allocation += 1;
                sums.allocated_bytes = sums.allocated_bytes.saturating_add(size);
            }
            if active {
                sums.active += 1;
                sums.active_bytes = sums.active_bytes.saturating_add(size);
                sums.requested_bytes = sums.requested_bytes.saturating_add(requested);
            }
        }
    }

    pub(super) fn allocated(&self) -> u64 {
        self.pools[Pool::All as usize].allocated_bytes
    }

    /// The first: `name.pool: counter, sum`.
    pub(super) fn difference(&self, counters: &AllocatorCounters) -> Option<String> {
        Pool::ALL.into_iter().find_map(|pool| {
            let sums = &self.pools[pool as usize];
            [
                (Metric::Allocation, sums.allocation),
                (Metric::Active, sums.active),
                (Metric::AllocatedBytes, sums.allocated_bytes),
                (Metric::ReservedBytes, sums.reserved_bytes),
                (Metric::ActiveBytes, sums.active_bytes),
                (Metric::RequestedBytes, sums.requested_bytes),
            ]
            .into_iter()
            .find_map(|(metric, sum)| {
                let counter = counters.stat(metric, pool).current;
                (u64::try_from(counter) != Ok(sum)).then(|| {
                    format!(
                        "{}.{} is {counter}, but its blocks add up to {sum}",
                        metric.name(),
                        pool.name()
                    )
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> AllocatorCounters {
        let mut counters = AllocatorCounters::default();
        let one = Stat { current: 1, peak: 2, allocated: 5, freed: 4 };
        let bytes = Stat { current: 512, peak: 1024, allocated: 4096, freed: 4000 };
        for metric in Metric::ALL {
            let stat = if metric.is_bytes() { bytes } else { one };
            counters.stats[metric as usize] = [stat, stat, Stat::default()];
        }
        counters
    }

    #[test]
    fn torn_counters_are_noticed() {
        assert!(counters_are_whole(&counters()));
        let mut torn = counters();
        torn.stats[Metric::Segment as usize][Pool::All as usize].current = 2;
        assert!(!counters_are_whole(&torn));
        let mut reset = counters();
        for stat in reset.stats.iter_mut().flatten() {
            (stat.allocated, stat.freed) = (0, 0);
        }
        reset.stats[0][0].freed = 1;
        reset.stats[0][1].freed = 1;
        assert!(counters_are_whole(&reset), "freed may exceed allocated after a reset");
    }

    #[test]
    fn sums_name_the_first_counter_that_differs() {
        let mut sums = BlockSums::default();
        sums.add(true, true, true, 512, 512);
        assert_eq!(sums.difference(&counters()), None);
        sums.add(false, false, false, 4096, 0);
        let text = sums.difference(&counters()).unwrap();
        assert!(text.starts_with("reserved_bytes.all is 512"), "{text}");
    }
}
