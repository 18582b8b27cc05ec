//! Following the allocator: a thread that polls its counters and the Python stacks, and what came of each change.
//!
//! [`PollerHandle`] is the handle of the thread; [`poll`] is one poll, [`counter_watch`] tells what changed between two copies of the counters, [`pace`] says when the next one comes, [`assembler`] gives
//! what was gathered its names, on the thread of the recorder. [`thread_waits`] asks the kernel which threads wait beside a change. While a busy job repeats itself, polls rest for most of the time ([`repetition`]). Where processors are many, a second thread reads which addresses were
//! given out ([`address_reader`]), and [`address_windows`] says which changes these belong to.

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
use crate::sampler::own_processor::OwnProcessor;
use crate::sampler::priority::raise_priority;
use crate::sampler::processor_time::processor_time;
use crate::sampler::quiet_moment::LastChange;
use crate::sampler::time_slice::shorten_time_slice;
use crate::sampler::worker::{StopSignal, Worker};
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

/// How long the recorder waits for the poller to hand over what it has.
const HAND_OVER_WITHIN: Duration = Duration::from_micros(300);
const ASK_AGAIN_AFTER: Duration = Duration::from_micros(20);
/// Buckets of the durations of polls, of 100 ns each.
const BUCKETS: usize = 1024;
const BUCKET_NANOS: u64 = 100;
/// With this many processors there is one to spare as a rule.
const MANY_PROCESSORS: usize = 4;
/// Between two looks at whether the allocator is there while it is not.
const WAIT_FOR_ALLOCATOR: Duration = Duration::from_millis(5);

/// What the poller and the recorder share.
struct PollerShared {
    /// Grows with every new plan.
    plans: AtomicU64,
    plan: Mutex<PollPlan>,
    /// The recorder wants what was gathered.
    wanted: AtomicBool,
    /// The poller sleeps, and has handed over everything.
    asleep: AtomicBool,
    gathered: Mutex<Vec<RawBatch>>,
    totals: Mutex<(FollowTotals, Option<MemoryError>)>,
}

/// What the poller tells the thread that reads addresses.
#[derive(Default)]
struct PollSignals {
    /// How many changes were seen: told at once, for what is read after each has to be read before the next one.
    changes: AtomicU64,
    /// Whether polls rest, for the job does what it did before.
    rests: AtomicBool,
}

/// A thread that polls one target.
struct PollerHandle {
    shared: Arc<PollerShared>,
    thread: Option<Worker>,
    addresses: Option<AddressReader>,
}

impl PollerHandle {
    /// Starts it; it keeps to its part of the budget, its times count from `start`, and it tells when the counters changed last.
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
            // It comes for microseconds, but where processors are few the job comes first.
            if std::thread::available_parallelism().is_ok_and(|n| n.get() >= MANY_PROCESSORS) {
                raise_priority();
            }
            // Where nothing grants it, polls are further apart on busy machines, which the summary tells.
            let _ = shorten_time_slice();
            // Sleeps of microseconds are wanted; usually the kernel lengthens them by fifty.
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
            polling.tell(ended);
            for_thread.asleep.store(true, Ordering::Release);
        })?;
        Ok(PollerHandle { shared, thread: Some(thread), addresses })
    }

    /// Whether there is a processor to spare for reading addresses.
    fn reads_addresses(&self) -> bool {
        self.addresses.is_some()
    }

    /// Sets which tables of addresses are read from now on.
    fn set_tables(&self, tables: Option<AddressTables>) {
        if let Some(reader) = &self.addresses {
            reader.set(tables);
        }
    }

    /// All readings of addresses until now, in order.
    fn take_addresses(&self) -> Vec<(u64, AddressDelta)> {
        self.addresses.as_ref().map(AddressReader::take).unwrap_or_default()
    }

    /// Sets what is polled from now on.
    fn set(&self, plan: PollPlan) {
        *self.shared.plan.lock() = plan;
        self.shared.plans.fetch_add(1, Ordering::Release);
    }

    /// Everything gathered until now.
    fn take(&self) -> Vec<RawBatch> {
        let began = Instant::now();
        self.shared.wanted.store(true, Ordering::Release);
        while self.shared.wanted.load(Ordering::Acquire)
            && !self.shared.asleep.load(Ordering::Acquire)
            && began.elapsed() < HAND_OVER_WITHIN
        {
            // The poller may need the processor to answer.
            std::thread::sleep(ASK_AGAIN_AFTER);
        }
        std::mem::take(&mut self.shared.gathered.lock())
    }

    /// What it has done so far, as of some milliseconds ago.
    fn totals(&self) -> FollowTotals {
        let mut totals = self.shared.totals.lock().0;
        totals.cpu_nanos += self.addresses.as_ref().map_or(0, AddressReader::cpu_nanos);
        totals
    }

    /// Ends it; what it gathered last can still be taken. The error is the one that ended it before.
    fn end(&mut self) -> Option<MemoryError> {
        // Tells it to stop, and waits until it has.
        self.thread = None;
        if let Some(reader) = &mut self.addresses {
            reader.end();
        }
        self.shared.totals.lock().1
    }
}

/// The thread's own.
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
            self.totals.polls += 1;
            let took = ended - last.unwrap_or(began);
            self.totals.polling_nanos += took;
            processor.took(Duration::from_nanos(took), Duration::from_nanos(ended));
            let bucket = ((ended - began) / BUCKET_NANOS) as usize;
            self.durations[bucket.min(BUCKETS - 1)] += 1;
            last = Some(ended);
            if self.shared.wanted.load(Ordering::Relaxed) && self.hand_over() {
                self.shared.wanted.store(false, Ordering::Release);
            }
            let now = Duration::from_nanos(ended);
            if outcome.changed {
                self.last_change.set(ended);
            }
            pace.saw(now, outcome.changed, outcome.moved);
            blocked.look(self.process, self.state.targets(), now);
            pace.set_gives_way(blocked.gives_way(now));
            let rests = self.state.rests(now);
            pace.set_rests(rests);
            self.signals.rests.store(rests, Ordering::Relaxed);
            if pace.wants_use(now) {
                pace.set_share(part.processors());
                pace.take_use(now, processor_time());
            }
            let next = pace.next(now);
            match next {
                NextPoll::Poll => {}
                // The next poll confirms what this one saw.
                _ if self.state.is_pending() => {}
                NextPoll::Rest(time) => {
                    self.rest(time, ended);
                    last = None;
                }
                NextPoll::Sleep(time) | NextPoll::GiveWay(time) | NextPoll::HoldBack(time) => {
                    self.totals.held_back += u64::from(!matches!(next, NextPoll::Sleep(_)));
                    self.sleep(time);
                    last = None;
                }
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> bool {
        let Some(batch) = self.state.take() else { return false };
        if !batch.changes.is_empty() {
            self.shared.gathered.lock().push(batch);
        }
        self.tell(None);
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

    /// Sleeps for a moment in which the job goes on; `now` is in nanoseconds.
    fn rest(&mut self, time: Duration, now: u64) {
        let start = self.start;
        self.state.sleeps(&|| start.elapsed().as_nanos() as u64);
        let until = now + time.as_nanos() as u64;
        // What happens until then is not seen: the allocator does not stand still.
        self.last_change.set(until);
        std::thread::sleep(time);
    }

    fn tell(&mut self, ended: Option<MemoryError>) {
        if ended.is_some() {
            self.hand_over();
        }
        self.totals.cpu_nanos = processor_time().as_nanos() as u64;
        self.totals.slow_poll_nanos = self.slow_poll();
        let mut told = self.shared.totals.lock();
        told.0 = self.totals;
        told.1 = told.1.or(ended);
    }

    /// What one poll in a hundred takes longer than.
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
