//! Follows the allocator: a thread polls its counters and the Python stacks.
//!
//! [`poll`] is one poll, [`counter_watch`] finds deltas, [`pace`] times polls, [`assembler`]
//! names the data, [`thread_waits`] asks the kernel which threads wait. Polls rest while a busy
//! job repeats itself ([`repetition`]).

mod address_reader;
mod address_windows;
mod assembler;
mod blocked_threads;
mod budget;
mod chains;
mod counter_watch;
mod following;
mod pace;
mod poll;
mod repetition;
mod thread_waits;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::FollowTotals;
use crate::python::StackPoller;
use crate::sampler::free_processors::{MANY_PROCESSORS, processors};
use crate::sampler::own_processor::OwnProcessor;
use crate::sampler::priority::raise_priority;
use crate::sampler::quiet_moment::LastChange;
use crate::sampler::time_slice::shorten_time_slice;
use crate::sampler::worker::{StopSignal, Worker};
use crate::target::processor_time;
use crate::target::{MemoryError, Process};
use crate::torch::{AddressDelta, AddressTables};

use address_reader::AddressReader;
use blocked_threads::BlockedThreads;
use budget::BudgetPart;
pub use budget::FollowBudget;
pub(super) use following::Following;
use pace::{FollowPace, NextPoll};
use poll::{PollPlan, PollState, RawBatch};
use thread_waits::ThreadWaits;

const HAND_OVER_WITHIN: Duration = Duration::from_micros(300);
const ASK_AGAIN_AFTER: Duration = Duration::from_micros(20);
const BUCKETS: usize = 1024;
const BUCKET_NANOS: u64 = 100;
const WAIT_FOR_ALLOCATOR: Duration = Duration::from_millis(5);

/// What the polling thread and the recorder share.
struct PollerShared {
    plans: AtomicU64,
    plan: Mutex<PollPlan>,
    wanted: AtomicBool,
    asleep: AtomicBool,
    gathered: Mutex<Vec<RawBatch>>,
    totals: Mutex<(FollowTotals, Option<MemoryError>)>,
}

#[derive(Default)]
struct PollSignals {
    /// Deltas seen. Set at once: addresses must be read before the next delta.
    changes: AtomicU64,
    rests: AtomicBool,
}

struct PollerHandle {
    shared: Arc<PollerShared>,
    thread: Option<Worker>,
    addresses: Option<AddressReader>,
}

impl PollerHandle {
    /// Time counts from `start`.
    fn start(
        process: &Arc<Process>,
        stacks: StackPoller,
        part: BudgetPart,
        start: Instant,
        last_change: LastChange,
    ) -> std::io::Result<PollerHandle> {
        let shared = Arc::new(PollerShared {
            plans: AtomicU64::new(0),
            plan: Mutex::default(),
            wanted: AtomicBool::new(false),
            asleep: AtomicBool::new(true),
            gathered: Mutex::default(),
            totals: Mutex::default(),
        });
        let part = Arc::new(part);
        let signals: Arc<PollSignals> = Arc::default();
        let waits = ThreadWaits::new(Arc::clone(process));
        let state = PollState::new(Box::new(process.memory()), stacks, waits, Arc::clone(&signals));
        let addresses =
            AddressReader::start(process, Arc::clone(&part), start, Arc::clone(&signals))?;
        let (for_thread, process) = (Arc::clone(&shared), Arc::clone(process));
        let thread = Worker::spawn("poll", move |stop| {
            // With few processors the job comes first.
            if processors() >= MANY_PROCESSORS {
                raise_priority();
            }
            // If refused, polls are further apart on busy machines, and the summary says so.
            let _ = shorten_time_slice();
            // By default the kernel adds 50 µs to a sleep.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut polling = PollingThread {
                shared: &for_thread,
                process: &process,
                stop,
                state,
                start,
                last_change,
                signals: &signals,
                totals: FollowTotals::default(),
                durations: vec![0; BUCKETS],
            };
            let ended = polling.run(&part).err();
            polling.publish(ended);
            for_thread.asleep.store(true, Ordering::Release);
        })?;
        Ok(PollerHandle { shared, thread: Some(thread), addresses })
    }

    fn reads_addresses(&self) -> bool {
        self.addresses.is_some()
    }

    fn set_tables(&self, tables: Option<AddressTables>) {
        if let Some(reader) = &self.addresses {
            reader.set(tables);
        }
    }

    fn take_addresses(&self) -> Vec<(u64, AddressDelta)> {
        self.addresses.as_ref().map(AddressReader::take).unwrap_or_default()
    }

    fn set(&self, plan: PollPlan) {
        *self.shared.plan.lock() = plan;
        self.shared.plans.fetch_add(1, Ordering::Release);
    }

    fn take(&self) -> Vec<RawBatch> {
        let began = Instant::now();
        self.shared.wanted.store(true, Ordering::Release);
        while self.shared.wanted.load(Ordering::Acquire)
            && !self.shared.asleep.load(Ordering::Acquire)
            && began.elapsed() < HAND_OVER_WITHIN
        {
            std::thread::sleep(ASK_AGAIN_AFTER);
        }
        std::mem::take(&mut self.shared.gathered.lock())
    }

    fn totals(&self) -> FollowTotals {
        let mut totals = self.shared.totals.lock().0;
        totals.cpu_nanos += self.addresses.as_ref().map_or(0, AddressReader::cpu_nanos);
        totals
    }

    /// Returns the error that ended the thread. Its last data can still be taken.
    fn end(&mut self) -> Option<MemoryError> {
        self.thread = None;
        if let Some(reader) = &mut self.addresses {
            reader.end();
        }
        self.shared.totals.lock().1
    }
}

struct PollingThread<'a> {
    shared: &'a PollerShared,
    process: &'a Process,
    stop: &'a StopSignal,
    state: PollState,
    start: Instant,
    last_change: LastChange,
    signals: &'a PollSignals,
    totals: FollowTotals,
    durations: Vec<u64>,
}

impl PollingThread<'_> {
    fn run(&mut self, part: &BudgetPart) -> Result<(), MemoryError> {
        let start = self.start;
        let clock = || start.elapsed().as_nanos() as u64;
        let mut plans = 0;
        let mut pace = FollowPace::new(part.processors(), start.elapsed(), processor_time());
        let mut processor = OwnProcessor::new();
        let mut blocked = BlockedThreads::default();
        let mut last: Option<u64> = None;
        while !self.stop.is_set() {
            let newest = self.shared.plans.load(Ordering::Acquire);
            if newest != plans {
                plans = newest;
                let plan = self.shared.plan.lock().clone();
                self.state.set(plan);
            }
            if self.state.is_idle() {
                self.sleep(WAIT_FOR_ALLOCATOR);
                last = None;
                continue;
            }
            let began = clock();
            let outcome = self.state.poll(&clock)?;
            let ended = clock();
            let took = ended - last.unwrap_or(began);
            self.count_poll(ended - began, took);
            processor.took(Duration::from_nanos(took), Duration::from_nanos(ended));
            last = Some(ended);
            if self.shared.wanted.load(Ordering::Relaxed) && self.hand_over() {
                self.shared.wanted.store(false, Ordering::Release);
            }
            let now = Duration::from_nanos(ended);
            if outcome.changed {
                self.last_change.set(ended);
            }
            pace.observe(now, outcome.changed, outcome.moved);
            blocked.read_counts(self.process, self.state.targets(), now);
            pace.set_yields(blocked.yields(now));
            let rests = self.state.rests(now);
            pace.set_rests(rests);
            self.signals.rests.store(rests, Ordering::Relaxed);
            if pace.wants_use(now) {
                pace.set_share(part.processors());
                pace.take_use(now, processor_time());
            }
            if self.waits(pace.next(now), ended) {
                last = None;
            }
        }
        Ok(())
    }

    /// `took`: with the work since the last poll.
    fn count_poll(&mut self, poll: u64, took: u64) {
        self.totals.polls += 1;
        self.totals.polling_nanos += took;
        let bucket = (poll / BUCKET_NANOS) as usize;
        self.durations[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Waits for the next poll; false if it comes at once.
    fn waits(&mut self, next: NextPoll, now: u64) -> bool {
        match next {
            NextPoll::Poll => return false,
            _ if self.state.is_pending() => return false,
            NextPoll::Rest(time) => self.rest(time, now),
            NextPoll::Sleep(time) | NextPoll::Yield(time) | NextPoll::Throttle(time) => {
                self.totals.held_back += u64::from(!matches!(next, NextPoll::Sleep(_)));
                self.sleep(time);
            }
        }
        true
    }

    fn hand_over(&mut self) -> bool {
        let Some(batch) = self.state.take() else { return false };
        if !batch.changes.is_empty() {
            self.shared.gathered.lock().push(batch);
        }
        self.publish(None);
        true
    }

    fn sleep(&mut self, time: Duration) {
        self.hand_over();
        let start = self.start;
        self.state.sleeps(&|| start.elapsed().as_nanos() as u64);
        self.shared.asleep.store(true, Ordering::Release);
        std::thread::sleep(time);
        self.shared.asleep.store(false, Ordering::Release);
    }

    /// `now` is in nanoseconds.
    fn rest(&mut self, time: Duration, now: u64) {
        let start = self.start;
        self.state.sleeps(&|| start.elapsed().as_nanos() as u64);
        let until = now + time.as_nanos() as u64;
        // Nothing is seen until then: the allocator does not count as quiet.
        self.last_change.set(until);
        std::thread::sleep(time);
    }

    fn publish(&mut self, ended: Option<MemoryError>) {
        if ended.is_some() {
            self.hand_over();
        }
        self.totals.cpu_nanos = processor_time().as_nanos() as u64;
        self.totals.slow_poll_nanos = self.slow_poll();
        let mut published = self.shared.totals.lock();
        published.0 = self.totals;
        published.1 = published.1.or(ended);
    }

    /// One poll in a hundred takes longer than this.
    fn slow_poll(&self) -> u64 {
        let slow = self.totals.polls / 100;
        let mut slower = 0;
        for (bucket, count) in self.durations.iter().enumerate().rev() {
            slower += count;
            if slower > slow {
                return (bucket as u64 + 1) * BUCKET_NANOS;
            }
        }
        0
    }
}
