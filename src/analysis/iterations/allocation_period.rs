//! The period of training: a steady loop's levels recur after a fixed number of allocations.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{
    CudaIndex, EventKind, MemoryKind, Metric, Nanos, Pool, Record, RecordSink, SinkResult,
    TrainingStep,
};

/// For all devices together.
const MAX_READINGS: usize = 1 << 20;
const MAX_TRIED: usize = 64;
/// Later equal levels compared with each.
const NEIGHBOURS: usize = 8;
/// Comparisons needed, and the fraction that must be equal.
const MIN_COMPARED: usize = 16;
const MIN_EQUAL: f64 = 0.9;
const MIN_PERIODS: i64 = 3;

/// The number of allocations after which levels recur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationPeriod {
    /// The device whose allocations are counted.
    pub device: CudaIndex,
    /// Its length.
    pub allocations: i64,
    /// Allocation count at an iteration's start: the lowest level.
    pub from: i64,
    /// Events were counted, instead of the allocator's own count.
    pub by_event: bool,
    /// Pairs of polls one period apart.
    pub compared: usize,
    /// Pairs with equal levels.
    pub equal: usize,
}

impl AllocationPeriod {
    /// `None` before `from`.
    pub(crate) fn step(&self, allocations: i64, time: Nanos) -> Option<TrainingStep> {
        let step = u64::try_from(allocations - self.from).ok()? / self.allocations.unsigned_abs();
        Some(TrainingStep { time, step, ..TrainingStep::default() })
    }
}

/// (Bytes allocated, active) by allocation count.
type CountedLevels = BTreeMap<i64, (i64, i64)>;

/// Finds the period of the busiest device.
#[derive(Debug, Default)]
pub struct PeriodFinder {
    counters: BTreeMap<CudaIndex, CountedLevels>,
    events: BTreeMap<CudaIndex, (i64, CountedLevels)>,
    readings: usize,
}

impl PeriodFinder {
    /// The shortest period, if any.
    pub fn period(&self) -> Option<AllocationPeriod> {
        let by_event = self.events.iter().map(|(device, (_, readings))| (*device, readings, true));
        let by_counter = self.counters.iter().map(|(device, readings)| (*device, readings, false));
        let length = |readings: &CountedLevels| match (
            readings.first_key_value(),
            readings.last_key_value(),
        ) {
            (Some((first, _)), Some((last, _))) => last.saturating_sub(*first),
            _ => 0,
        };
        let (device, readings, by_event) = by_event
            .chain(by_counter)
            .max_by_key(|(_, readings, by_event)| (*by_event, length(readings)))?;
        let found = shortest(readings)?;
        Some(AllocationPeriod { device, by_event, ..found })
    }
}

fn shortest(readings: &CountedLevels) -> Option<AllocationPeriod> {
    let mut at: FxHashMap<(i64, i64), Vec<i64>> = FxHashMap::default();
    for (allocations, levels) in readings {
        at.entry(*levels).or_default().push(*allocations);
    }
    let mut votes: FxHashMap<i64, u32> = FxHashMap::default();
    for same in at.values() {
        for (n, from) in same.iter().enumerate() {
            for to in same[n + 1..].iter().take(NEIGHBOURS) {
                *votes.entry(to - from).or_default() += 1;
            }
        }
    }
    let mut votes: Vec<(i64, u32)> = votes.into_iter().collect();
    votes.sort_by_key(|&(distance, votes)| (std::cmp::Reverse(votes), distance));
    let (first, last) = (*readings.first_key_value()?.0, *readings.last_key_value()?.0);
    let mut tried: Vec<i64> = votes.into_iter().take(MAX_TRIED).map(|(d, _)| d).collect();
    tried.sort_unstable();
    tried.into_iter().filter(|d| *d > 1 && (last - first) / d >= MIN_PERIODS).find_map(|d| {
        let (mut compared, mut equal) = (0, 0);
        for (allocations, levels) in readings {
            if let Some(before) = readings.get(&(allocations - d)) {
                compared += 1;
                equal += usize::from(before == levels);
            }
        }
        if compared < MIN_COMPARED || (equal as f64) < MIN_EQUAL * compared as f64 {
            return None;
        }
        // Constant levels recur after any distance.
        let range = readings.range(last - d..);
        let (low, high) = (range.clone().map(|(_, l)| l.0).min()?, range.map(|(_, l)| l.0).max()?);
        if low == high {
            return None;
        }
        // The next iteration begins after this poll.
        let lowest = readings.range(first..first + 2 * d).min_by_key(|(n, l)| (l.0, **n))?;
        Some(AllocationPeriod {
            device: CudaIndex(0),
            allocations: d,
            from: *lowest.0,
            by_event: false,
            compared,
            equal,
        })
    })
}

impl RecordSink for PeriodFinder {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Counters { device, counters, .. } => {
                let readings = self.counters.entry(*device).or_default();
                if self.readings < MAX_READINGS {
                    self.readings += 1;
                    let stat = |metric: Metric| counters.stat(metric, Pool::All);
                    let made = stat(Metric::Allocation).allocated;
                    let active = stat(Metric::Active).current;
                    readings.insert(made, (stat(Metric::AllocatedBytes).current, active));
                }
            }
            Record::Events(batch) => {
                for event in &batch.events {
                    if let EventKind::Allocated {
                        memory_kind: MemoryKind::Torch(device),
                        levels,
                        ..
                    } = event.change
                    {
                        let (made, readings) = self.events.entry(device).or_default();
                        *made += 1;
                        if let Some(levels) = levels
                            && self.readings < MAX_READINGS
                        {
                            self.readings += 1;
                            readings.insert(*made, (levels.allocated, levels.active));
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
