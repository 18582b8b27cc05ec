//! When a snapshot is worth its cost.

use std::time::Duration;

use crate::model::AllocatorCounters;

const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Take a snapshot if allocated bytes change by one part in this many of the reserved bytes.
const MIN_CHANGE_FRACTION: i64 = 50;
/// One part in this many of the time, for a device.
const BUDGET: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct SnapshotPolicy {
    apart: Duration,
    last: Option<LastSnapshot>,
    highest: i64,
    cost: Duration,
}

#[derive(Debug)]
struct LastSnapshot {
    at: Duration,
    allocated: i64,
    /// Total of allocated bytes: rises at each allocation, even if as much was freed.
    churn: (i64, i64),
}

impl SnapshotPolicy {
    pub(super) fn apart(apart: Duration) -> SnapshotPolicy {
        SnapshotPolicy { apart, ..SnapshotPolicy::default() }
    }

    pub(super) fn wants(&self, now: Duration, counters: &AllocatorCounters) -> bool {
        let Some(last) = &self.last else { return true };
        if churn(counters) == last.churn && counters.allocated() == last.allocated {
            return false;
        }
        let since = now.saturating_sub(last.at);
        if since >= MAX_INTERVAL {
            return true;
        }
        if since < (self.cost * BUDGET).max(self.apart) {
            return false;
        }
        let change = (counters.allocated() - last.allocated).abs();
        counters.allocated() > self.highest || change > counters.reserved() / MIN_CHANGE_FRACTION
    }

    pub(super) fn asked(&mut self, now: Duration, counters: &AllocatorCounters) {
        self.last =
            Some(LastSnapshot { at: now, allocated: counters.allocated(), churn: churn(counters) });
    }

    /// `allocated` is set if the snapshot is consistent.
    pub(super) fn has_read(&mut self, cost: Duration, allocated: Option<u64>) {
        self.highest = self.highest.max(allocated.unwrap_or(0) as i64);
        // One slow read (page fault, context switch) must not starve the next.
        self.cost = if self.cost.is_zero() { cost } else { (self.cost + cost) / 2 };
    }
}

fn churn(counters: &AllocatorCounters) -> (i64, i64) {
    use crate::model::{Metric, Pool};
    let stat = counters.stat(Metric::Allocation, Pool::All);
    (stat.allocated, stat.freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Metric, Stat};

    const MIB: i64 = 1 << 20;

    fn counters(allocations: i64, allocated: i64) -> AllocatorCounters {
        let mut counters = AllocatorCounters::default();
        counters.stats[Metric::Allocation as usize][0] =
            Stat { allocated: allocations, ..Stat::default() };
        counters.stats[Metric::AllocatedBytes as usize][0].current = allocated;
        counters.stats[Metric::ReservedBytes as usize][0].current = 1000 * MIB;
        counters
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_snapshot_then_only_large_changes() {
        let mut policy = SnapshotPolicy::default();
        let now = counters(10, 500 * MIB);
        assert!(policy.wants(ms(0), &now));
        policy.asked(ms(0), &now);
        policy.has_read(ms(1), Some(500 << 20));
        assert!(!policy.wants(ms(5000), &now), "nothing was allocated or freed");
        assert!(!policy.wants(ms(100), &counters(11, 499 * MIB)), "a small change");
        assert!(policy.wants(ms(100), &counters(11, 470 * MIB)), "a large change");
        assert!(policy.wants(ms(100), &counters(11, 500 * MIB + 512)), "a new peak");
        assert!(policy.wants(ms(1000), &counters(11, 500 * MIB)), "a second, with other blocks");
    }

    #[test]
    fn a_longer_interval_means_fewer_snapshots() {
        let mut policy = SnapshotPolicy::apart(ms(50));
        policy.asked(ms(0), &counters(10, 100 * MIB));
        policy.has_read(ms(1), None);
        assert!(!policy.wants(ms(49), &counters(11, 900 * MIB)));
        assert!(policy.wants(ms(50), &counters(11, 900 * MIB)));
    }

    #[test]
    fn a_costly_snapshot_is_read_less_often() {
        let mut policy = SnapshotPolicy::default();
        policy.asked(ms(0), &counters(10, 100 * MIB));
        policy.has_read(ms(40), None);
        assert!(!policy.wants(ms(350), &counters(11, 900 * MIB)));
        assert!(policy.wants(ms(401), &counters(11, 900 * MIB)));
    }
}
