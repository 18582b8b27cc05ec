//! The recorder: looks at the target at every instant of the pace and passes on what it saw.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::model::{
    AllocatorBackend, AllocatorCounters, BlockMap, Consistency, CudaIndex, End, EndReason, Metric,
    MissedWhy, Nanos, Pool, ReaderKind, Record, RecordSink, Sample, Totals,
};

use crate::torch::TorchError;

use super::map_thread::{MapRead, MapThread};
use super::order::Order;
use super::pace::Pace;
use super::policy::MapPolicy;
use super::priority::serve_early;
use super::readers::{Readers, Torch};
use super::session::{AlsoWanted, Session};
use super::step_shape::Moment;

/// Between two checks that the target is still the process and the program it was.
const CHECK_ALIVE_EVERY: Duration = Duration::from_millis(100);
/// Between two looks for PyTorch and CUDA in a target that did not have them yet.
const REFRESH_EVERY: Duration = Duration::from_millis(250);
/// Between two records of what was missed.
const LOSSES_EVERY: Duration = Duration::from_secs(1);
/// How long a block map is tried for until the target keeps still: while recording, for a single look.
const PATIENCE: Duration = Duration::from_millis(3);
const PATIENCE_OF_A_LOOK: Duration = Duration::from_secs(1);
const NAMES_COME_AFTER: Duration = Duration::from_millis(25);
/// How often a single look is repeated while counters or threads are torn.
const LOOKS: u32 = 50;
/// Longest sleep without looking whether to stop.
const SLICE: Duration = Duration::from_millis(50);

/// What is wanted of a recording.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Samples a second.
    pub rate: u32,
    /// How long; `None` for until stopped.
    pub duration: Option<Duration>,
    /// What else.
    pub also: AlsoWanted,
}

/// How far a recording is, for showing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Time since it began.
    pub elapsed: Duration,
    /// Sums so far.
    pub totals: Totals,
    /// Bytes allocated on all devices; `None` while that is unknown.
    pub allocated: Option<i64>,
    /// Bytes reserved on all devices; `None` while that is unknown.
    pub reserved: Option<i64>,
}

/// Records one target.
pub struct Recorder {
    session: Session,
    wanted: Wanted,
    sample: Sample,
    counters: Vec<(CudaIndex, AllocatorCounters)>,
    /// The counters read right before the sample; empty when they could not be read.
    before: Vec<(CudaIndex, AllocatorCounters)>,
    devices: FxHashMap<CudaIndex, DeviceState>,
    maps: Option<MapThread>,
    maps_apart: Duration,
}

/// What the recorder remembers of a device.
#[derive(Default)]
struct DeviceState {
    recorded: Option<AllocatorCounters>,
    policy: MapPolicy,
    /// Whether its map is being read.
    map_wanted: bool,
}

/// Whether to go on.
enum Next {
    GoOn,
    End(EndReason),
}

impl Recorder {
    /// A recorder over `readers`; its clock starts now.
    pub fn new(readers: Readers, wanted: Wanted) -> Self {
        Recorder {
            session: Session::new(readers, wanted.also.forget_after),
            wanted,
            sample: Sample::default(),
            counters: Vec::new(),
            before: Vec::new(),
            devices: FxHashMap::default(),
            maps: None,
            maps_apart: Duration::ZERO,
        }
    }

    /// Leaves at least so much between two block maps of a device: for those who look at fewer of them.
    pub fn with_maps_apart(mut self, apart: Duration) -> Self {
        self.maps_apart = apart;
        self
    }

    /// Records until the duration is over, `stop` is set or the target ends; the last record is the
    /// [`End`] returned. `observe` is called when the first sample has been recorded and synced, and then a few times a
    /// second. An error is the sink's.
    pub fn run(
        mut self,
        host: String,
        sink: &mut dyn RecordSink,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&Progress),
    ) -> io::Result<End> {
        let mut order = Order::new(sink);
        let sink = &mut order;
        self.session.record_start(host, self.wanted.rate, sink)?;
        let reason = self.follow(sink, stop, observe)?;
        self.wait_for_maps(sink)?;
        self.session.wait_for_thrown(sink)?;
        self.session.record_losses(sink)?;
        let time = self.session.now();
        let end = End { time, reason, totals: self.session.totals };
        sink.record(&Record::End(end.clone()))?;
        Ok(end)
    }

    /// Looks once, at everything, and ends: what `dump` shows.
    pub fn look(mut self, host: String, sink: &mut dyn RecordSink) -> io::Result<()> {
        let mut order = Order::new(sink);
        let sink = &mut order;
        self.start_maps(PATIENCE_OF_A_LOOK);
        self.session.record_start(host, self.wanted.rate, sink)?;
        for _ in 0..LOOKS {
            self.read_counters_before();
            if !self.before.is_empty() {
                break;
            }
        }
        // The names of threads are looked up some time after the first look has found them.
        if matches!(self.read_stacks(), Next::GoOn) {
            std::thread::sleep(NAMES_COME_AFTER);
            self.read_stacks();
        }
        for _ in 0..LOOKS {
            let torn = self.session.totals.torn;
            if matches!(self.read_stacks(), Next::End(_)) || self.session.totals.torn == torn {
                break;
            }
        }
        self.pass_sample(sink)?;
        self.observe_allocator(sink)?;
        self.wait_for_maps(sink)?;
        if let Ok(gpu) = &self.session.readers.gpu {
            for device in self.session.readers.devices().iter().filter_map(|d| d.nvml_index) {
                match gpu.usage(device, self.session.now()) {
                    Ok(usage) => sink.record(&Record::Usage(usage))?,
                    Err(e) => self.session.losses.add(
                        ReaderKind::Gpu,
                        MissedWhy::Failed(e.to_string()),
                        1,
                    ),
                }
            }
        }
        self.session.record_losses(sink)
    }

    fn follow(
        &mut self,
        sink: &mut Order<'_>,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&Progress),
    ) -> io::Result<EndReason> {
        self.session.watch_gpu();
        self.session.watch_also(&self.wanted.also);
        self.start_maps(PATIENCE);
        // Last, because threads inherit it.
        serve_early();
        let mut pace = Pace::new(self.wanted.rate, self.session.start);
        let mut checked = Duration::ZERO;
        let mut refreshed = Duration::ZERO;
        let mut told = Duration::ZERO;
        let mut is_begun = false;
        loop {
            let tick = pace.tick(Instant::now());
            self.session.totals.ticks += tick.missed;
            self.session.totals.late += tick.missed;
            self.session.losses.add(ReaderKind::Stacks, MissedWhy::Late, tick.missed);
            if !sleep(tick.wait, stop) {
                return Ok(EndReason::Interrupted);
            }
            let now = self.session.start.elapsed();
            if self.wanted.duration.is_some_and(|duration| now >= duration) {
                return Ok(EndReason::Duration);
            }
            self.session.totals.ticks += 1;
            if let Next::End(reason) = self.observe_target(sink)? {
                return Ok(reason);
            }
            if !std::mem::replace(&mut is_begun, true) {
                // Whoever is told that the recording has begun may kill memspy at once, and has this sample.
                sink.sync()?;
                observe(&self.progress(now));
            }
            if now.saturating_sub(checked) >= CHECK_ALIVE_EVERY {
                checked = now;
                if let Some(reason) = self.session.is_over() {
                    return Ok(reason);
                }
                self.session.record_watched(sink)?;
            }
            if now.saturating_sub(refreshed) >= REFRESH_EVERY {
                refreshed = now;
                if self.session.readers.refresh() {
                    self.session.record_runtime(sink)?;
                }
                observe(&self.progress(now));
            }
            if now.saturating_sub(told) >= LOSSES_EVERY {
                told = now;
                self.session.record_losses(sink)?;
                self.session.forget(sink)?;
            }
        }
    }

    /// One instant: stacks, counters, and block maps where they are worth it.
    fn observe_target(&mut self, sink: &mut Order<'_>) -> io::Result<Next> {
        self.read_counters_before();
        if let Next::End(reason) = self.read_stacks() {
            return Ok(Next::End(reason));
        }
        self.pass_sample(sink)?;
        self.observe_allocator(sink)?;
        self.see_moment();
        self.session.record_thrown(sink)?;
        if self.session.record_step(sink)? {
            // The next look is recorded in any case: it tells whether the last one before the step's end was of its end.
            self.devices.values_mut().for_each(|device| device.recorded = None);
        }
        Ok(Next::GoOn)
    }

    /// Lets a look at holders that is due be made, if this is its moment.
    fn see_moment(&mut self) {
        let is_backward = self.session.is_backward(&self.sample.threads);
        let sum = |of: &dyn Fn(&AllocatorCounters) -> i64| {
            self.counters.iter().map(|(_, counters)| of(counters)).sum()
        };
        let allocations = sum(&|counters| counters.stat(Metric::Allocation, Pool::All).allocated);
        let level = sum(&AllocatorCounters::allocated);
        self.session.see_moment(Moment { allocations, level, is_backward });
    }

    fn read_stacks(&mut self) -> Next {
        self.sample.time = self.session.now();
        let Some(python) = &mut self.session.readers.python else {
            self.sample.threads.clear();
            return Next::GoOn;
        };
        match python.sample(&mut self.session.table, &mut self.sample.threads) {
            Ok(stats) => {
                let torn = u64::from(stats.torn);
                self.session.totals.stacks += self.sample.threads.len() as u64 + torn;
                self.session.totals.torn += torn;
                self.session.losses.add(ReaderKind::Stacks, MissedWhy::Torn, torn);
            }
            Err(error) => {
                self.sample.threads.clear();
                if let Some(reason) = self.session.is_over() {
                    return Next::End(reason);
                }
                self.session.losses.add(
                    ReaderKind::Stacks,
                    MissedWhy::Failed(error.to_string()),
                    1,
                );
            }
        }
        Next::GoOn
    }

    fn pass_sample(&mut self, sink: &mut Order<'_>) -> io::Result<()> {
        self.session.record_definitions(sink)?;
        let record = Record::Sample(std::mem::take(&mut self.sample));
        sink.record(&record)?;
        if let Record::Sample(sample) = record {
            self.sample = sample; // Its vector is used again.
        }
        Ok(())
    }

    /// A line may last less long than reading its stack takes: what the counters were at the stack's
    /// instant is known only from two looks at them, one on either side of it.
    fn read_counters_before(&mut self) {
        let read = match &mut self.session.readers.torch {
            Torch::Attached(torch) if *torch.backend() == AllocatorBackend::Native => {
                torch.counters(&mut self.before).is_ok()
            }
            _ => false,
        };
        if !read {
            self.before.clear();
        }
    }

    fn observe_allocator(&mut self, sink: &mut Order<'_>) -> io::Result<()> {
        let Torch::Attached(torch) = &mut self.session.readers.torch else { return Ok(()) };
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
        self.session.see_errors(&self.counters);
        for (device, counters) in &self.counters {
            let state = self.devices.entry(*device).or_insert_with(|| DeviceState {
                policy: MapPolicy::apart(self.maps_apart),
                ..DeviceState::default()
            });
            let before = self.before.iter().find(|(d, _)| d == device).map(|(_, c)| *c);
            // Counters that could not be read before are at least as young as the ones recorded last.
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
            if !state.map_wanted && state.policy.wants(now, counters) {
                let maps = self.maps.as_mut();
                state.map_wanted = maps.is_some_and(|maps| maps.want(*device));
                if state.map_wanted {
                    state.policy.asked(now, counters);
                    sink.expect_late();
                }
            }
        }
        self.take_maps(sink)
    }

    /// Passes on the maps that have come.
    fn take_maps(&mut self, sink: &mut Order<'_>) -> io::Result<()> {
        while let Some(read) = self.maps.as_mut().and_then(MapThread::take) {
            self.take_map(read, sink)?;
        }
        let none_to_come = !self.maps.as_ref().is_some_and(MapThread::is_waited_for);
        if none_to_come { sink.release() } else { Ok(()) }
    }

    fn wait_for_maps(&mut self, sink: &mut Order<'_>) -> io::Result<()> {
        while let Some(read) = self.maps.as_mut().and_then(MapThread::wait) {
            self.take_map(read, sink)?;
        }
        sink.release()
    }

    fn take_map(&mut self, read: MapRead, sink: &mut Order<'_>) -> io::Result<()> {
        let state = self.devices.entry(read.device).or_default();
        state.map_wanted = false;
        let whole = |map: &&BlockMap| map.consistency == Consistency::Consistent;
        let allocated = read.map.as_ref().ok().filter(whole).map(BlockMap::allocated);
        state.policy.has_read(read.cost, allocated);
        match read.map {
            Ok(map) => {
                match map.consistency {
                    Consistency::Consistent => self.session.totals.maps_consistent += 1,
                    Consistency::Degraded { .. } => self.session.totals.maps_degraded += 1,
                }
                sink.late(Some(Record::Blocks(map)))
            }
            Err(why) => {
                self.session.losses.add(ReaderKind::Blocks, why, 1);
                sink.late(None)
            }
        }
    }

    fn start_maps(&mut self, patience: Duration) {
        match MapThread::start(self.session.readers.process.clone(), self.session.start, patience) {
            Ok(maps) => self.maps = Some(maps),
            Err(e) => {
                self.session.losses.add(ReaderKind::Blocks, MissedWhy::Failed(e.to_string()), 1)
            }
        }
    }

    fn progress(&self, elapsed: Duration) -> Progress {
        let sum = |of: fn(&AllocatorCounters) -> i64| {
            (!self.counters.is_empty()).then(|| self.counters.iter().map(|(_, c)| of(c)).sum())
        };
        Progress {
            elapsed,
            totals: self.session.totals,
            allocated: sum(AllocatorCounters::allocated),
            reserved: sum(AllocatorCounters::reserved),
        }
    }
}

/// Why the allocator could not be read, in the words of a record.
fn why(error: TorchError) -> MissedWhy {
    match error {
        TorchError::Torn { .. } => MissedWhy::Torn,
        other => MissedWhy::Failed(other.to_string()),
    }
}

/// Sleeps; `false` when `stop` was set meanwhile.
fn sleep(mut wait: Duration, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        if wait.is_zero() {
            return true;
        }
        let slice = wait.min(SLICE);
        std::thread::sleep(slice);
        wait -= slice;
    }
}
