//! Reads the target at every tick.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::gpu::DriverError;
use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CudaIndex, DeviceUsage, EndReason,
    Metric, MissReason, Nanos, Pool, ReaderKind, Record, RecordSink, RecordingEnd, RecordingTotals,
    SinkResult, SnapshotConsistency, StackSample,
};

use crate::torch::AllocatorError;

use super::follow::{FollowBudget, Following};
use super::priority::raise_priority;
use super::quiet_moment::LastChange;
use super::readers::{TargetReaders, TorchState};
use super::recording_loop::{self, RecordingProgress, RecordingSource};
use super::reorder_buffer::ReorderBuffer;
use super::session::{CommonOptions, RecordingSession};
use super::sleep::sleep_unless;
use super::snapshot_policy::SnapshotPolicy;
use super::snapshot_thread::{SnapshotRead, SnapshotThread};
use super::step_shape::StepMoment;
use super::ticker::Ticker;

const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(3);
const ONE_SHOT_TIMEOUT: Duration = Duration::from_secs(1);
const NAMES_TIMEOUT: Duration = Duration::from_millis(25);
const MAX_READS: u32 = 50;
/// Attempts while the job's reserved memory changes.
const MAX_USAGE_READS: u32 = 8;

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// Samples a second.
    pub rate: u32,
    /// How long; `None`: until stopped.
    pub duration: Option<Duration>,
    /// Polls the allocator, too, within this budget.
    pub follow: Option<FollowBudget>,
    /// Options of every recording.
    pub common: CommonOptions,
}

/// Records one target.
pub struct Recorder {
    session: RecordingSession,
    options: RecordOptions,
    sample: StackSample,
    counters: Vec<(CudaIndex, AllocatorCounters)>,
    /// From right before the sample; empty if that failed.
    before: Vec<(CudaIndex, AllocatorCounters)>,
    devices: FxHashMap<CudaIndex, DeviceState>,
    snapshots: Option<SnapshotThread>,
    snapshot_interval: Duration,
    following: Option<Following>,
    pace: Ticker,
}

#[derive(Default)]
struct DeviceState {
    recorded: Option<AllocatorCounters>,
    policy: SnapshotPolicy,
    snapshot_wanted: bool,
}

impl Recorder {
    /// A recorder whose clock starts now.
    pub fn new(readers: TargetReaders, wanted: RecordOptions) -> Self {
        let session = RecordingSession::new(readers, wanted.common.forget_after);
        Recorder {
            pace: Ticker::new(wanted.rate, session.start),
            session,
            options: wanted,
            sample: StackSample::default(),
            counters: Vec::new(),
            before: Vec::new(),
            devices: FxHashMap::default(),
            snapshots: None,
            snapshot_interval: Duration::ZERO,
            following: None,
        }
    }

    /// Sets the shortest time between snapshots of a device.
    pub fn with_snapshot_interval(mut self, apart: Duration) -> Self {
        self.snapshot_interval = apart;
        self
    }

    /// Records until the duration is over, `stop` is set or the target ends; calls `observe` a few
    /// times a second. Returns the last record.
    pub fn run(
        mut self,
        host: String,
        sink: &mut dyn RecordSink,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&RecordingProgress),
    ) -> SinkResult<RecordingEnd> {
        recording_loop::record(&mut self, host, sink, stop, observe)
    }

    /// Reads everything once: the content of `dump`.
    pub fn record_once(mut self, host: String, sink: &mut dyn RecordSink) -> SinkResult {
        let mut order = ReorderBuffer::new(sink);
        let sink = &mut order;
        self.request_snapshots(ONE_SHOT_TIMEOUT, None);
        self.session.record_start(host, self.options.rate, sink)?;
        self.before = self.counters_now();
        // Thread names are known some time after threads are first seen.
        if self.read_stacks().is_none() {
            std::thread::sleep(NAMES_TIMEOUT);
            self.read_stacks();
        }
        for _ in 0..MAX_READS {
            let torn = self.session.totals.torn;
            if self.read_stacks().is_some() || self.session.totals.torn == torn {
                break;
            }
        }
        self.pass_sample(sink)?;
        self.observe_allocator(sink)?;
        self.wait_for_snapshots(sink)?;
        if let Err(error @ DriverError::CoreFile) = &self.session.readers.gpu {
            let why = MissReason::Failed(error.to_string());
            self.session.losses.add(ReaderKind::Gpu, why, 1);
        }
        self.observe_usage(sink)?;
        self.session.record_losses(sink)
    }

    /// Reads PyTorch's reserved bytes right before and after the driver's. If they keep changing,
    /// records both.
    fn observe_usage(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        let devices: Vec<u32> =
            self.session.readers.devices().iter().filter_map(|d| d.nvml_index).collect();
        for read in 1..=MAX_USAGE_READS {
            let before = self.counters_now();
            let usage: Vec<Result<DeviceUsage, DriverError>> = match &self.session.readers.gpu {
                Ok(gpu) => devices.iter().map(|&at| gpu.usage(at, self.session.now())).collect(),
                Err(_) => return Ok(()),
            };
            let after = self.session.readers.counters_between_calls();
            let reserved = |all: &[(CudaIndex, AllocatorCounters)]| -> Vec<(CudaIndex, i64)> {
                all.iter().map(|(device, counters)| (*device, counters.reserved())).collect()
            };
            if reserved(&before) != reserved(&after) && read < MAX_USAGE_READS {
                continue;
            }
            let time = self.session.now();
            let record_counters = |all: Vec<(CudaIndex, AllocatorCounters)>,
                                   sink: &mut ReorderBuffer<'_>|
             -> SinkResult {
                for (device, counters) in all {
                    let counters = Box::new(counters);
                    sink.record(&Record::Counters { time, device, counters })?;
                }
                Ok(())
            };
            record_counters(before, sink)?;
            for usage in usage {
                match usage {
                    Ok(usage) => sink.record(&Record::Usage(DeviceUsage { time, ..usage }))?,
                    Err(e) => self.session.losses.add(
                        ReaderKind::Gpu,
                        MissReason::Failed(e.to_string()),
                        1,
                    ),
                }
            }
            return record_counters(after, sink);
        }
        Ok(())
    }

    fn counters_now(&mut self) -> Vec<(CudaIndex, AllocatorCounters)> {
        let mut counters = Vec::new();
        for _ in 0..MAX_READS {
            read_counters(&mut self.session.readers.torch, &mut counters);
            if !counters.is_empty() {
                break;
            }
        }
        counters
    }

    fn see_moment(&mut self) {
        let is_backward = self.session.is_backward(&self.sample.threads);
        let sum = |of: &dyn Fn(&AllocatorCounters) -> i64| {
            self.counters.iter().map(|(_, counters)| of(counters)).sum()
        };
        let allocations = sum(&|counters| counters.stat(Metric::Allocation, Pool::All).allocated);
        let level = sum(&AllocatorCounters::allocated);
        self.session.see_moment(StepMoment { allocations, level, is_backward });
    }

    fn start_threads(&mut self) {
        let Some(budget) = &self.options.follow else {
            return self.request_snapshots(SNAPSHOT_TIMEOUT, None);
        };
        let last_change = LastChange::default();
        match Following::start(&self.session, budget, last_change.clone()) {
            Ok(following) => self.following = following,
            Err(e) => {
                self.session.losses.add(ReaderKind::Stacks, MissReason::Failed(e.to_string()), 1)
            }
        }
        let last_change = self.following.is_some().then_some(last_change);
        self.request_snapshots(SNAPSHOT_TIMEOUT, last_change);
    }

    fn record_followed(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        let Some(following) = &mut self.following else { return Ok(()) };
        following.record(&mut self.session, self.sample.time, sink)?;
        following.see_counters(&self.before);
        following.plan(&self.session, &self.sample);
        Ok(())
    }

    fn read_stacks(&mut self) -> Option<EndReason> {
        self.sample.time = self.session.now();
        let Some(python) = &mut self.session.readers.python else {
            self.sample.threads.clear();
            return None;
        };
        match python.sample(&mut self.session.table, &mut self.sample.threads) {
            Ok(stats) => {
                let torn = u64::from(stats.torn);
                self.session.totals.stacks += self.sample.threads.len() as u64 + torn;
                self.session.totals.torn += torn;
                self.session.losses.add(ReaderKind::Stacks, MissReason::Torn, torn);
            }
            Err(error) => {
                self.sample.threads.clear();
                if let Some(reason) = self.session.is_over() {
                    return Some(reason);
                }
                self.session.losses.add(
                    ReaderKind::Stacks,
                    MissReason::Failed(error.to_string()),
                    1,
                );
            }
        }
        None
    }

    fn pass_sample(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.session.record_definitions(sink)?;
        let record = Record::Sample(std::mem::take(&mut self.sample));
        sink.record(&record)?;
        if let Record::Sample(sample) = record {
            self.sample = sample; // Its vector is used again.
        }
        Ok(())
    }

    /// A line may run for less time than reading its stack: only reads on both sides show its
    /// counters.
    fn read_counters_before(&mut self) {
        read_counters(&mut self.session.readers.torch, &mut self.before);
    }

    fn observe_allocator(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        let TorchState::Attached(torch) = &mut self.session.readers.torch else { return Ok(()) };
        if *torch.backend() != AllocatorBackend::Native {
            return Ok(());
        }
        let time = Nanos(self.session.start.elapsed().as_nanos() as u64);
        if let Err(error) = torch.counters(&mut self.counters) {
            self.session.losses.add(ReaderKind::Counters, why(error), 1);
            if self.before.is_empty() {
                return Ok(());
            }
            std::mem::swap(&mut self.counters, &mut self.before);
            self.before.clear();
        }
        self.session.observe_counters(&self.counters);
        for (device, counters) in &self.counters {
            let state = self.devices.entry(*device).or_insert_with(|| DeviceState {
                policy: SnapshotPolicy::apart(self.snapshot_interval),
                ..DeviceState::default()
            });
            let before = self.before.iter().find(|(d, _)| d == device).map(|(_, c)| *c);
            let before = before.or(state.recorded).unwrap_or(*counters);
            if state.recorded != Some(before) || before != *counters {
                let counters = Box::new(before);
                let time = self.sample.time;
                sink.record(&Record::Counters { time, device: *device, counters })?;
            }
            if before != *counters {
                let counters = Box::new(*counters);
                sink.record(&Record::Counters { time, device: *device, counters })?;
            }
            state.recorded = Some(*counters);
            let now = self.session.start.elapsed();
            if !state.snapshot_wanted && state.policy.wants(now, counters) {
                let snapshots = self.snapshots.as_mut();
                state.snapshot_wanted = snapshots.is_some_and(|snapshots| snapshots.want(*device));
                if state.snapshot_wanted {
                    state.policy.asked(now, counters);
                    sink.expect_late();
                }
            }
        }
        self.record_snapshots(sink)
    }

    fn record_snapshots(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        while let Some(read) = self.snapshots.as_mut().and_then(SnapshotThread::poll) {
            self.record_snapshot(read, sink)?;
        }
        let none_to_come = !self.snapshots.as_ref().is_some_and(SnapshotThread::is_waited_for);
        if none_to_come { sink.release() } else { Ok(()) }
    }

    fn wait_for_snapshots(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        while let Some(read) = self.snapshots.as_mut().and_then(SnapshotThread::wait) {
            self.record_snapshot(read, sink)?;
        }
        sink.release()
    }

    fn record_snapshot(&mut self, read: SnapshotRead, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        let state = self.devices.entry(read.device).or_default();
        state.snapshot_wanted = false;
        let whole =
            |snapshot: &&AllocatorSnapshot| snapshot.consistency == SnapshotConsistency::Consistent;
        let allocated = read.snapshot.as_ref().ok().filter(whole).map(AllocatorSnapshot::allocated);
        state.policy.has_read(read.cost, allocated);
        match read.snapshot {
            Ok(snapshot) => {
                self.session.count_snapshot(&snapshot);
                sink.late(Some(Record::Snapshot(snapshot)))
            }
            Err(why) => {
                self.session.losses.add(ReaderKind::Snapshots, why, 1);
                sink.late(None)
            }
        }
    }

    fn request_snapshots(&mut self, timeout: Duration, last_change: Option<LastChange>) {
        match SnapshotThread::start(
            self.session.readers.process.clone(),
            self.session.start,
            timeout,
            last_change,
        ) {
            Ok(snapshots) => self.snapshots = Some(snapshots),
            Err(e) => {
                self.session.losses.add(ReaderKind::Snapshots, MissReason::Failed(e.to_string()), 1)
            }
        }
    }
}

fn read_counters(torch: &mut TorchState, out: &mut Vec<(CudaIndex, AllocatorCounters)>) {
    let read = match torch {
        TorchState::Attached(torch) if *torch.backend() == AllocatorBackend::Native => {
            torch.counters(out).is_ok()
        }
        _ => false,
    };
    if !read {
        out.clear();
    }
}

impl RecordingSource for Recorder {
    const IS_PREPARED: bool = false;

    fn session(&self) -> &RecordingSession {
        &self.session
    }

    fn session_mut(&mut self) -> &mut RecordingSession {
        &mut self.session
    }

    fn rate(&self) -> u32 {
        self.options.rate
    }

    fn duration(&self) -> Option<Duration> {
        self.options.duration
    }

    fn begin(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.session.watch_gpu();
        self.session.watch_also(&self.options.common);
        self.start_threads();
        // Last, because threads inherit it.
        raise_priority();
        Ok(())
    }

    fn wait(&mut self, stop: &AtomicBool) -> bool {
        let tick = self.pace.tick(Instant::now());
        self.session.totals.ticks += tick.missed;
        self.session.totals.late += tick.missed;
        self.session.losses.add(ReaderKind::Stacks, MissReason::Late, tick.missed);
        sleep_unless(tick.wait, || stop.load(Ordering::Relaxed))
    }

    fn observe(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult<Option<EndReason>> {
        self.session.totals.ticks += 1;
        if self.session.waits_for_devices() {
            self.session.refresh(sink)?;
        }
        self.read_counters_before();
        if let Some(reason) = self.read_stacks() {
            return Ok(Some(reason));
        }
        self.record_followed(sink)?;
        self.pass_sample(sink)?;
        self.observe_allocator(sink)?;
        self.see_moment();
        self.session.record_oom_exceptions(sink)?;
        if self.session.record_step(sink)? {
            // Record the next reading: it shows whether the reading before was at the step's end.
            self.devices.values_mut().for_each(|device| device.recorded = None);
        }
        Ok(None)
    }

    fn on_alive(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.session.record_watched(sink)
    }

    fn refresh(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        if self.session.refresh(sink)? {
            self.following.as_mut().map(Following::replan);
        }
        self.session.record_waiting(sink)
    }

    fn check(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        self.session.record_losses(sink)?;
        if self.session.forget(sink)?.is_some() {
            self.following.as_mut().map(Following::forget_numbers);
        }
        Ok(())
    }

    fn end(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult {
        if let Some(following) = self.following.take() {
            self.session.totals.follow = Some(following.end(&mut self.session, sink)?);
        }
        self.wait_for_snapshots(sink)?;
        self.session.end_watching(sink)?;
        self.session.wait_for_oom_exceptions(sink)?;
        self.session.record_losses(sink)
    }

    fn totals(&self) -> RecordingTotals {
        self.session.totals
    }

    fn counters(&self) -> &[(CudaIndex, AllocatorCounters)] {
        &self.counters
    }
}

fn why(error: AllocatorError) -> MissReason {
    match error {
        AllocatorError::Torn { .. } => MissReason::Torn,
        other => MissReason::Failed(other.to_string()),
    }
}
