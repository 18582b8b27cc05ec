//! With many processors, a second thread reads the addresses allocated and freed in each delta.
//!
//! A reading has the running totals at which it was true; `address_windows.rs` finds the delta with
//! these. Nothing is read while polls rest: the job would have to fetch its tables back into its
//! caches. The first reading afterwards is only a new base.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::PollSignals;
use super::budget::BudgetPart;
use super::pace::{FollowPace, NextPoll};
use crate::sampler::own_processor::OwnProcessor;
use crate::sampler::priority::raise_priority;
use crate::sampler::worker::{StopSignal, Worker};
use crate::target::processor_time;
use crate::target::{Memory, MemoryError, Process};
use crate::torch::{AddressDelta, AddressOutcome, AddressTables};

const LEAST_SHARE: f64 = 0.05;
/// After this many failures in a row the tables are given up as wrong.
const MOST_FAILURES: u32 = 100_000;
/// After this many failures it sleeps: the job may be interrupted between tables and
/// counters.
const MOST_TRIES: u32 = 16;
const REST: Duration = Duration::from_micros(100);
const WAIT_FOR_POLLS: Duration = Duration::from_micros(200);
const WAIT_FOR_TABLES: Duration = Duration::from_millis(5);
const MAX_READINGS: usize = 1 << 15;

#[derive(Default)]
struct ReaderShared {
    plans: AtomicU64,
    tables: Mutex<Option<AddressTables>>,
    /// Each with the end of its read: nanoseconds since the recording's start.
    readings: Mutex<Vec<(u64, AddressDelta)>>,
    cpu_nanos: AtomicU64,
}

pub(super) struct AddressReader {
    shared: Arc<ReaderShared>,
    thread: Option<Worker>,
}

impl AddressReader {
    /// `None` if the budget cannot spare it. The poller sets `signals`.
    pub(super) fn start(
        process: &Process,
        part: Arc<BudgetPart>,
        start: Instant,
        signals: Arc<PollSignals>,
    ) -> std::io::Result<Option<AddressReader>> {
        if part.to_spare() < LEAST_SHARE {
            return Ok(None);
        }
        let shared = Arc::new(ReaderShared::default());
        let memory: Box<dyn Memory> = Box::new(process.memory());
        let for_thread = Arc::clone(&shared);
        let thread = Worker::spawn("addresses", move |stop| {
            raise_priority();
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut reading = ReadingThread {
                shared: &for_thread,
                stop,
                memory,
                start,
                signals: &signals,
                seen: 0,
                failures: 0,
                lost: false,
            };
            let _ = reading.run(&part);
        })?;
        Ok(Some(AddressReader { shared, thread: Some(thread) }))
    }

    pub(super) fn set(&self, tables: Option<AddressTables>) {
        *self.shared.tables.lock() = tables;
        self.shared.plans.fetch_add(1, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<(u64, AddressDelta)> {
        std::mem::take(&mut self.shared.readings.lock())
    }

    pub(super) fn cpu_nanos(&self) -> u64 {
        self.shared.cpu_nanos.load(Ordering::Relaxed)
    }

    pub(super) fn end(&mut self) {
        self.thread = None;
    }
}

struct ReadingThread<'a> {
    shared: &'a ReaderShared,
    stop: &'a StopSignal,
    memory: Box<dyn Memory>,
    start: Instant,
    signals: &'a PollSignals,
    seen: u64,
    failures: u32,
    /// A reading was lost or skipped: its addresses are unknown.
    lost: bool,
}

impl ReadingThread<'_> {
    fn run(&mut self, part: &BudgetPart) -> Result<(), MemoryError> {
        let mut plans = 0;
        let mut tables = None;
        let mut now = self.start.elapsed();
        let mut pace = FollowPace::new(part.to_spare(), self.start.elapsed(), processor_time());
        let mut processor = OwnProcessor::new();
        while !self.stop.is_set() {
            if self.signals.rests.load(Ordering::Relaxed) {
                self.lost = true;
                std::thread::sleep(WAIT_FOR_POLLS);
                now = self.start.elapsed();
                continue;
            }
            let newest = self.shared.plans.load(Ordering::Acquire);
            if newest != plans {
                plans = newest;
                tables = self.shared.tables.lock().clone();
                self.failures = 0;
            }
            let Some(known) = &mut tables else {
                std::thread::sleep(WAIT_FOR_TABLES);
                now = self.start.elapsed();
                continue;
            };
            let changes = self.signals.changes.load(Ordering::Acquire);
            let changed = changes != self.seen;
            if changed {
                self.read(known, changes)?;
                if self.failures > MOST_FAILURES {
                    tables = None;
                }
            } else if known.is_doubted() {
                let outcome = moving_if_replaced(known.verify(&*self.memory))?;
                self.keep(outcome);
            } else {
                std::hint::spin_loop();
            }
            let before = std::mem::replace(&mut now, self.start.elapsed());
            processor.took(now.saturating_sub(before), now);
            pace.observe(now, changed, false);
            if pace.wants_use(now) {
                let used = processor_time();
                pace.set_share(part.to_spare());
                pace.take_use(now, used);
                self.shared.cpu_nanos.store(used.as_nanos() as u64, Ordering::Relaxed);
            }
            if let NextPoll::Sleep(time)
            | NextPoll::Rest(time)
            | NextPoll::Yield(time)
            | NextPoll::Throttle(time) = pace.next(now)
            {
                std::thread::sleep(time);
                now = self.start.elapsed();
            }
        }
        Ok(())
    }

    fn read(&mut self, tables: &mut AddressTables, changes: u64) -> Result<(), MemoryError> {
        let outcome = moving_if_replaced(tables.read(&*self.memory))?;
        if let AddressOutcome::Moving = outcome {
            self.failures += 1;
            if self.failures.is_multiple_of(MOST_TRIES) {
                std::thread::sleep(REST);
            }
            return Ok(());
        }
        self.failures = 0;
        self.seen = changes;
        self.keep(outcome);
        Ok(())
    }

    fn keep(&mut self, outcome: AddressOutcome) {
        let (mut reading, late) = match outcome {
            AddressOutcome::Read(reading) => (reading, None),
            AddressOutcome::Late { reading, readings } => (reading, Some(readings)),
            AddressOutcome::Unchanged | AddressOutcome::Moving => return,
        };
        let now = self.start.elapsed().as_nanos() as u64;
        let mut readings = self.shared.readings.lock();
        if readings.len() == MAX_READINGS {
            self.lost = true;
            return;
        }
        if std::mem::take(&mut self.lost) {
            reading.changes = None;
        }
        match late {
            Some(late) => merge_late(&mut readings, late, (now, reading)),
            None => readings.push((now, reading)),
        }
    }
}

/// Adds late addresses to the readings that missed them, among the last `late`. If several may
/// have missed them, merges these and all between them: their sum is right.
fn merge_late(
    readings: &mut Vec<(u64, AddressDelta)>,
    late: usize,
    (now, reading): (u64, AddressDelta),
) {
    let first = readings.len().saturating_sub(late);
    let last = readings.last().map(|(_, last)| last.totals);
    // All was allocated and freed before the last reading.
    let is_before = last == Some(reading.totals);
    let those = |may_be: &dyn Fn(&AddressDelta) -> bool| -> Option<(usize, usize)> {
        let is_it = |(_, of): &(u64, AddressDelta)| may_be(of);
        let from = readings[first..].iter().position(is_it)?;
        Some((first + from, first + readings[first..].iter().rposition(is_it)?))
    };
    let exactly = those(&|of| is_before && of.missing.and(reading.missing).is_nothing());
    let found = exactly.or_else(|| those(&|of| !of.missing.is_nothing()));
    let from = found.map_or(first, |(from, _)| from);
    let until = found.filter(|_| is_before).map_or(readings.len(), |(_, to)| to + 1);
    let mut all = reading;
    let mut time = now;
    let parts: Vec<(u64, AddressDelta)> = readings.drain(from..until).collect();
    if let Some((ended, of)) = parts.last().filter(|_| is_before) {
        (time, all.totals) = (*ended, of.totals);
    }
    all.missing = parts.iter().fold(all.missing, |sum, (_, part)| sum.and(part.missing));
    let changes = parts.into_iter().map(|(_, part)| part.changes).chain([all.changes.take()]);
    all.changes = changes.reduce(|sum, then| Some(sum?.followed_by(then?))).flatten();
    readings.insert(from, (time, all));
}

/// A table that was replaced by a larger one has moved.
fn moving_if_replaced(
    outcome: Result<AddressOutcome, MemoryError>,
) -> Result<AddressOutcome, MemoryError> {
    match outcome {
        Err(MemoryError::Fault { .. }) => Ok(AddressOutcome::Moving),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AddressedBlock;
    use crate::torch::{AddressChanges, AllocationTotals, MissingChanges};

    fn reading(
        at: i64,
        allocated: &[u64],
        freed: &[u64],
        missing: (i64, i64),
    ) -> (u64, AddressDelta) {
        let block = |address: &u64| AddressedBlock { address: *address, size: 512, requested: 512 };
        let allocated = allocated.iter().map(block).collect();
        let (count, allocated_bytes) = missing;
        let missing = MissingChanges { allocations: count, frees: count, allocated_bytes };
        let totals = AllocationTotals { allocations: at, frees: 0 };
        let changes = Some(AddressChanges { allocated, freed: freed.to_vec() });
        (at as u64, AddressDelta { totals, changes, missing })
    }

    fn summary(readings: &[(u64, AddressDelta)]) -> Vec<(i64, Vec<u64>, Vec<u64>)> {
        let summary = |(_, of): &(u64, AddressDelta)| {
            let changes = of.changes.clone().unwrap();
            let allocated = changes.allocated.iter().map(|block| block.address).collect();
            (of.totals.allocations, allocated, changes.freed)
        };
        readings.iter().map(summary).collect()
    }

    fn four(second: (i64, i64), third: (i64, i64)) -> Vec<(u64, AddressDelta)> {
        vec![
            reading(1, &[10], &[], (0, 0)),
            reading(2, &[], &[], second),
            reading(3, &[], &[], third),
            reading(4, &[40], &[], (0, 0)),
        ]
    }

    #[test]
    fn a_late_address_goes_to_the_reading_without_it() {
        let mut readings = four((1, 512), (1, 1024));
        merge_late(&mut readings, 3, reading(4, &[7], &[7], (-1, -512)));
        let expected = [
            (1, vec![10], vec![]),
            (2, vec![7], vec![7]),
            (3, vec![], vec![]),
            (4, vec![40], vec![]),
        ];
        assert_eq!(summary(&readings), expected);
        assert!(readings[1].1.missing.is_nothing() && !readings[2].1.missing.is_nothing());
    }

    #[test]
    fn readings_that_may_both_lack_an_address_merge() {
        let mut readings = four((1, 512), (1, 512));
        merge_late(&mut readings, 3, reading(4, &[7], &[7], (-1, -512)));
        let expected = [(1, vec![10], vec![]), (3, vec![7], vec![7]), (4, vec![40], vec![])];
        assert_eq!(summary(&readings), expected);
        assert_eq!((readings[1].0, readings[1].1.missing.allocations), (3, 1));
    }

    #[test]
    fn a_late_address_merges_readings_that_may_have_missed_it() {
        let mut readings = four((0, 0), (1, 512));
        merge_late(&mut readings, 4, reading(5, &[7, 50], &[7], (-1, -512)));
        let expected = [(1, vec![10], vec![]), (2, vec![], vec![]), (5, vec![7, 40, 50], vec![7])];
        assert_eq!(summary(&readings), expected);
    }

    #[test]
    fn all_readings_that_may_lack_an_address_merge() {
        let mut readings = vec![reading(3, &[30], &[], (0, 0)), reading(4, &[40], &[], (0, 0))];
        merge_late(&mut readings, 1, reading(5, &[7], &[7], (-1, -512)));
        assert_eq!(summary(&readings), [(3, vec![30], vec![]), (5, vec![7, 40], vec![7])]);
        let mut none = Vec::new();
        merge_late(&mut none, 9, reading(5, &[7], &[7], (-1, -512)));
        assert_eq!(summary(&none), [(5, vec![7], vec![7])]);
    }
}
