//! A second thread, where processors are many: after each change that the poller saw it reads which addresses the allocator has given out.
//!
//! It reads on its own, for the poller has no time: the next change comes within microseconds. Each reading carries the running
//! totals of allocations and frees at which it was true; `address_windows.rs` finds the change that ended with these.

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
use crate::sampler::processor_time::processor_time;
use crate::sampler::worker::{StopSignal, Worker};
use crate::target::{Memory, MemoryError, Process};
use crate::torch::{AddressOutcome, AddressReading, AddressTables};

/// A smaller part of a processor is of no use.
const LEAST_SHARE: f64 = 0.05;
/// After so many attempts in a row that came to nothing the tables are given up: they are not what they seemed to be.
const MOST_FAILURES: u32 = 100_000;
/// After so many it sleeps for so long: a thread may have been interrupted between the tables and the counters.
const MOST_TRIES: u32 = 16;
const REST: Duration = Duration::from_micros(100);
/// So long before the next poll it is awake.
const AWAKE_BEFORE: Duration = Duration::from_micros(20);
/// While there are no tables to read.
const WAIT_FOR_TABLES: Duration = Duration::from_millis(5);
/// Readings that are kept until they are taken; what is read beyond is lost.
const MAX_READINGS: usize = 1 << 15;

/// What the thread and the recorder share.
#[derive(Default)]
struct ReaderShared {
    /// Grows when other tables are to be read.
    plans: AtomicU64,
    tables: Mutex<Option<AddressTables>>,
    /// With the time, in nanoseconds since the recording began, up to which each was true.
    readings: Mutex<Vec<(u64, AddressReading)>>,
    cpu_nanos: AtomicU64,
}

/// The handle of the thread.
pub(super) struct AddressReader {
    shared: Arc<ReaderShared>,
    thread: Option<Worker>,
}

impl AddressReader {
    /// Starts it where the budget has something to spare for it. `signals` are what the poller tells.
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
            // A target that has ended is noticed by the recorder; without addresses the recording goes on.
            let _ = reading.run(&part);
        })?;
        Ok(Some(AddressReader { shared, thread: Some(thread) }))
    }

    /// Sets what is read from now on.
    pub(super) fn set(&self, tables: Option<AddressTables>) {
        *self.shared.tables.lock() = tables;
        self.shared.plans.fetch_add(1, Ordering::Release);
    }

    /// What was read until now, in order.
    pub(super) fn take(&self) -> Vec<(u64, AddressReading)> {
        std::mem::take(&mut self.shared.readings.lock())
    }

    /// Time of a processor that it has used, in nanoseconds, as of some milliseconds ago.
    pub(super) fn cpu_nanos(&self) -> u64 {
        self.shared.cpu_nanos.load(Ordering::Relaxed)
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        self.thread = None;
    }
}

/// The thread's own.
struct ReadingThread<'a> {
    shared: &'a ReaderShared,
    stop: &'a StopSignal,
    memory: Box<dyn Memory>,
    start: Instant,
    signals: &'a PollSignals,
    /// How many changes there were at the last reading.
    seen: u64,
    /// Attempts in a row that came to nothing.
    failures: u32,
    /// Whether a reading was lost: what changed in it is not known.
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
            } else if let Some(rest) = self.rest(now) {
                std::thread::sleep(rest);
                now = self.start.elapsed();
                continue;
            } else {
                std::hint::spin_loop();
            }
            let before = std::mem::replace(&mut now, self.start.elapsed());
            processor.took(now.saturating_sub(before), now);
            pace.saw(now, changed, false);
            if pace.wants_use(now) {
                let used = processor_time();
                pace.set_share(part.to_spare());
                pace.take_use(now, used);
                self.shared.cpu_nanos.store(used.as_nanos() as u64, Ordering::Relaxed);
            }
            if let NextPoll::Sleep(time)
            | NextPoll::Rest(time)
            | NextPoll::GiveWay(time)
            | NextPoll::HoldBack(time) = pace.next(now)
            {
                std::thread::sleep(time);
                now = self.start.elapsed();
            }
        }
        Ok(())
    }

    /// How long no poll comes whose change would have to be read at once.
    fn rest(&self, now: Duration) -> Option<Duration> {
        let next = Duration::from_nanos(self.signals.next_poll.load(Ordering::Relaxed));
        next.checked_sub(now + AWAKE_BEFORE).filter(|rest| *rest > AWAKE_BEFORE)
    }

    /// Reads what has changed.
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
            AddressOutcome::Read(reading) => (reading, 0),
            AddressOutcome::Late { reading, readings } => (reading, readings),
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
        if late > 0 {
            // Those that should have told it and were not taken yet become one with it: together they are right.
            let first = readings.len().saturating_sub(late);
            let before = readings.drain(first..).map(|(_, reading)| reading.changes);
            let all = before
                .chain([reading.changes.take()])
                .reduce(|all, then| Some(all?.followed_by(then?)));
            reading.changes = all.flatten();
        }
        readings.push((now, reading));
    }
}

/// A table that was replaced by a larger one is not where it was.
fn moving_if_replaced(
    outcome: Result<AddressOutcome, MemoryError>,
) -> Result<AddressOutcome, MemoryError> {
    match outcome {
        Err(MemoryError::Fault { .. }) => Ok(AddressOutcome::Moving),
        outcome => outcome,
    }
}
