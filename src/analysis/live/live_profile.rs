//! A job's live state in bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::analysis::attribution::{Moment, ThreadChoice};
use crate::analysis::exact::{ExactProfile, RecordingWarning};
use crate::analysis::folded::{
    FoldError, FoldOptions, FoldedProfile, MemoryGroup, PseudoFrame, StackLabel, TimeResolution,
};
use crate::analysis::lines::BoundedValue;
use crate::analysis::live::observed_device::{FailureCount, ObservedDevice};
use crate::analysis::live::process_snapshot::{DeviceSnapshot, KnownDevice};
use crate::analysis::live::reserved_growth::ReservedGrowth;
use crate::analysis::live::segment_takers::SegmentTakers;
use crate::analysis::live::time_to_full::TimeToFull;
use crate::analysis::live::usage_history::{PeakUsage, UsageHistory};
use crate::analysis::profile::{BoundsTable, Profile};
use crate::analysis::{flame, lines, peak};
use crate::model::{
    CudaIndex, EventKind, Frame, FunctionId, GpuDevice, MemoryKind, MissReason, Nanos, ReaderKind,
    Record, RecordSink, SinkResult, SleepTags, SnapshotConsistency,
};

/// Bytes above which the profile is reset. Training uses less than a tenth; programs that generate
/// functions may use more.
const MAX_MEMORY: u64 = 192 << 20;
/// Bytes of a definition, here and in the recorder.
const DEFINITION: u64 = 320;

/// Sums over the whole recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Samples of the stacks.
    pub samples: u64,
    /// 0 if sampled.
    pub changes: u64,
    /// Samples skipped as too late.
    pub late: u64,
    /// Reads that the job disturbed at every attempt.
    pub torn: u64,
    /// Other failed reads.
    pub failed: u64,
    /// `None` in a sampled recording.
    pub events: Option<u64>,
    /// Lost exact events.
    pub lost: u64,
}

/// A line's memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLine {
    /// A line of Python, or its placeholder.
    pub place: StackLabel,
    /// Live bytes of the line and library code it called.
    pub own: u64,
    /// Live bytes allocated while the line was on the stack.
    pub total: u64,
    /// `total` at the peak.
    pub at_peak: u64,
    /// Greatest level while on a stack, if seen.
    pub peak: Option<BoundedValue>,
}

/// One stack's live bytes, outermost frame first: now and at the peak.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStack {
    pub path: Vec<StackLabel>,
    pub bytes: u64,
    pub at_peak: u64,
}

/// Rows of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRows<R> {
    /// Their time.
    pub time: Nanos,
    /// The sum of the rows, or of their own bytes.
    pub allocated: u64,
    /// It is consistent.
    pub consistent: bool,
    /// Nothing changed since.
    pub is_now: bool,
    /// In exact recordings.
    pub memory: Option<MemoryGroup>,
    /// How the bytes were attributed.
    pub resolution: TimeResolution,
    /// Unordered.
    pub rows: Vec<R>,
}

/// Which functions belong to libraries.
pub type IsLibrary<'a> = &'a dyn Fn(FunctionId) -> bool;

/// A live profile that threads share.
#[derive(Debug, Clone)]
pub struct SharedProfile(Arc<Mutex<LiveProfile>>);

impl SharedProfile {
    /// An empty profile for the threads of `choice`.
    pub fn with_filter(choice: ThreadChoice) -> SharedProfile {
        SharedProfile(Arc::new(Mutex::new(LiveProfile::with_filter(choice))))
    }

    /// Forgets everything, for another recording.
    pub fn clear(&self) {
        let mut live = self.lock();
        *live = LiveProfile::with_filter(live.choice);
    }

    /// The current profile.
    pub fn lock(&self) -> MutexGuard<'_, LiveProfile> {
        self.0.lock()
    }
}

impl RecordSink for SharedProfile {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.lock().record(record)
    }
}

/// Takes the records of an endless recording.
#[derive(Debug, Default)]
pub struct LiveProfile {
    profile: Profile,
    choice: ThreadChoice,
    levels: BTreeMap<CudaIndex, PeakUsage>,
    recent: BTreeMap<CudaIndex, UsageHistory>,
    changed: BTreeMap<CudaIndex, Nanos>,
    takers: SegmentTakers,
    /// At the first poll: out-of-memory errors, retries.
    first_failures: BTreeMap<CudaIndex, (i64, i64)>,
    /// PyTorch's reserved bytes when the driver was read, by NVML index.
    reserved_then: BTreeMap<u32, u64>,
    /// From before the last reset.
    before: LiveCounts,
    marks_before: BTreeMap<CudaIndex, PeakUsage>,
    time_before: Nanos,
    renewed: u32,
}

impl LiveProfile {
    /// An empty profile for the threads of `choice`.
    pub fn with_filter(choice: ThreadChoice) -> LiveProfile {
        LiveProfile { profile: Profile::with_filter(choice), choice, ..LiveProfile::default() }
    }

    /// Everything since the last reset.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Time since the first recording began.
    pub fn elapsed(&self) -> Nanos {
        self.since_first(self.profile.duration())
    }

    /// How often the profile was reset.
    pub fn renewed(&self) -> u32 {
        self.renewed
    }

    fn since_first(&self, time: Nanos) -> Nanos {
        Nanos(self.time_before.0 + time.0)
    }

    /// Whether it needs a [`LiveProfile::reset`].
    pub fn is_full(&self) -> bool {
        let bounds: u64 = self
            .profile
            .gpus()
            .filter_map(|gpu| self.profile.bounds(gpu))
            .map(BoundsTable::memory)
            .sum();
        let exact = self.profile.exact().map_or(0, ExactProfile::line_memory);
        bounds + exact + self.profile.stacks().definitions() * DEFINITION > MAX_MEMORY
    }

    /// Forgets functions, stacks and attributions; keeps sums, peaks and recent history.
    pub fn reset(&mut self) {
        self.before = self.counts();
        for gpu in self.profile.gpus().collect::<Vec<_>>() {
            if let Some(marks) = self.marks(gpu) {
                self.marks_before.insert(gpu, marks);
            }
        }
        self.time_before = self.elapsed();
        self.renewed += 1;
        self.profile = Profile::with_filter(self.choice);
        self.takers = SegmentTakers::default();
    }

    /// A device's other figures after `seconds` of observation; `name` is a line's text.
    pub fn observed(
        &self,
        gpu: CudaIndex,
        seconds: f64,
        name: &dyn Fn(Frame) -> String,
    ) -> ObservedDevice {
        let counters = self.profile.counters(gpu);
        let last = counters.map_or((0, 0), |now| (now.num_ooms, now.num_alloc_retries));
        let first = self.first_failures.get(&gpu).copied().unwrap_or(last);
        let levels = self.recent.get(&gpu).map(UsageHistory::levels).unwrap_or_default();
        let stacks = self.profile.stacks();
        let in_library =
            |frame: &Frame| stacks.get_function(frame.function).is_none_or(|f| f.is_of_library());
        let mut by_line: BTreeMap<String, u64> = BTreeMap::new();
        for (stack, bytes) in self.takers.taken(gpu) {
            let own = stacks.frames(stack).find(|frame| !in_library(frame));
            if let Some(frame) = own.or_else(|| stacks.frames(stack).next()) {
                *by_line.entry(name(frame)).or_default() += bytes;
            }
        }
        let mut taken_by: Vec<(String, u64)> = by_line.into_iter().collect();
        taken_by.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        ObservedDevice {
            gpu: gpu.0,
            peak: peak::allocated(&self.profile, gpu),
            least: self.recent.get(&gpu).and_then(UsageHistory::least_allocated),
            until: self.profile.duration(),
            ooms: FailureCount::between(first.0, last.0),
            retries: FailureCount::between(first.1, last.1),
            reserved: ReservedGrowth::of(&levels),
            full: self.time_to_full(gpu),
            seconds,
            taken_by: taken_by.into_iter().map(|(line, _)| line).collect(),
        }
    }

    /// Devices with rows; the first one lists exact events outside PyTorch.
    pub fn gpus(&self) -> Vec<CudaIndex> {
        let gpus: Vec<CudaIndex> = self.profile.gpus().collect();
        let other = self.profile.exact().is_some_and(|exact| {
            !exact.has_torch() && exact.other(exact.default_memory()).is_some()
        });
        if gpus.is_empty() && other { vec![CudaIndex(0)] } else { gpus }
    }

    /// What an exact recording missed.
    pub fn warnings(&self) -> Vec<RecordingWarning> {
        self.profile.exact().map(|exact| exact.warnings()).unwrap_or_default()
    }

    /// Sums over all recordings.
    pub fn counts(&self) -> LiveCounts {
        let (before, losses) = (self.before, self.profile.losses());
        let readers =
            [ReaderKind::Stacks, ReaderKind::Counters, ReaderKind::Snapshots, ReaderKind::Gpu];
        let exact = self.profile.exact().map(|exact| exact.events());
        LiveCounts {
            samples: before.samples + self.profile.samples(),
            changes: before.changes + self.profile.followed_changes(),
            late: before.late + losses.late(ReaderKind::Stacks),
            torn: before.torn + readers.iter().map(|r| losses.torn(*r)).sum::<u64>(),
            failed: before.failed + readers.iter().map(|r| losses.failed(*r)).sum::<u64>(),
            events: exact.or(before.events).map(|n| n + before.events.unwrap_or(0)),
            lost: before.lost + losses.late(ReaderKind::Events),
        }
    }

    /// The allocator's peaks over all recordings.
    pub fn marks(&self, gpu: CudaIndex) -> Option<PeakUsage> {
        let before = self.marks_before.get(&gpu).copied();
        let now = peak::of(&self.profile, gpu).map(|peak| PeakUsage {
            allocated: peak.bytes() as i64,
            reserved: self.profile.peak_reserved(gpu).map_or(0, |reserved| reserved.within),
        });
        let marks = match (before, now) {
            (Some(before), Some(now)) => Some(before.with(now)),
            (before, now) => now.or(before),
        };
        // Events show reserved bytes less often than allocated ones.
        marks.map(|marks| PeakUsage { reserved: marks.reserved.max(marks.allocated), ..marks })
    }

    /// The last minutes.
    pub fn recent(&self, gpu: CudaIndex) -> Option<&UsageHistory> {
        self.recent.get(&gpu)
    }

    /// When the device will be full, if the job's allocated bytes keep rising and what is free is
    /// known.
    pub fn time_to_full(&self, gpu: CudaIndex) -> Option<TimeToFull> {
        let devices = self.profile.devices();
        let known = devices.iter().find(|device| device.cuda_index == Some(gpu));
        let device = self.device(Some(gpu), known);
        let (levels, most) = self.recent.get(&gpu)?.allocated();
        // What the cache has free serves, too, unless it is in pieces.
        let room = (device.free? + device.reserved?).saturating_sub(most);
        TimeToFull::of(&levels, room)
    }

    /// The job's devices, else all of the machine.
    pub fn devices(&self) -> Vec<DeviceSnapshot> {
        let devices = self.profile.devices();
        let known = |gpu: CudaIndex| devices.iter().find(|d| d.cuda_index == Some(gpu));
        let used: Vec<DeviceSnapshot> =
            self.levels.keys().map(|&gpu| self.device(Some(gpu), known(gpu))).collect();
        if used.is_empty() {
            return devices.iter().map(|d| self.device(d.cuda_index, Some(d))).collect();
        }
        used
    }

    fn device(&self, cuda_index: Option<CudaIndex>, device: Option<&GpuDevice>) -> DeviceSnapshot {
        let nvml = device.and_then(|d| d.nvml_index);
        let failed = || {
            self.profile.losses().all().into_iter().find_map(|loss| match (loss.why, loss.reader) {
                (MissReason::Failed(why), ReaderKind::Gpu) => Some(why),
                _ => None,
            })
        };
        let usage = nvml.and_then(|n| self.profile.usage().get(&n)).map(|usage| &usage.last);
        let mut known = KnownDevice {
            cuda_index,
            device,
            counters: cuda_index.and_then(|gpu| self.profile.counters(gpu)),
            usage,
            snapshot: None,
            reserved_then: nvml.and_then(|n| self.reserved_then.get(&n)).copied(),
            moved: false,
            allocator: self.profile.runtime().map(|r| &r.allocator),
            failed: usage.is_none().then(failed).flatten(),
            tags: &SleepTags::NotLoaded,
        }
        .snapshot();
        // Events are newer than the last poll.
        if let Some(level) = cuda_index.and_then(|gpu| self.levels.get(&gpu)) {
            let bytes = |value: i64| value.max(0) as u64;
            let (allocated, reserved) = (bytes(level.allocated), bytes(level.reserved));
            (known.allocated, known.reserved) = (Some(allocated), Some(reserved));
            known.cached = Some(reserved.saturating_sub(allocated));
        }
        known
    }

    /// Live memory by line, at the last snapshot or event. With `is_library`, library bytes count
    /// for the innermost program line; other library lines are left out.
    pub fn lines(
        &self,
        gpu: CudaIndex,
        is_library: Option<IsLibrary<'_>>,
    ) -> Result<LiveRows<LiveLine>, FoldError> {
        let now = flame::fold(&self.profile, gpu, Moment::End, FoldOptions::default())?;
        let mut known: FxHashMap<FunctionId, bool> = FxHashMap::default();
        let mut in_library = |frame: &Frame| {
            is_library.is_some_and(|is_library| {
                *known.entry(frame.function).or_insert_with(|| is_library(frame.function))
            })
        };
        let mut rows: FxHashMap<StackLabel, LiveLine> = FxHashMap::default();
        for stack in &now.stacks {
            let places = places(&stack.path);
            let in_program = |place: &&StackLabel| match place {
                StackLabel::Frame(frame) => !in_library(frame),
                _ => true,
            };
            let own = places.iter().rev().find(in_program).or(places.last());
            if let Some(own) = own {
                row(&mut rows, *own).own += stack.bytes;
            }
            for place in places {
                row(&mut rows, place).total += stack.bytes;
            }
        }
        // Without counters there is no table.
        if let Ok(table) = lines::table(&self.profile, gpu, &lines::default_columns()[..1]) {
            for function in &table.functions {
                for line in &function.rows {
                    let frame = Frame { function: function.function, line: line.line };
                    let row = row(&mut rows, StackLabel::Frame(frame));
                    let seen = |value: &BoundedValue| value.upper.is_some() || value.value > 0;
                    row.peak = line.cells.first().map(|cell| cell.value).filter(seen);
                }
            }
        }
        for stack in self.at_peak(gpu).into_iter().flat_map(|peak| peak.stacks) {
            for place in places(&stack.path) {
                row(&mut rows, place).at_peak += stack.bytes;
            }
        }
        if now.left_out > 0 {
            let row = row(&mut rows, StackLabel::Pseudo(PseudoFrame::BeforeRecording));
            row.own += now.left_out;
            row.total += now.left_out;
        }
        let shown = |row: &LiveLine| match row.place {
            StackLabel::Frame(frame) => row.own > 0 || !in_library(&frame),
            _ => true,
        };
        let rows = rows.into_values().filter(shown).collect();
        Ok(self.taken(&now, rows))
    }

    /// [`LiveProfile::lines`] of the program's own lines.
    pub fn program_lines(&self, gpu: CudaIndex) -> Result<LiveRows<LiveLine>, FoldError> {
        let stacks = self.profile.stacks();
        let in_library =
            |function| stacks.get_function(function).is_some_and(|f| f.is_of_library());
        self.lines(gpu, Some(&in_library))
    }

    /// Live memory by stack, at the last snapshot or event.
    pub fn stacks(&self, gpu: CudaIndex) -> Result<LiveRows<LiveStack>, FoldError> {
        let now = flame::fold(&self.profile, gpu, Moment::End, FoldOptions::default())?;
        let mut rows: FxHashMap<Vec<StackLabel>, (u64, u64)> = FxHashMap::default();
        for stack in &now.stacks {
            rows.entry(stack.path.clone()).or_default().0 += stack.bytes;
        }
        for older in &now.left_out_stacks {
            rows.entry(older.path.clone()).or_default().0 += older.bytes;
        }
        for stack in self.at_peak(gpu).into_iter().flat_map(|peak| peak.stacks) {
            rows.entry(stack.path).or_default().1 += stack.bytes;
        }
        let rows = rows
            .into_iter()
            .map(|(path, (bytes, at_peak))| LiveStack { path, bytes, at_peak })
            .collect();
        Ok(self.taken(&now, rows))
    }

    fn at_peak(&self, gpu: CudaIndex) -> Option<FoldedProfile> {
        flame::fold(&self.profile, gpu, Moment::Peak, FoldOptions::default()).ok()
    }

    fn taken<R>(&self, now: &FoldedProfile, rows: Vec<R>) -> LiveRows<R> {
        let time = self.since_first(now.snapshot.time);
        LiveRows {
            time,
            allocated: now.total + now.left_out,
            consistent: now.snapshot.consistency == SnapshotConsistency::Consistent,
            is_now: self.changed.get(&now.device).is_none_or(|changed| *changed <= time),
            memory: now.memory,
            resolution: now.resolution,
            rows,
        }
    }

    fn level(&mut self, time: Nanos, gpu: CudaIndex, level: PeakUsage) {
        let time = self.since_first(time);
        self.levels.insert(gpu, level);
        self.changed.insert(gpu, time);
        self.recent.entry(gpu).or_default().add(time, level);
    }
}

/// The Python lines on the stack, each once; for backward work, those of its own stack. Without
/// any, the stack's mark.
fn places(path: &[StackLabel]) -> Vec<StackLabel> {
    let mut places: Vec<StackLabel> = Vec::with_capacity(path.len());
    for label in
        path.iter().take_while(|label| **label != StackLabel::Pseudo(PseudoFrame::BackwardOf))
    {
        if matches!(label, StackLabel::Frame(_)) && !places.contains(label) {
            places.push(*label);
        }
    }
    if places.is_empty() {
        places
            .push(path.first().copied().unwrap_or(StackLabel::Pseudo(PseudoFrame::NoPythonStack)));
    }
    places
}

fn row(rows: &mut FxHashMap<StackLabel, LiveLine>, place: StackLabel) -> &mut LiveLine {
    rows.entry(place).or_insert(LiveLine { place, own: 0, total: 0, at_peak: 0, peak: None })
}

impl RecordSink for LiveProfile {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Counters { time, device, counters } => {
                let level =
                    PeakUsage { allocated: counters.allocated(), reserved: counters.reserved() };
                self.level(*time, *device, level);
                self.takers.on_counters(*device, counters.reserved());
                let failures = (counters.num_ooms, counters.num_alloc_retries);
                self.first_failures.entry(*device).or_insert(failures);
            }
            Record::Events(batch) => {
                for event in &batch.events {
                    self.takers.on_event(event, self.profile.stacks());
                    if let EventKind::Allocated {
                        memory_kind: MemoryKind::Torch(gpu), levels, ..
                    } = event.change
                        && let Some(levels) = levels
                    {
                        let level =
                            PeakUsage { allocated: levels.allocated, reserved: levels.reserved };
                        self.level(event.time, gpu, level);
                    }
                }
            }
            Record::Usage(usage) => {
                let of = |d: &&GpuDevice| d.nvml_index == Some(usage.nvml_index);
                let gpu = self.profile.devices().iter().find(of).and_then(|d| d.cuda_index);
                let level = gpu.and_then(|gpu| self.levels.get(&gpu));
                if let Some(level) = level {
                    self.reserved_then.insert(usage.nvml_index, level.reserved.max(0) as u64);
                }
            }
            _ => {}
        }
        self.profile.record(record)
    }
}
