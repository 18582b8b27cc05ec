//! Compares the events with the allocator's running counts.
//!
//! The allocator counts an allocation before its event, and a free after it. Operations in flight
//! only add blocks to its count, so the reads with the smallest difference have none in flight.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{
    AddressSpace, AllocatorCounters, CounterCheck, CudaIndex, Event, EventKind, MemoryKind, Metric,
    Nanos, Pool,
};

const MIN_SIGHTINGS: u32 = 3;
const MIN_READS: u32 = 20;
/// After this many reads at a level, fewer blocks mean that frees were missed.
const CERTAIN_SIGHTINGS: u32 = 50;
const MAX_LEVELS: usize = 64;
/// After this many checks without a read at rest, a difference counts as missing.
const MAX_RESTLESS: u32 = 2;

#[derive(Debug, Clone, Copy, Default)]
struct ProbeTotals {
    allocations: i64,
    requested: i64,
}

/// How far the running counts are ahead of the events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CounterLead {
    allocations: i64,
    frees: i64,
    requested: i64,
}

impl CounterLead {
    fn since(self, base: CounterLead) -> CounterLead {
        CounterLead {
            allocations: self.allocations - base.allocations,
            frees: self.frees - base.frees,
            requested: self.requested - base.requested,
        }
    }

    fn plus(self, other: CounterLead) -> CounterLead {
        CounterLead {
            allocations: self.allocations + other.allocations,
            frees: self.frees + other.frees,
            requested: self.requested + other.requested,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestState {
    AtRest,
    AtLowerRest,
    Busy,
}

/// Blocks that the allocator counts beyond the events at rest.
#[derive(Debug, Default)]
struct RestLevel {
    sightings: BTreeMap<i64, u32>,
    reads: u32,
    level: Option<i64>,
    is_certain: bool,
}

impl RestLevel {
    fn see(&mut self, blocks: i64) -> RestState {
        let sightings = self.sightings.entry(blocks).or_default();
        *sightings = sightings.saturating_add(1);
        let is_certain = *sightings >= CERTAIN_SIGHTINGS;
        if self.sightings.len() > MAX_LEVELS {
            self.sightings.pop_last();
        }
        self.reads = self.reads.saturating_add(1);
        match self.level {
            Some(level) if blocks > level => return RestState::Busy,
            Some(level) if blocks == level => {
                self.is_certain |= is_certain;
                return RestState::AtRest;
            }
            None if self.reads < MIN_READS => return RestState::Busy,
            _ => {}
        }
        let mut known = self.sightings.iter().filter(|(_, seen)| **seen >= MIN_SIGHTINGS);
        let lowest = known.next().map(|(blocks, _)| *blocks);
        match lowest.filter(|lowest| *lowest == blocks) {
            Some(_) => {
                self.level = lowest;
                RestState::AtLowerRest
            }
            None => RestState::Busy,
        }
    }
}

#[derive(Debug, Default)]
struct ReconciledDevice {
    seen: ProbeTotals,
    /// Counted before the probes were placed.
    base: Option<CounterLead>,
    /// Missing when the job last reset its running counts.
    carried: CounterLead,
    /// Missing by the last read at rest.
    missing: CounterLead,
    /// Missing since the last check.
    at_rest: Option<CounterLead>,
    /// The read with the least in flight since the last check.
    least: Option<(i64, CounterLead)>,
}

impl ReconciledDevice {
    fn on_rest(&mut self, lead: CounterLead, starts_empty: bool) {
        let base = match self.base {
            None if starts_empty => CounterLead::default(),
            None => lead,
            Some(base) => base,
        };
        let missing = lead.since(base);
        if missing.allocations < 0 || missing.requested < 0 {
            // The job called `reset_accumulated_memory_stats`. The number of live blocks is right.
            self.base = Some(lead);
            self.carried = self.missing;
            self.at_rest = Some(self.missing);
            return;
        }
        let is_first = self.base.is_none() && !starts_empty;
        self.base = Some(base);
        if !is_first {
            self.missing = self.carried.plus(missing);
            self.at_rest = Some(self.missing);
        }
    }

    /// The difference while something is always in flight; `None` after a reset.
    fn restless(&self) -> Option<CounterLead> {
        let missing = self.least?.1.since(self.base?);
        (missing.allocations >= 0 && missing.requested >= 0).then(|| self.carried.plus(missing))
    }
}

#[derive(Debug, Default)]
pub(super) struct CounterReconciler {
    devices: FxHashMap<CudaIndex, ReconciledDevice>,
    frees: i64,
    frees_probed: bool,
    starts_empty: bool,
    rest: RestLevel,
    has_rested: bool,
    restless: u32,
}

impl CounterReconciler {
    pub(super) fn new(frees_probed: bool) -> CounterReconciler {
        CounterReconciler { frees_probed, ..CounterReconciler::default() }
    }

    /// Nothing was counted before the probes: any excess is missing.
    pub(super) fn start_empty(&mut self) {
        self.starts_empty = true;
        self.rest.level = Some(0);
        self.rest.is_certain = true;
    }

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

    /// Returns whether nothing was in flight.
    pub(super) fn on_counters(&mut self, all: &[(CudaIndex, AllocatorCounters)]) -> bool {
        let blocks = self.blocks_beyond_events(all);
        let state = self.rest.see(blocks);
        if state == RestState::AtLowerRest && !self.rest.is_certain {
            for device in self.devices.values_mut() {
                *device = ReconciledDevice { seen: device.seen, ..ReconciledDevice::default() };
            }
        }
        self.has_rested |= state != RestState::Busy;
        let (frees, starts_empty) = (self.frees, self.starts_empty);
        for (index, counters) in all {
            let device = self.devices.entry(*index).or_default();
            let total = |metric: Metric| counters.stat(metric, Pool::All);
            let lead = CounterLead {
                allocations: total(Metric::Allocation).allocated - device.seen.allocations,
                frees: total(Metric::Allocation).freed - frees,
                requested: total(Metric::RequestedBytes).allocated - device.seen.requested,
            };
            if state != RestState::Busy {
                device.on_rest(lead, starts_empty);
            }
            if device.least.is_none_or(|(least, _)| blocks <= least) {
                device.least = Some((blocks, lead));
            }
        }
        state != RestState::Busy
    }

    /// A free does not name its device.
    fn blocks_beyond_events(&self, all: &[(CudaIndex, AllocatorCounters)]) -> i64 {
        let seen: i64 = self.devices.values().map(|device| device.seen.allocations).sum();
        let stats = all.iter().map(|(_, counters)| counters.stat(Metric::Allocation, Pool::All));
        match self.frees_probed {
            true => stats.map(|stat| stat.current).sum::<i64>() - (seen - self.frees),
            // Without free events, only the running count helps.
            false => stats.map(|stat| stat.allocated).sum::<i64>() - seen,
        }
    }

    /// The first reads only set the base.
    pub(super) fn take_checks(&mut self, time: Nanos) -> Vec<CounterCheck> {
        let frees_known = self.frees_probed && self.devices.len() == 1;
        if std::mem::take(&mut self.has_rested) {
            self.restless = 0;
        } else if self.devices.values().any(|device| device.least.is_some()) {
            self.restless += 1;
        }
        let gives_up = self.restless >= MAX_RESTLESS;
        let mut found = Vec::new();
        for (&index, device) in &mut self.devices {
            let differs = device.at_rest.or_else(|| device.restless().filter(|_| gives_up));
            (device.at_rest, device.least) = (None, None);
            let Some(differs) = differs else { continue };
            found.push(CounterCheck {
                time,
                device: index,
                allocations: differs.allocations,
                frees: frees_known.then_some(differs.frees),
                requested: differs.requested,
            });
        }
        found.sort_unstable_by_key(|r| r.device);
        found
    }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
