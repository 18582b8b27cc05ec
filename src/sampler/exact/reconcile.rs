//! The events so far against the allocator's own running counts.
//!
//! Nothing stops the target, so a count read may be ahead of the events by what is just under way: an
//! allocation is counted before its event, a free after it. Several looks a second are compared; what
//! differs in all of them is missing for good.

use rustc_hash::FxHashMap;

use crate::model::MemoryKind;
use crate::model::{
    AddressSpace, AllocatorCounters, CounterCheck, CudaIndex, Event, EventKind, Metric, Nanos, Pool,
};

/// What the probes saw of one device since the beginning.
#[derive(Debug, Clone, Copy, Default)]
struct ProbeTotals {
    allocations: i64,
    requested: i64,
}

/// How far the counters are ahead of the events.
#[derive(Debug, Clone, Copy)]
struct CounterLead {
    allocations: i64,
    frees: i64,
    requested: i64,
}

/// One device.
#[derive(Debug, Default)]
struct ReconciledDevice {
    seen: ProbeTotals,
    /// At the beginning: counted before the probes were in place.
    base: Option<CounterLead>,
    /// The best look since the last record.
    best: Option<CounterLead>,
    last: Option<AllocatorCounters>,
    /// Whether the job has begun to count anew.
    was_reset: bool,
}

/// Compares events and counters.
#[derive(Debug, Default)]
pub(super) struct CounterReconciler {
    devices: FxHashMap<CudaIndex, ReconciledDevice>,
    frees: i64,
    frees_probed: bool,
    /// Whether nothing had been counted yet when the probes were in place.
    starts_empty: bool,
}

impl CounterReconciler {
    /// `frees_probed`: whether frees are seen one by one.
    pub(super) fn new(frees_probed: bool) -> CounterReconciler {
        CounterReconciler { frees_probed, ..CounterReconciler::default() }
    }

    /// Nothing has been counted yet, and every event from now on is seen: what the counters have more is missing.
    pub(super) fn start_empty(&mut self) {
        self.starts_empty = true;
    }

    /// Counts an event.
    pub(super) fn on_event(&mut self, event: &Event) {
        match event.change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(device), size, .. } => {
                let seen = &mut self.devices.entry(device).or_default().seen;
                seen.allocations += 1;
                seen.requested += size as i64;
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, .. } => self.frees += 1,
            _ => {}
        }
    }

    /// Takes a look at the counters, all events up to which have been counted.
    pub(super) fn on_counters(&mut self, device: CudaIndex, counters: &AllocatorCounters) {
        let frees = self.frees;
        let device = self.devices.entry(device).or_default();
        let total = |metric: Metric| counters.stat(metric, Pool::All);
        let ahead = CounterLead {
            allocations: total(Metric::Allocation).allocated - device.seen.allocations,
            frees: total(Metric::Allocation).freed - frees,
            requested: total(Metric::RequestedBytes).allocated - device.seen.requested,
        };
        let was_reset = device.last.is_some_and(|last| {
            total(Metric::Allocation).allocated < last.stat(Metric::Allocation, Pool::All).allocated
        });
        if was_reset {
            // The job has begun to count anew (reset_accumulated_memory_stats).
            device.base = None;
            device.best = None;
            device.was_reset = true;
        }
        device.last = Some(*counters);
        device.best = Some(match device.best {
            None => ahead,
            Some(best) => CounterLead {
                allocations: best.allocations.min(ahead.allocations),
                frees: best.frees.max(ahead.frees),
                requested: best.requested.min(ahead.requested),
            },
        });
    }

    /// What the looks since the last call came to; the first ones only set the beginning.
    pub(super) fn take_checks(&mut self, time: Nanos) -> Vec<CounterCheck> {
        // A free does not tell its device.
        let frees_known = self.frees_probed && self.devices.len() == 1;
        let mut found = Vec::new();
        for (&index, device) in &mut self.devices {
            let Some(best) = device.best.take() else { continue };
            if device.base.is_none() && self.starts_empty && !device.was_reset {
                device.base = Some(CounterLead { allocations: 0, frees: 0, requested: 0 });
            }
            let Some(base) = device.base else {
                device.base = Some(best);
                continue;
            };
            found.push(CounterCheck {
                time,
                device: index,
                allocations: best.allocations - base.allocations,
                frees: frees_known.then_some(best.frees - base.frees),
                requested: best.requested - base.requested,
            });
        }
        found.sort_unstable_by_key(|r| r.device);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Stat;

    fn counters(allocated: i64, freed: i64, requested: i64) -> AllocatorCounters {
        let mut counters = AllocatorCounters::default();
        counters.stats[Metric::Allocation as usize][0] =
            Stat { allocated, freed, ..Stat::default() };
        counters.stats[Metric::RequestedBytes as usize][0] =
            Stat { allocated: requested, ..Stat::default() };
        counters
    }

    fn allocated(size: u64) -> Event {
        let memory_kind = MemoryKind::Torch(CudaIndex(0));
        let change = EventKind::Allocated { memory_kind, address: 512, size, levels: None };
        Event { time: Nanos(1), change, site: None }
    }

    fn freed() -> Event {
        let change =
            EventKind::Freed { memory_kind: AddressSpace::Torch, address: 512, in_backward: false };
        Event { time: Nanos(2), change, site: None }
    }

    #[test]
    fn what_is_under_way_at_one_look_is_settled_by_another() {
        let mut reconciler = CounterReconciler::new(true);
        reconciler.on_counters(CudaIndex(0), &counters(1000, 900, 5000));
        assert!(reconciler.take_checks(Nanos(0)).is_empty(), "the beginning");
        reconciler.on_event(&allocated(64));
        reconciler.on_event(&freed());
        // One more allocation is counted than seen, one free fewer.
        reconciler.on_counters(CudaIndex(0), &counters(1002, 900, 5128));
        reconciler.on_event(&allocated(64));
        reconciler.on_counters(CudaIndex(0), &counters(1002, 901, 5128));
        let found = reconciler.take_checks(Nanos(9));
        let expected = CounterCheck {
            time: Nanos(9),
            device: CudaIndex(0),
            allocations: 0,
            frees: Some(0),
            requested: 0,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_job_that_had_counted_nothing_is_compared_from_its_first_allocation_on() {
        let mut reconciler = CounterReconciler::new(true);
        reconciler.start_empty();
        reconciler.on_event(&allocated(64));
        reconciler.on_counters(CudaIndex(0), &counters(3, 0, 192));
        let found = reconciler.take_checks(Nanos(0));
        assert_eq!((found[0].allocations, found[0].frees, found[0].requested), (2, Some(0), 128));
        reconciler.on_counters(CudaIndex(0), &counters(1, 0, 10));
        assert!(reconciler.take_checks(Nanos(2)).is_empty(), "counted anew");
    }

    #[test]
    fn what_no_event_told_stays_missing() {
        let mut reconciler = CounterReconciler::new(true);
        reconciler.on_counters(CudaIndex(0), &counters(10, 5, 100));
        reconciler.take_checks(Nanos(0));
        reconciler.on_counters(CudaIndex(0), &counters(12, 6, 300));
        let found = reconciler.take_checks(Nanos(1));
        assert_eq!((found[0].allocations, found[0].frees, found[0].requested), (2, Some(1), 200));
        reconciler.on_counters(CudaIndex(0), &counters(1, 0, 10));
        assert!(reconciler.take_checks(Nanos(2)).is_empty(), "counted anew");
    }
}
