//! The few counters that show every allocation.

use super::layout::{CounterLayout, MUTEX_OWNER, STAT_ARRAY, STATS, stat_at};
use crate::model::{CudaIndex, Metric, Pool};
use crate::target::{Addr, AddressRange, Field};

/// The counters' addresses and decoder.
#[derive(Debug, Clone)]
pub struct CounterPoller {
    layout: CounterLayout,
    devices: Vec<(CudaIndex, Addr)>,
}

/// One pool's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounters {
    /// `allocation.POOL.allocated`.
    pub allocations: i64,
    /// `allocation.POOL.freed`.
    pub frees: i64,
    /// `allocated_bytes.POOL.allocated`.
    pub allocated_bytes: i64,
    /// `allocated_bytes.POOL.freed`.
    pub freed_bytes: i64,
    /// `requested_bytes.POOL.allocated`.
    pub requested_bytes: i64,
    /// `requested_bytes.POOL.freed`.
    pub freed_requested_bytes: i64,
    /// `allocated_bytes.POOL.current`.
    pub live: i64,
}

/// One device's counters at one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolledCounters {
    /// The small pool.
    pub small: PoolCounters,
    /// The large pool.
    pub large: PoolCounters,
    /// `allocation.all.current`.
    pub blocks: i64,
    /// Totals equal the pools' sums and nothing changed during the copy. A thread changes
    /// totals first.
    pub fit: bool,
}

/// Totals since the start or a reset, unique per allocator state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocationTotals {
    /// `allocation.all.allocated`.
    pub allocations: i64,
    /// `allocation.all.freed`.
    pub frees: i64,
}

impl PolledCounters {
    /// The totals of both pools.
    pub fn totals(&self) -> AllocationTotals {
        AllocationTotals {
            allocations: self.small.allocations.wrapping_add(self.large.allocations),
            frees: self.small.frees.wrapping_add(self.large.frees),
        }
    }
}

impl CounterPoller {
    pub(super) fn new(layout: &CounterLayout, devices: &[Addr]) -> CounterPoller {
        let numbered = (0..).map(CudaIndex).zip(devices.iter().copied());
        CounterPoller { layout: *layout, devices: numbered.collect() }
    }

    /// Keeps the wanted devices.
    pub fn retain(&mut self, wanted: impl Fn(CudaIndex) -> bool) {
        self.devices.retain(|(device, _)| wanted(*device));
    }

    /// The polled devices.
    pub fn devices(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        self.devices.iter().map(|(device, _)| *device)
    }

    /// One span per device.
    pub fn spans(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let (from, to) = self.part();
        self.devices
            .iter()
            .map(move |(_, at)| AddressRange { addr: *at + from as u64, len: to - from })
    }

    /// The counters, then again the part that each allocation and free changes.
    pub fn poll_spans(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.spans().zip(self.changing_spans()).flat_map(|(counters, again)| [counters, again])
    }

    /// Bytes of these per device.
    pub fn poll_len(&self) -> usize {
        let (from, to) = self.part();
        to - from + STAT_ARRAY
    }

    /// The part that each allocation and free changes.
    pub fn changing_spans(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let at = self.layout.array(Metric::Allocation as usize) as u64;
        self.devices
            .iter()
            .map(move |(_, device)| AddressRange { addr: *device + at, len: STAT_ARRAY })
    }

    /// The same part of a copy.
    pub fn changing_part<'c>(&self, copy: &'c [u8]) -> Option<&'c [u8]> {
        let (from, _) = self.part();
        let at = self.layout.array(Metric::Allocation as usize) - from;
        copy.get(at..at + STAT_ARRAY)
    }

    /// Kernel id, in the target, of the lock's owner; `None` if unlocked or unknown.
    pub fn lock_owner(&self, copy: &[u8]) -> Option<u32> {
        let (from, _) = self.part();
        let at = MUTEX_OWNER.offset.checked_sub(from)?;
        Field::<u32>::at(at).get(copy).filter(|&owner| owner != 0 && self.layout.mutex)
    }

    /// The allocators' locks.
    pub fn locks(&self) -> Vec<AddressRange> {
        let lock = |(_, addr): &(CudaIndex, Addr)| AddressRange { addr: *addr, len: STATS };
        self.devices.iter().filter(|_| self.layout.mutex).map(lock).collect()
    }

    /// `None` if too short.
    pub fn decode(&self, copy: &[u8]) -> Option<PolledCounters> {
        let (from, to) = self.part();
        let again = copy.get(to - from..).filter(|again| !again.is_empty());
        let stood = again.is_none_or(|again| self.changing_part(copy) == Some(again));
        let array = |metric: Metric| {
            let at = self.layout.array(metric as usize) - from;
            let [all, small, large] =
                Pool::ALL.map(|pool| stat_at(copy, at + pool as usize * STAT_ARRAY / 3));
            Some([all?, small?, large?])
        };
        let counts = array(Metric::Allocation)?;
        let bytes = array(Metric::AllocatedBytes)?;
        let requested = array(Metric::RequestedBytes)?;
        let adds_up = [&counts, &bytes, &requested].into_iter().all(|[all, small, large]| {
            all.current == small.current.wrapping_add(large.current)
                && all.allocated == small.allocated.wrapping_add(large.allocated)
                && all.freed == small.freed.wrapping_add(large.freed)
        });
        let fit = stood && adds_up;
        let pool = |pool: Pool| {
            let p = pool as usize;
            PoolCounters {
                allocations: counts[p].allocated,
                frees: counts[p].freed,
                allocated_bytes: bytes[p].allocated,
                freed_bytes: bytes[p].freed,
                requested_bytes: requested[p].allocated,
                freed_requested_bytes: requested[p].freed,
                live: bytes[p].current,
            }
        };
        let [small, large] = [Pool::Small, Pool::Large].map(pool);
        Some(PolledCounters { small, large, blocks: counts[0].current, fit })
    }

    fn part(&self) -> (usize, usize) {
        let to = self.layout.array(Metric::RequestedBytes as usize) + STAT_ARRAY;
        (MUTEX_OWNER.offset, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::layout::STAT;

    fn copy(poller: &CounterPoller, raised: &[(Metric, Pool, i64)]) -> Vec<u8> {
        let (from, to) = poller.part();
        let mut copy = vec![0; to - from];
        for &(metric, pool, value) in raised {
            let at = poller.layout.array(metric as usize) - from + pool as usize * STAT;
            for field in [0, 0x10] {
                copy[at + field..at + field + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        copy
    }

    #[test]
    fn totals_changed_before_their_pool_do_not_fit() {
        let layout = CounterLayout::with_gap(
            0x20,
            &[0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        );
        let poller = CounterPoller::new(&layout, &[Addr(0x1000)]);
        let before = copy(&poller, &[]);
        let half = [(Metric::Allocation, Pool::All, 1), (Metric::AllocatedBytes, Pool::All, 512)];
        let whole = [
            half[0],
            half[1],
            (Metric::Allocation, Pool::Small, 1),
            (Metric::AllocatedBytes, Pool::Small, 512),
            (Metric::RequestedBytes, Pool::All, 500),
            (Metric::RequestedBytes, Pool::Small, 500),
        ];
        assert!(!poller.decode(&copy(&poller, &half)).unwrap().fit);
        let after = copy(&poller, &whole);
        let counters = poller.decode(&after).unwrap();
        assert!(counters.fit);
        let small = PoolCounters {
            allocations: 1,
            allocated_bytes: 512,
            requested_bytes: 500,
            live: 512,
            ..PoolCounters::default()
        };
        assert_eq!((counters.small, counters.large), (small, PoolCounters::default()));
        assert_ne!(poller.changing_part(&before), poller.changing_part(&after));
        let (from, _) = poller.part();
        let span = poller.changing_spans().next().unwrap();
        let at = (span.addr.0 - 0x1000) as usize - from;
        assert_eq!(poller.changing_part(&after), after.get(at..at + span.len));
        assert_eq!(poller.decode(&after[1..]), None);
        let again = |changed: &[u8]| [&after, poller.changing_part(changed).unwrap()].concat();
        assert_eq!(again(&after).len(), poller.poll_len());
        assert_eq!(poller.poll_spans().nth(1), Some(span));
        assert!(poller.decode(&again(&after)).unwrap().fit);
        let later = copy(&poller, &[(Metric::Allocation, Pool::All, 2)]);
        assert!(!poller.decode(&again(&later)).unwrap().fit, "another block was counted meanwhile");
        assert_eq!(poller.lock_owner(&after), None);
        let mut locked = after;
        locked[0] = 9;
        assert_eq!(poller.lock_owner(&locked), Some(9));
    }
}
