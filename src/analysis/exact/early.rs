//! First events of an allocator that began during the recording: memspy finds its counters only
//! after the first allocation.
//!
//! They wait for counters that agree. As the allocator began empty, these show whether each block
//! has its rounded request as size; if so, all levels follow.

use std::collections::BTreeMap;

use super::ExactProfile;
use super::books::{CountedTotals, RunningTotals};
use super::extent::BlockSizes;
use super::line_levels::{ANYTHING, LevelRange};
use crate::model::{
    AddressSpace, AllocatorCounters, CounterSnapshot, CudaIndex, Event, EventKind, FreeTracking,
    MemoryKind, Metric, Pool, StackTable, block_size,
};

/// A tenth of a second of pure allocation.
const MAX_EARLY: usize = 1 << 14;

/// Levels of an event without counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct SynthesizedLevels {
    pub(super) levels: Option<CounterSnapshot>,
    pub(super) span: LevelRange,
}

/// Counters that agree with the events.
#[derive(Debug)]
struct SettledCounters {
    /// Number of events before them.
    upto: usize,
    /// Bytes beyond the rounded requests.
    unexplained: i64,
    counters: Box<AllocatorCounters>,
}

#[derive(Debug, Default)]
pub(super) struct EarlyEvents {
    events: Vec<Event>,
    sums: BTreeMap<CudaIndex, RunningTotals>,
    device_of: rustc_hash::FxHashMap<u64, (CudaIndex, u64)>,
    /// The first that agree.
    counters: BTreeMap<CudaIndex, SettledCounters>,
    is_over: bool,
}

impl EarlyEvents {
    /// A PyTorch event without counters waits, and so do all later ones.
    pub(super) fn holds(&self, event: &Event, is_known: impl Fn(CudaIndex) -> bool) -> bool {
        match event.change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(index), levels, .. } => {
                self.is_waiting() || !self.is_over && levels.is_none() && !is_known(index)
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, .. } => self.is_waiting(),
            _ => false,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns true when full.
    pub(super) fn add(&mut self, event: Event) -> bool {
        match event.change {
            EventKind::Allocated {
                memory_kind: MemoryKind::Torch(index),
                address,
                size,
                block,
                ..
            } => {
                let least = block.unwrap_or_else(|| block_size(size));
                let sums = self.sums.entry(index).or_default();
                sums.allocations += 1;
                sums.requested += size as i64;
                sums.allocated_bytes += least as i64;
                self.device_of.insert(address, (index, least));
            }
            EventKind::Freed { address, .. } => {
                if let Some((index, size)) = self.device_of.remove(&address) {
                    let sums = self.sums.entry(index).or_default();
                    sums.frees = Some(sums.frees.unwrap_or(0) + 1);
                    sums.freed_bytes += size as i64;
                }
            }
            _ => {}
        }
        self.events.push(event);
        self.events.len() >= MAX_EARLY
    }

    /// `before`: totals of the events that did not wait. Returns true when no more have to.
    pub(super) fn compare(
        &mut self,
        index: CudaIndex,
        counters: &AllocatorCounters,
        before: RunningTotals,
    ) -> bool {
        let waiting = self.sums.get(&index).copied().unwrap_or_default();
        let counted = CountedTotals::of(counters).totals;
        let is_settled = counted.allocations == before.allocations + waiting.allocations
            && counted.requested == before.requested + waiting.requested;
        let known = before.allocated_bytes + waiting.allocated_bytes;
        let unexplained = counted.allocated_bytes - known;
        if is_settled && unexplained >= 0 {
            let (upto, counters) = (self.events.len(), Box::new(*counters));
            let settled = SettledCounters { upto, unexplained, counters };
            self.counters.entry(index).or_insert(settled);
        }
        self.sums.keys().all(|index| self.counters.contains_key(index))
    }
}

struct EarlyReplay<'a> {
    settled: Option<&'a SettledCounters>,
    peak: i64,
    /// The small and the large pool had a block.
    has: [bool; 2],
}

impl EarlyReplay<'_> {
    /// Levels after event `number`, an allocation; the pools then have `in_pools` bytes.
    fn after(&mut self, number: usize, in_pools: [i64; 2]) -> SynthesizedLevels {
        let live = in_pools[0] + in_pools[1];
        self.peak = self.peak.max(live);
        for (has, live) in self.has.iter_mut().zip(in_pools) {
            *has |= live > 0;
        }
        let mut span = LevelRange::UNKNOWN;
        (span.lower[0], span.lower[2]) = (live, live);
        let Some(settled) = self.settled.filter(|settled| number < settled.upto) else {
            return SynthesizedLevels { levels: None, span };
        };
        let (counters, unexplained) = (&settled.counters, settled.unexplained);
        let all = |metric| counters.stat(metric, Pool::All);
        let (allocated, active) = (all(Metric::AllocatedBytes), all(Metric::ActiveBytes));
        span.upper[0] = live + unexplained;
        span.upper[2] = match (allocated.freed, allocated.peak) == (active.freed, active.peak) {
            true => span.upper[0],
            false => active.peak.max(span.upper[0]),
        };
        // No segment was returned to the driver.
        if all(Metric::ReservedBytes).freed == 0 {
            (span.lower[1], span.upper[1]) = (0, 0);
            for (pool, (has, live)) in
                [Pool::Small, Pool::Large].into_iter().zip(self.has.into_iter().zip(in_pools))
            {
                let reserved = counters.stat(Metric::ReservedBytes, pool).allocated;
                let is_one = counters.stat(Metric::Segment, pool).allocated == 1;
                span.lower[1] += if has && is_one { reserved } else { live };
                span.upper[1] += if has { reserved } else { 0 };
            }
        }
        let levels = (unexplained == 0 && span.upper[1] != ANYTHING).then_some(CounterSnapshot {
            allocated: live,
            peak: self.peak,
            reserved: span.upper[1],
            active: live,
        });
        SynthesizedLevels { levels, span }
    }
}

impl ExactProfile {
    pub(super) fn settle_early(&mut self, table: &StackTable) {
        let EarlyEvents { events, sums, counters, .. } = std::mem::replace(
            &mut self.early,
            EarlyEvents { is_over: true, ..EarlyEvents::default() },
        );
        let beginning =
            |index| EarlyReplay { settled: counters.get(index), peak: 0, has: [false; 2] };
        let mut devices: BTreeMap<CudaIndex, EarlyReplay<'_>> =
            sums.keys().map(|index| (*index, beginning(index))).collect();
        let sees_frees = self.exact.frees != FreeTracking::Snapshots;
        for (number, event) in events.iter().enumerate() {
            let mut synthesized = None;
            if let EventKind::Allocated {
                memory_kind: MemoryKind::Torch(index),
                size,
                levels: None,
                block,
                ..
            } = event.change
                && let Some(beginning) = devices.get_mut(&index)
            {
                let device = self.device(index);
                device.has_unconfirmed = true;
                let mut in_pools = device.held_by_pool();
                let block = BlockSizes::new(block.unwrap_or_else(|| block_size(size)), size);
                in_pools[usize::from(!block.small)] += block.size as i64;
                synthesized = sees_frees.then(|| beginning.after(number, in_pools));
            }
            self.apply(event, synthesized, table);
        }
    }

    /// No more counters will come.
    pub(crate) fn finish(&mut self, table: &StackTable) {
        if self.early.is_waiting() {
            self.settle_early(table);
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        !self.early.is_waiting()
    }
}
