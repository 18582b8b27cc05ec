//! `Profile`: takes records, keeps what reports need.

mod before_owners;
mod bounds;
mod counter_samples;
mod device;
mod high_water;
mod intake;
mod keyframe;
mod living;
mod memory;
mod thread_stays;
mod tick_steps;
mod timeline;
mod totals;

pub(crate) use bounds::{BoundsTable, stat_index};
pub use counter_samples::{CounterSample, CounterSamples};
pub(crate) use high_water::SeenLevel;
pub use high_water::{HighWater, PeakTime};
pub use memory::ProfileLimit;
pub use timeline::{Timeline, TimelinePoint};
pub use totals::TotalsCounter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{
    AttributedSnapshot, HostStacks, Loss, LossCounts, Moment, SampleWindow, ThreadChoice,
    WaitingPlaces,
};
use crate::analysis::autograd::EngineFrames;
use crate::analysis::exact::{ExactProfile, RecordingWarning};
use crate::analysis::followed::AllocatedTotals;
use crate::analysis::iterations::{Iteration, IterationBuilder, IterationClock, RunningClock};
use crate::analysis::owners::{OwnerStacks, OwnershipHistory, PendingOwners};
use crate::analysis::profile::device::{DeviceProfile, SnapshotBlocks};
use crate::model::{
    AllocatorCounters, CudaIndex, DeviceOwners, DeviceUsage, Frame, FunctionId, GpuDevice,
    MissReason, Nanos, ProcessUsage, ReaderKind, RecordingEnd, RecordingGap, RecordingStart,
    SourceText, StackTable, StepSource, TargetRuntime, ThreadSample,
};
use memory::ProfileBudget;

/// Greatest values of a device in NVML, in bytes; `last` has the latest.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePeak {
    pub total: u64,
    pub used: u64,
    pub process: ProcessUsage,
    pub last: DeviceUsage,
}

#[derive(Debug)]
struct CounterReading {
    device: CudaIndex,
    first: Box<AllocatorCounters>,
    /// Read after the stacks; `None` if equal to `first`, read before them.
    after: Option<(Nanos, Box<AllocatorCounters>)>,
}

/// The result of all records so far, in memory that grows with distinct stacks, live blocks and
/// devices, not with time.
///
/// Records of one tick (sample, counters, snapshots) come in any order, up to half a period apart.
/// They are evaluated when the next tick begins, at the end, or at [`Profile::finish`].
#[derive(Debug, Default)]
pub struct Profile {
    choice: ThreadChoice,
    gil_threads: u64,
    exact: Option<Box<ExactProfile>>,
    min_lifetime: u64,
    skips_lines: bool,
    owners: OwnershipHistory,
    owned_before: PendingOwners,
    iterations: IterationBuilder,
    clock: RunningClock,
    stacks: StackTable,
    engine: EngineFrames,
    host_only: HostStacks,
    places: WaitingPlaces,
    depths: Vec<u32>,
    sources: FxHashMap<FunctionId, SourceText>,
    start: Option<RecordingStart>,
    runtime: Option<TargetRuntime>,
    /// No allocator existed then, so its counters start from 0.
    empty_at: Option<Nanos>,
    devices: Vec<GpuDevice>,
    end: Option<RecordingEnd>,
    losses: LossCounts,
    usage: BTreeMap<u32, UsagePeak>,
    profiles: BTreeMap<CudaIndex, DeviceProfile>,
    /// `None` unless asked for.
    event_timelines: Option<BTreeMap<CudaIndex, Timeline>>,
    bounds: BTreeMap<CudaIndex, BoundsTable>,
    samples_of_stack: Vec<u64>,
    samples: u64,
    followed_changes: u64,
    stacks_read: u64,
    ticks: u64,
    last_time: Nanos,
    begins: Option<Nanos>,
    bad_definitions: u64,
    warnings: Vec<String>,
    /// The first gaps, and the number of all.
    gaps: Vec<RecordingGap>,
    gap_count: u64,
    /// The next keyframe continues after a gap.
    after_gap: bool,
    memory: ProfileBudget,
    open: SampleWindow,
    is_open: bool,
    open_counters: Vec<CounterReading>,
    open_snapshots: Vec<(CudaIndex, SnapshotBlocks)>,
    previous: SampleWindow,
    at_work: Vec<ThreadSample>,
    previously_at_work: Vec<ThreadSample>,
}

impl Profile {
    /// An empty profile.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// An empty profile that attributes memory to the chosen threads only.
    pub fn with_filter(choice: ThreadChoice) -> Profile {
        Profile { choice, ..Profile::default() }
    }

    /// Ignores blocks that live shorter (exact recordings). Call before adding records.
    pub fn with_min_lifetime(mut self, min_lifetime: Nanos) -> Profile {
        self.min_lifetime = min_lifetime.0;
        self
    }

    /// Skips what only [`lines::table`](crate::analysis::lines::table) needs, hundreds of bytes a
    /// stack. Call before adding records.
    pub fn without_line_statistics(mut self) -> Profile {
        self.skips_lines = true;
        self
    }

    /// Adds exact events to [`Profile::timeline`]. Call before adding records.
    pub fn with_event_timelines(mut self) -> Profile {
        self.event_timelines = Some(BTreeMap::new());
        self
    }

    pub(crate) fn gathers_lines(&self) -> bool {
        !self.skips_lines
    }

    /// Finds iterations with `clock`, and each parameter's bytes if `by_parameter`. Call before
    /// adding records.
    pub fn with_iterations(mut self, clock: IterationClock, by_parameter: bool) -> Profile {
        self.clock = RunningClock::new(clock);
        self.iterations = IterationBuilder::asked_for(by_parameter);
        self
    }

    /// What ends iterations.
    pub fn iteration_clock(&self) -> &IterationClock {
        self.clock.clock()
    }

    /// What counted the steps.
    pub fn step_clock(&self) -> Option<StepSource> {
        self.iterations.step_clock()
    }

    /// Whether steps begin exactly between two events; `false` if the last one did not.
    pub fn steps_at_events(&self) -> bool {
        self.iterations.at_events()
    }

    /// Results of exact events.
    pub fn exact(&self) -> Option<&ExactProfile> {
        self.exact.as_deref()
    }

    /// Memory by owner, at the owner snapshot with most of it or at the last.
    pub fn owners(&self, device: CudaIndex, moment: Moment) -> Option<OwnerStacks> {
        let made_at = |account| match &self.exact {
            Some(exact) => exact.account_path(account, &self.stacks),
            None => Vec::new(),
        };
        self.owners.stacks(device, moment, &made_at)
    }

    /// The last owner snapshot, and how long it stopped the process.
    pub fn last_owners(&self, device: CudaIndex) -> Option<(&DeviceOwners, Option<Nanos>)> {
        self.owners.last(device)
    }

    /// Complete iterations, and how many were not kept.
    pub fn iterations(&self) -> (&[Iteration], u64) {
        (self.iterations.done(), self.iterations.left_out())
    }

    /// The unfinished iteration at the end, if a loop variable is the clock. The loop may have
    /// ended.
    pub fn iteration_under_way(&self) -> Option<Iteration> {
        self.iterations.under_way(self.last_time)
    }

    /// Evaluates the open tick. Call it for a recording that is live or has no end.
    pub fn finish(&mut self) {
        if self.is_open {
            self.close_tick();
        }
        if let Some(exact) = &mut self.exact {
            exact.finish(&self.stacks);
        }
    }

    /// Adds a warning of the file reader.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// All warnings.
    pub fn warnings(&self) -> Vec<RecordingWarning> {
        let mut all: Vec<_> = self.warnings.iter().cloned().map(RecordingWarning::File).collect();
        if self.end.is_none() {
            all.push(RecordingWarning::NoEnd);
        }
        all.extend(self.gaps.iter().cloned().map(RecordingWarning::Gap));
        if self.gap_count > self.gaps.len() as u64 {
            all.push(RecordingWarning::MoreGaps(self.gap_count - self.gaps.len() as u64));
        }
        if self.choice.gil_only && self.stacks_read > 0 && self.gil_threads == 0 {
            all.push(RecordingWarning::NoGilSeen);
        }
        if self.bad_definitions > 0 {
            all.push(RecordingWarning::BadDefinitions(self.bad_definitions));
        }
        if let Some(exact) = &self.exact {
            let lost = self.losses.late(ReaderKind::Events);
            if lost > 0 {
                all.push(RecordingWarning::LostEvents(lost));
            }
            all.extend(exact.warnings());
        }
        let of_owners = self.losses.all().into_iter().filter(|it| it.reader == ReaderKind::Owners);
        if let Some(Loss { why: MissReason::Failed(why), .. }) =
            of_owners.max_by_key(|loss| loss.count)
        {
            let count = self.losses.failed(ReaderKind::Owners);
            all.push(RecordingWarning::FailedOwners { count, why });
        }
        for (&device, profile) in &self.profiles {
            let torn = profile.snapshots_degraded;
            if torn > 0 {
                let all_read = torn + profile.snapshots_consistent;
                all.push(RecordingWarning::TornSnapshots { device, torn, all: all_read });
            }
        }
        all
    }

    /// Functions, frames, stacks and threads.
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// What was recorded, and how.
    pub fn start(&self) -> Option<&RecordingStart> {
        self.start.as_ref()
    }

    /// Latest runtime of the target.
    pub fn runtime(&self) -> Option<&TargetRuntime> {
        self.runtime.as_ref()
    }

    /// The machine's GPUs.
    pub fn devices(&self) -> &[GpuDevice] {
        &self.devices
    }

    /// `None` if it lasts or ended abruptly.
    pub fn end(&self) -> Option<&RecordingEnd> {
        self.end.as_ref()
    }

    /// Missed observations.
    pub fn losses(&self) -> &LossCounts {
        &self.losses
    }

    /// Samples taken.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of counter deltas.
    pub fn followed_changes(&self) -> u64 {
        self.followed_changes
    }

    pub(in crate::analysis) fn is_followed(&self) -> bool {
        self.profiles.values().any(DeviceProfile::is_followed)
    }

    pub(in crate::analysis) fn followed_totals(
        &self,
        device: CudaIndex,
    ) -> Option<AllocatedTotals> {
        self.profiles.get(&device)?.followed_totals()
    }

    /// Number of thread stacks read.
    pub fn stacks_read(&self) -> u64 {
        self.stacks_read
    }

    /// Number of instants with readings.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Time of the latest record.
    pub fn duration(&self) -> Nanos {
        self.last_time
    }

    /// The recording is complete from then; `None`: from its beginning.
    pub fn begins(&self) -> Option<Nanos> {
        self.begins
    }

    /// The source text of a function.
    pub fn source(&self, function: FunctionId) -> Option<&SourceText> {
        self.sources.get(&function)
    }

    /// The trimmed source text of a line.
    pub fn source_line(&self, frame: Frame) -> Option<&str> {
        let source = self.source(frame.function)?;
        let at = frame.line.checked_sub(source.first_line)?;
        source.text.lines().nth(at as usize).map(str::trim)
    }

    /// NVML's values, by its device numbers.
    pub fn usage(&self) -> &BTreeMap<u32, UsagePeak> {
        &self.usage
    }

    /// Devices with counters or snapshots, in the target's numbering.
    pub fn gpus(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        let exact = self.exact.iter().flat_map(|exact| exact.devices());
        self.profiles.keys().copied().chain(exact).collect::<BTreeSet<_>>().into_iter()
    }

    /// The peak of `reserved_bytes.all`.
    pub fn peak_reserved(&self, device: CudaIndex) -> Option<HighWater> {
        let counted = self.profiles.get(&device).and_then(|profile| profile.reserved);
        // Events repeat older peaks: an event gives the time only where it exceeds the counters.
        match self.exact().and_then(|exact| exact.greatest_reserved(device)) {
            Some(told) => Some(HighWater::with_event(counted, told, |event, mark| event > mark)),
            None => counted,
        }
    }

    /// The last counters.
    pub fn counters(&self, device: CudaIndex) -> Option<&AllocatorCounters> {
        Some(&self.profiles.get(&device)?.counters.as_ref()?.1)
    }

    /// Levels by counter records, or by exact events if asked for.
    pub fn timeline(&self, device: CudaIndex) -> Option<&Timeline> {
        let of_events = self.event_timelines.as_ref().and_then(|all| all.get(&device));
        if of_events.is_some() {
            return of_events;
        }
        Some(&self.profiles.get(&device)?.timeline)
    }

    /// The snapshot kept for a moment.
    pub fn snapshot(&self, device: CudaIndex, moment: Moment) -> Option<&Arc<AttributedSnapshot>> {
        let profile = self.profiles.get(&device)?;
        match moment {
            Moment::Peak => profile.peak.as_ref(),
            Moment::End => profile.end.as_ref(),
        }
    }

    /// The highest moment with known blocks, perhaps between two snapshots. Reports use
    /// [`peak::of`](crate::analysis::peak::of).
    pub(in crate::analysis) fn highest(
        &self,
        device: CudaIndex,
    ) -> Option<&Arc<AttributedSnapshot>> {
        self.profiles.get(&device)?.highest()
    }

    /// Without exact events.
    pub(in crate::analysis) fn device_mark(&self, device: CudaIndex) -> Option<HighWater> {
        self.profiles.get(&device)?.mark()
    }

    pub(crate) fn engine(&self) -> &EngineFrames {
        &self.engine
    }

    pub(crate) fn bounds(&self, device: CudaIndex) -> Option<&BoundsTable> {
        self.bounds.get(&device)
    }

    pub(crate) fn samples_of_stack(&self, stack: u32) -> u64 {
        self.samples_of_stack.get(stack as usize).copied().unwrap_or(0)
    }

    pub(crate) fn known_stacks(&self) -> u32 {
        self.depths.len() as u32
    }

    pub(crate) fn has_gpu(&self, device: CudaIndex) -> bool {
        self.gpus().any(|gpu| gpu == device)
    }
}
