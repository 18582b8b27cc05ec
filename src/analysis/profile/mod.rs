//! `Profile`: takes records one by one and keeps what the answers need.

pub(super) mod attributed_snapshot;
mod before_owners;
pub(super) mod counter_samples;
pub(super) mod device;
pub(super) mod high_water;
mod intake;
pub(crate) mod keyframe;
pub(crate) mod living;
pub(super) mod memory;
mod recording_kind;
mod thread_stays;
pub(super) mod timeline;
pub(super) mod totals;
pub(super) mod warning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::host_only::HostOnlyStacks;
use crate::analysis::attribution::losses::{Loss, LossCounts};
use crate::analysis::attribution::sample_window::{SampleWindow, ThreadChoice};
use crate::analysis::attribution::waiting::WaitingPlaces;
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::analysis::exact::ExactProfile;
use crate::analysis::followed::allocated_totals::AllocatedTotals;
use crate::analysis::iterations::IterationBuilder;
use crate::analysis::iterations::clock::{IterationClock, RunningClock};
use crate::analysis::iterations::iteration::Iteration;
use crate::analysis::lines::bounds::BoundsByStack;
use crate::analysis::owners::before_recording::PendingOwners;
use crate::analysis::owners::ownership::{OwnerStacks, OwnershipHistory};
use crate::analysis::profile::attributed_snapshot::{AttributedSnapshot, Moment};
use crate::analysis::profile::device::{DeviceProfile, SnapshotBlocks};
use crate::analysis::profile::high_water::HighWater;
use crate::analysis::profile::timeline::Timeline;
use crate::analysis::profile::warning::RecordingWarning;
use crate::model::{
    AllocatorCounters, CudaIndex, DeviceUsage, FunctionId, GpuDevice, MissReason, Nanos,
    OwnedOnDevice, ProcessUsage, ReaderKind, RecordingEnd, RecordingGap, RecordingStart,
    SourceText, StackTable, StepSource, TargetRuntime, ThreadSample,
};
use memory::ProfileMemoryLimit;

/// Greatest values that NVML told of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePeak {
    /// Memory of the device in bytes.
    pub total: u64,
    /// Greatest bytes in use by all processes.
    pub used: u64,
    /// Greatest bytes in use by the target.
    pub process: ProcessUsage,
    /// The last look.
    pub last: DeviceUsage,
}

/// One device's counters in a tick.
#[derive(Debug)]
struct CounterReading {
    device: CudaIndex,
    first: Box<AllocatorCounters>,
    /// Those read right after the stacks, when they differ from the first, read right before them.
    after: Option<(Nanos, Box<AllocatorCounters>)>,
}

/// Everything known from the records so far, in memory that grows with what is different (stacks,
/// blocks alive, devices), not with how long it was recorded.
///
/// Records of one tick (a sample, the counters of the devices, snapshots) may come in any order
/// and up to half a period apart; they are taken together when the next tick begins, at the end of
/// the recording, or at [`Profile::finish`].
#[derive(Debug, Default)]
pub struct Profile {
    choice: ThreadChoice,
    /// Threads seen that held the GIL.
    gil_threads: u64,
    exact: Option<Box<ExactProfile>>,
    min_lifetime: u64,
    /// Whether nobody will ask for the table of lines.
    skips_lines: bool,
    owners: OwnershipHistory,
    owned_before: PendingOwners,
    iterations: IterationBuilder,
    clock: RunningClock,
    stacks: StackTable,
    engine: EngineFrames,
    host_only: HostOnlyStacks,
    places: WaitingPlaces,
    depths: Vec<u32>,
    sources: FxHashMap<FunctionId, SourceText>,
    start: Option<RecordingStart>,
    runtime: Option<TargetRuntime>,
    /// When there was last known to be no allocator: what one counts was counted since.
    empty_at: Option<Nanos>,
    devices: Vec<GpuDevice>,
    end: Option<RecordingEnd>,
    losses: LossCounts,
    usage: BTreeMap<u32, UsagePeak>,
    profiles: BTreeMap<CudaIndex, DeviceProfile>,
    /// The levels at exact events; `None` where nobody will ask for them.
    event_timelines: Option<BTreeMap<CudaIndex, Timeline>>,
    bounds: BTreeMap<CudaIndex, BoundsByStack>,
    samples_of_stack: Vec<u64>,
    samples: u64,
    followed_changes: u64,
    stacks_read: u64,
    ticks: u64,
    last_time: Nanos,
    /// From when on the recording is whole; `None`: from its beginning.
    begins: Option<Nanos>,
    bad_definitions: u64,
    warnings: Vec<String>,
    /// Stretches of which records are missing: the first few, and how many there are.
    gaps: Vec<RecordingGap>,
    gap_count: u64,
    /// Whether such a stretch has just been passed: what is inherited next goes on from there.
    after_gap: bool,
    memory: ProfileMemoryLimit,
    /// The tick being collected, and whether there is one.
    open: SampleWindow,
    is_open: bool,
    open_counters: Vec<CounterReading>,
    open_snapshots: Vec<(CudaIndex, SnapshotBlocks)>,
    previous: SampleWindow,
    /// The threads at work in the open tick and in the previous one.
    at_work: Vec<ThreadSample>,
    previously_at_work: Vec<ThreadSample>,
}

impl Profile {
    /// A profile without records.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// A profile without records that charges memory to the threads chosen.
    pub fn with_filter(choice: ThreadChoice) -> Profile {
        Profile { choice, ..Profile::default() }
    }

    /// Lets only blocks count that live for `least_life`; of exact recordings only, and before their records.
    pub fn with_min_lifetime(mut self, min_lifetime: Nanos) -> Profile {
        self.min_lifetime = min_lifetime.0;
        self
    }

    /// Leaves out what only [`Profile::lines`] needs, which takes hundreds of bytes for every stack; before the records.
    pub fn without_line_statistics(mut self) -> Profile {
        self.skips_lines = true;
        self
    }

    /// Lets [`Profile::timeline`] have the levels at exact events, which counters read once in a while miss; before the records.
    pub fn with_event_timelines(mut self) -> Profile {
        self.event_timelines = Some(BTreeMap::new());
        self
    }

    /// Whether the statistics of lines are gathered.
    pub(crate) fn gathers_lines(&self) -> bool {
        !self.skips_lines
    }

    /// Lets `clock` tell where iterations end, with the bytes of each parameter if `by_parameter`; before the records.
    pub fn with_iterations(mut self, clock: IterationClock, by_parameter: bool) -> Profile {
        self.clock = RunningClock::new(clock);
        self.iterations = IterationBuilder::asked_for(by_parameter);
        self
    }

    /// What tells where iterations end.
    pub fn iteration_clock(&self) -> &IterationClock {
        self.clock.clock()
    }

    /// What counted the recorded steps; `None` where none were.
    pub fn step_clock(&self) -> Option<StepSource> {
        self.iterations.step_clock()
    }

    /// Whether steps were seen to begin exactly between two events; `false` also where the last one was not.
    pub fn steps_at_events(&self) -> bool {
        self.iterations.at_events()
    }

    /// What exact events tell; `None` in a recording without them.
    pub fn exact(&self) -> Option<&ExactProfile> {
        self.exact.as_deref()
    }

    /// The memory of a device by owner, at the recorded look with most of it or at the last one; `None` when the
    /// recording has none.
    pub fn owners(&self, device: CudaIndex, moment: Moment) -> Option<OwnerStacks> {
        let made_at = |account| match &self.exact {
            Some(exact) => exact.account_path(account, &self.stacks),
            None => Vec::new(),
        };
        self.owners.stacks(device, moment, &made_at)
    }

    /// The owners on a device at the last look, and for how long the process stood still for it; `None` without a look.
    pub fn last_owners(&self, device: CudaIndex) -> Option<(&OwnedOnDevice, Option<Nanos>)> {
        self.owners.last(device)
    }

    /// The whole iterations of training that were recorded, and how many more there were than are kept.
    pub fn iterations(&self) -> (&[Iteration], u64) {
        (self.iterations.done(), self.iterations.left_out())
    }

    /// The iteration that the loop's variable says to be under way at the end of the recording; `None` where none is, or
    /// something else counts. The loop may be over: nothing tells.
    pub fn iteration_under_way(&self) -> Option<Iteration> {
        self.iterations.under_way(self.last_time)
    }

    /// Takes the tick being collected into account. Called by the record of the end; call it yourself when a
    /// recording ends abruptly, or to see the latest tick of a live one.
    pub fn finish(&mut self) {
        if self.is_open {
            self.close_tick();
        }
        if let Some(exact) = &mut self.exact {
            exact.finish(&self.stacks);
        }
    }

    /// Adds a warning for the head of the report, from the reader of the file, who knows more than the records tell.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// What stands at the head of a report: what was given to [`Profile::warn`] and what follows from the records.
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

    /// What ran in the target, as last told.
    pub fn runtime(&self) -> Option<&TargetRuntime> {
        self.runtime.as_ref()
    }

    /// The machine's GPUs.
    pub fn devices(&self) -> &[GpuDevice] {
        &self.devices
    }

    /// The recording's end; `None` while it lasts, or when it ended abruptly.
    pub fn end(&self) -> Option<&RecordingEnd> {
        self.end.as_ref()
    }

    /// What was missed.
    pub fn losses(&self) -> &LossCounts {
        &self.losses
    }

    /// Looks at the threads' stacks.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Changes of the allocator's counters that were followed.
    pub fn followed_changes(&self) -> u64 {
        self.followed_changes
    }

    /// Whether the allocator was followed.
    pub(in crate::analysis) fn is_followed(&self) -> bool {
        self.profiles.values().any(DeviceProfile::is_followed)
    }

    /// All that was allocated on a device by whom; `None` where the allocator was not followed.
    pub(in crate::analysis) fn followed_totals(
        &self,
        device: CudaIndex,
    ) -> Option<AllocatedTotals> {
        self.profiles.get(&device)?.followed_totals()
    }

    /// Thread stacks read.
    pub fn stacks_read(&self) -> u64 {
        self.stacks_read
    }

    /// Instants at which anything was looked at.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Time of the latest record.
    pub fn duration(&self) -> Nanos {
        self.last_time
    }

    /// From when on the recording has everything; `None`: from its beginning, nothing was dropped.
    pub fn begins(&self) -> Option<Nanos> {
        self.begins
    }

    /// The source text of a function.
    pub fn source(&self, function: FunctionId) -> Option<&SourceText> {
        self.sources.get(&function)
    }

    /// NVML's figures by its device numbers.
    pub fn usage(&self) -> &BTreeMap<u32, UsagePeak> {
        &self.usage
    }

    /// The devices with counters or maps, as the target numbers them.
    pub fn gpus(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        let exact = self.exact.iter().flat_map(|exact| exact.devices());
        self.profiles.keys().copied().chain(exact).collect::<BTreeSet<_>>().into_iter()
    }

    /// High-water mark of `reserved_bytes.all`.
    pub fn peak_reserved(&self, device: CudaIndex) -> Option<HighWater> {
        let counted = self.profiles.get(&device).and_then(|profile| profile.reserved);
        // It grows within an allocation, whose event tells it; every later event repeats it, also one of a mark that was
        // reached before the recording. So an event tells the moment only where it tells more than the counters.
        match self.exact().and_then(|exact| exact.top_reserved(device)) {
            Some(told) => Some(HighWater::with_event(counted, told, |event, mark| event > mark)),
            None => counted,
        }
    }

    /// The last counters.
    pub fn counters(&self, device: CudaIndex) -> Option<&AllocatorCounters> {
        Some(&self.profiles.get(&device)?.counters.as_ref()?.1)
    }

    /// Allocated and reserved bytes over time: at the readings of the counters, or of an exact recording at every event, where
    /// that was asked for.
    pub fn timeline(&self, device: CudaIndex) -> Option<&Timeline> {
        let of_events = self.event_timelines.as_ref().and_then(|all| all.get(&device));
        if of_events.is_some() {
            return of_events;
        }
        Some(&self.profiles.get(&device)?.timeline)
    }

    /// The snapshot kept for a moment; `None` when the device has none.
    pub fn snapshot(&self, device: CudaIndex, moment: Moment) -> Option<&Arc<AttributedSnapshot>> {
        let profile = self.profiles.get(&device)?;
        match moment {
            Moment::Peak => profile.peak.as_ref(),
            Moment::End => profile.end.as_ref(),
        }
    }

    /// The highest moment of a device of which the blocks are known: where the allocator was
    /// followed, it may lie between two maps. Reports ask [`Profile::peak`].
    pub(in crate::analysis) fn highest(
        &self,
        device: CudaIndex,
    ) -> Option<&Arc<AttributedSnapshot>> {
        self.profiles.get(&device)?.highest()
    }

    /// How high a device's counters and levels came, without what exact events tell.
    pub(in crate::analysis) fn device_mark(&self, device: CudaIndex) -> Option<HighWater> {
        self.profiles.get(&device)?.mark()
    }

    pub(crate) fn engine(&self) -> &EngineFrames {
        &self.engine
    }

    pub(crate) fn bounds(&self, device: CudaIndex) -> Option<&BoundsByStack> {
        self.bounds.get(&device)
    }

    pub(crate) fn samples_of_stack(&self, stack: u32) -> u64 {
        self.samples_of_stack.get(stack as usize).copied().unwrap_or(0)
    }

    /// Number of stacks defined.
    pub(crate) fn known_stacks(&self) -> u32 {
        self.depths.len() as u32
    }

    pub(crate) fn has_gpu(&self, device: CudaIndex) -> bool {
        self.gpus().any(|gpu| gpu == device)
    }
}
