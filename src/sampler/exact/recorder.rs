//! Records exact events.

mod allocator_check;
mod attach;
mod beginning;
mod failure_capture;
mod forgetting;
mod last_events;
mod native_frames;
mod step_watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use allocator_check::CounterRead;
use attach::{AttachOutcome, detach};
use failure_capture::FailureCapture;
use forgetting::MAX_MORE_NUMBERS;
use step_watch::StepWatch;

use super::cost::CostWatch;
use super::moments::Moments;
use super::native_stacks::NativeStacks;
use super::pending_events::{PendingEvent, PendingEvents};
use super::reconcile::CounterReconciler;
use super::sites::SiteTable;
use crate::model::{
    AllocatorCounters, CudaIndex, EndReason, Event, EventBatch, EventKind, EventTotals,
    FreeTracking, MemoryKind, Nanos, ProbeBackend, Record, RecordSink, RecordingEnd,
    RecordingTotals, SinkResult, StackSource, ThreadSample,
};
use crate::probe::{AttachPlan, AttachedProbes, PlacementError, RawEvent, RingCounts, RingRecord};
use crate::sampler::exact::coverage::ProbeCoverage;
use crate::sampler::priority::raise_priority;
use crate::sampler::readers::{TargetReaders, TorchState};
use crate::sampler::recording_loop::{self, RecordingProgress, RecordingSource};
use crate::sampler::reorder_buffer::ReorderBuffer;
use crate::sampler::session::{CommonOptions, RecordingSession};
use crate::torch::ClassNames;

/// At 600,000 events a second the ring fills to a fraction in this time.
const RING_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The same while each read also samples stacks.
const SAMPLED_RING_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Names may arrive faster than they are read, and the end must not wait for that.
const MAX_DRAIN: Duration = Duration::from_millis(50);
/// Another thread may be writing an event's stack.
const STACK_TIMEOUT: Duration = Duration::from_millis(100);
/// Nanoseconds without events around a read that prove their order.
const MIN_QUIET_NANOS: u64 = 20_000;
const MAX_EVENTS: usize = 1 << 14;

/// Options of an exact recording.
#[derive(Debug, Clone, Default)]
pub struct ExactOptions {
    /// How long; `None`: until stopped.
    pub duration: Option<Duration>,
    /// How to place probes; `None`: the first allowed.
    pub backend: Option<ProbeBackend>,
    /// How frees are tracked.
    pub frees: FreeTracking,
    /// Smaller allocations get no stack.
    pub stacks_from: u64,
    /// One stack per this many bytes on average; 0: each.
    pub stacks_every: u64,
    /// Backward allocations get their forward lines.
    pub backward_lines: bool,
    /// Allocations of at least this many bytes get native frames.
    pub native_from: Option<u64>,
    /// Watches the cost for the job.
    pub cost: Option<CostWatch>,
    /// Options of every recording.
    pub common: CommonOptions,
}

/// Records one target exactly.
pub struct ExactRecorder {
    session: RecordingSession,
    options: ExactOptions,
    plan: AttachPlan,
    /// PyTorch was still loading at placement.
    awaits_backward: bool,
    probe: Option<AttachedProbes>,
    sites: SiteTable,
    /// False if the last read left something in the ring.
    is_emptied: bool,
    waiting: PendingEvents,
    batch: EventBatch,
    /// CLOCK_MONOTONIC at time 0.
    epoch: u64,
    last: Nanos,
    totals: EventTotals,
    counted: RingCounts,
    reconciler: CounterReconciler,
    counters: Vec<(CudaIndex, AllocatorCounters)>,
    last_read: Option<CounterRead>,
    /// When counters at rest were last recorded (CLOCK_MONOTONIC, nanoseconds).
    settled: Option<u64>,
    /// The allocator did not exist when the probes were placed.
    starts_empty: bool,
    has_allocated: bool,
    /// Earlier events are those of the probes before (CLOCK_MONOTONIC, nanoseconds).
    placed: u64,
    /// When all probes were in place: before, allocations and frees are not both seen.
    complete_from: u64,
    /// When the first probe was taken away: after it, not both are seen either.
    complete_until: u64,
    samples: Vec<ThreadSample>,
    failing: FailureCapture,
    watching: StepWatch,
    moments: Moments,
}

impl ExactRecorder {
    /// A recorder; [`Self::run`] places the probes.
    pub fn new(readers: TargetReaders, wanted: ExactOptions) -> Self {
        let python = readers.python.as_ref().and_then(|p| p.stack_symbolizer(&readers.process));
        let head = readers.python.as_ref().map(|p| p.object_head()).unwrap_or_default();
        // Without this thread, native frames are reported as lost.
        let native =
            wanted.native_from.and_then(|_| NativeStacks::start(readers.process.clone()).ok());
        let classes = Some(ClassNames::new(head));
        let sites = SiteTable::new(readers.process.clone(), python, classes, native);
        let session = RecordingSession::new(readers, wanted.common.forget_after);
        let epoch = monotonic().saturating_sub(session.start.elapsed().as_nanos() as u64);
        ExactRecorder {
            session,
            plan: AttachPlan::default(),
            awaits_backward: false,
            probe: None,
            sites,
            is_emptied: true,
            waiting: PendingEvents::default(),
            batch: EventBatch::default(),
            epoch,
            last: Nanos(0),
            totals: EventTotals::default(),
            counted: RingCounts::default(),
            reconciler: CounterReconciler::new(wanted.frees != FreeTracking::Snapshots),
            counters: Vec::new(),
            last_read: None,
            settled: None,
            starts_empty: false,
            has_allocated: false,
            placed: 0,
            complete_from: 0,
            complete_until: u64::MAX,
            samples: Vec::new(),
            failing: FailureCapture::default(),
            watching: StepWatch::default(),
            moments: Moments::default(),
            options: wanted,
        }
    }

    /// Places the probes; without CUDA, [`Self::run`] does.
    pub fn attach_probes(&mut self) -> Result<(), PlacementError> {
        match self.try_place()? {
            AttachOutcome::Attached | AttachOutcome::Nothing => Ok(()),
        }
    }

    /// What is probed; `None` without probes.
    pub fn probes(&self) -> Option<ProbeCoverage> {
        let probe = self.probe.as_ref()?;
        Some(ProbeCoverage { uncovered: self.uncovered(probe), ..ProbeCoverage::from(probe) })
    }

    /// Like [`Recorder::run`](crate::sampler::Recorder::run), with exact events.
    pub fn run(
        mut self,
        host: String,
        sink: &mut dyn RecordSink,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&RecordingProgress),
    ) -> SinkResult<RecordingEnd> {
        recording_loop::record(&mut self, host, sink, stop, observe)
    }

    /// The readers of a recorder that has not run.
    pub fn into_readers(self) -> TargetReaders {
        self.session.readers
    }

    fn is_given_up(&self) -> bool {
        let Some(cost) = &self.options.cost else { return false };
        let programs = self.probe.as_ref().and_then(AttachedProbes::program_time);
        match programs {
            Some(programs) => {
                let is_at_work = self.has_allocated
                    || !self.probe.as_ref().is_some_and(AttachedProbes::has_torch);
                cost.see(self.session.start.elapsed(), programs, is_at_work)
            }
            None => cost.failure().is_some(),
        }
    }

    fn update_threads(&mut self) {
        if let Some(python) = &mut self.session.readers.python {
            // Otherwise threads keep the kernel's names.
            let _ = python.sample(&mut self.session.table, &mut Vec::new());
        }
    }

    fn samples_stacks(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.way() == ProbeBackend::PerfSamples)
    }

    fn sample_stacks(&mut self) {
        let Some(python) = &mut self.session.readers.python else { return };
        let time = monotonic();
        if python.sample(&mut self.session.table, &mut self.samples).is_ok() {
            self.sites.on_sample(time, &self.samples);
        }
    }

    fn empty_ring(&mut self) -> usize {
        let drain_end = Instant::now() + MAX_DRAIN;
        if self.samples_stacks() {
            self.sample_stacks();
        }
        let Some(probe) = &mut self.probe else { return 0 };
        // Records that wait for older events need these numbers.
        let most = if self.failing.is_waiting() { None } else { self.options.common.forget_after };
        let most = most.map_or(usize::MAX, |most| most + MAX_MORE_NUMBERS);
        let (sites, table) = (&mut self.sites, &mut self.session.table);
        let (placed, complete_from, until) = (self.placed, self.complete_from, self.complete_until);
        let is_whole = |seen: &PendingEvent| {
            let from = if seen.is_torch() { complete_from } else { placed };
            (from..until).contains(&seen.time())
        };
        let is_emptied = &mut self.is_emptied;
        *is_emptied = true;
        let mut taken = 0;
        self.waiting.fill(|waiting| {
            taken = probe.drain(&mut |raw| {
                let seen = match raw {
                    RingRecord::Step(step) => Some(PendingEvent::Step(step)),
                    raw => sites.describe(raw, table).map(PendingEvent::Event),
                };
                waiting.extend(seen.filter(is_whole));
                *is_emptied = table.size() <= most && Instant::now() < drain_end;
                *is_emptied
            });
        });
        self.watch_modules();
        taken
    }

    /// The first event without a description holds back all later ones.
    fn record_events(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let too_old = monotonic().saturating_sub(STACK_TIMEOUT.as_nanos() as u64);
        let no_native = self.waits_for_native_from();
        let described = |event: &RawEvent| {
            (event.time < too_old || self.sites.is_described(event))
                && (event.time < no_native || self.sites.is_unwound(event))
        };
        let ready = self.waiting.ready(self.waiting.len(), described);
        self.record_first(ready, sink)
    }

    fn record_all_events(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.record_first(self.waiting.len(), sink)
    }

    fn record_first(&mut self, count: usize, sink: &mut dyn RecordSink) -> SinkResult {
        let mut waiting = self.waiting.take();
        for seen in waiting.drain(..count) {
            let raw = match seen {
                PendingEvent::Event(raw) => raw,
                PendingEvent::Step(step) => {
                    self.record_seen_step(&step, sink)?;
                    continue;
                }
            };
            let event = self.name(&raw);
            self.failing.on_event(&raw);
            self.moments.observe(&raw);
            self.reconciler.on_event(&event);
            self.batch.events.push(event);
            if self.batch.events.len() == MAX_EVENTS {
                self.flush(sink)?;
            }
        }
        if waiting.is_empty()
            && let Some(native) = self.sites.native()
        {
            native.forget_unclaimed();
        }
        self.waiting.restore(waiting);
        self.flush(sink)
    }

    fn flush(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if self.batch.events.is_empty() {
            return Ok(());
        }
        self.session.record_definitions(sink)?;
        let record = Record::Events(std::mem::take(&mut self.batch));
        sink.record(&record)?;
        if let Record::Events(mut batch) = record {
            batch.events.clear();
            self.batch = batch; // Its vector is used again.
        }
        Ok(())
    }

    fn name(&mut self, raw: &RawEvent) -> Event {
        let is_free = matches!(raw.change, EventKind::Freed { .. });
        let named = !is_free || self.options.frees == FreeTracking::Stacks && raw.stack != 0;
        let site = named.then(|| self.sites.site(raw, &mut self.session.table));
        if is_free {
            self.totals.frees += 1;
        } else if let EventKind::Allocated { memory_kind, .. } = raw.change {
            self.has_allocated |= matches!(memory_kind, MemoryKind::Torch(_));
            self.totals.allocations += 1;
            self.totals.truncated += u64::from(raw.truncated);
            self.totals.faulted += u64::from(raw.faulted);
            self.count_native(raw, site.map(|(site, _)| site));
            match site.map(|(_, source)| source) {
                Some(StackSource::Borrowed) => self.totals.borrowed += 1,
                Some(StackSource::NoPython) => self.totals.no_python += 1,
                Some(StackSource::Unknown) => self.totals.unknown += 1,
                _ => {}
            }
        }
        // A clock read on two CPUs may seem to stop but never runs back.
        self.last = self.last.max(Nanos(raw.time.saturating_sub(self.epoch)));
        Event { time: self.last, change: raw.change, site: site.map(|(site, _)| site) }
    }

    fn now(&self) -> Nanos {
        self.session.now()
    }
}

impl RecordingSource for ExactRecorder {
    const IS_PREPARED: bool = true;

    fn session(&self) -> &RecordingSession {
        &self.session
    }

    fn session_mut(&mut self) -> &mut RecordingSession {
        &mut self.session
    }

    fn rate(&self) -> u32 {
        0
    }

    fn duration(&self) -> Option<Duration> {
        self.options.duration
    }

    fn begin(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.session.watch_gpu();
        self.session.exact = true;
        self.options.cost.iter().for_each(CostWatch::begin);
        self.session.watch_also(&self.options.common);
        raise_priority();
        if self.probe.is_some() {
            self.record_placed(sink)?;
        }
        Ok(())
    }

    fn wait(&mut self, stop: &AtomicBool) -> bool {
        !stop.load(Ordering::Relaxed)
    }

    fn observe(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult<Option<EndReason>> {
        self.find_devices(sink)?;
        // A job that dies of a refusal is recorded to its end.
        if !self.failing.was_refused_lately() && self.is_given_up() {
            return Ok(Some(EndReason::Interrupted));
        }
        self.empty_ring();
        self.compare_counters(sink)?;
        self.record_events(sink)?;
        self.follow_steps(sink)?;
        self.session.see_moment(self.moments.take());
        self.session.record_watched(sink)?;
        self.session.record_oom_exceptions(sink)?;
        self.read_counters_once();
        Ok(None)
    }

    fn refresh(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.update_threads();
        if let Some(ended) =
            self.probe.as_mut().map(AttachedProbes::take_ended).filter(|e| !e.is_empty())
        {
            // The kernel takes a while to end each link: not between events.
            std::thread::spawn(move || drop(ended));
        }
        let changed = self.session.refresh(sink)?;
        self.session.record_waiting(sink)?;
        if self.has_unprobed_library() {
            self.reattach_probes(sink)?;
        }
        if let TorchState::Attached(torch) = &self.session.readers.torch
            && (changed || torch.levels().count() != self.plan.levels.len())
        {
            self.send_counter_addresses();
        }
        Ok(())
    }

    fn check(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.check_events(sink)?;
        self.restart_numbers(false, sink)
    }

    fn on_observed(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.restart_numbers(true, sink)?;
        if self.is_emptied {
            std::thread::sleep(if self.samples_stacks() {
                SAMPLED_RING_POLL_INTERVAL
            } else {
                RING_POLL_INTERVAL
            });
        }
        Ok(())
    }

    fn end(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        if self.options.cost.as_ref().is_some_and(|cost| cost.failure().is_some()) {
            self.probe.iter_mut().for_each(detach);
            return Ok(());
        }
        self.options.common.forget_after = None;
        self.empty_ring();
        // An ended job allows no other read.
        self.compare_counters(sink)?;
        self.record_events(sink)?;
        self.wait_for_native(true);
        self.record_events(sink)?;
        self.compare_at_end(sink)?;
        self.check_events(sink)?;
        if let Some(probe) = &mut self.probe {
            self.complete_until = monotonic();
            detach(probe);
        }
        self.take_last_events();
        self.wait_for_native(true);
        self.record_all_events(sink)?;
        self.record_failing(sink)?;
        self.session.end_watching(sink)?;
        self.session.wait_for_oom_exceptions(sink)?;
        self.count_losses();
        self.session.record_losses(sink)
    }

    fn totals(&self) -> RecordingTotals {
        let cost = self.options.cost.as_ref().map(CostWatch::job_cost);
        RecordingTotals { exact: Some(self.totals), cost, ..self.session.totals }
    }

    fn counters(&self) -> &[(CudaIndex, AllocatorCounters)] {
        &self.counters
    }
}

/// The probes' clock, CLOCK_MONOTONIC in nanoseconds, as `bpf_ktime_get_ns`.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
