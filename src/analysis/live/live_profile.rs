//! What is true of a job now: a profile that goes on for days, and what a live view shows of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::analysis::attribution::sample_window::ThreadChoice;
use crate::analysis::exact::{ExactProfile, MemoryGroup};
use crate::analysis::flame::fold::{
    FoldError, FoldOptions, FoldedProfile, PseudoFrame, StackLabel,
};
use crate::analysis::flame::time_resolution::TimeResolution;
use crate::analysis::lines::BoundedValue;
use crate::analysis::lines::bounds::BoundsByStack;
use crate::analysis::live::observed_device::{FailureCount, ObservedDevice};
use crate::analysis::live::process_snapshot::{DeviceSnapshot, KnownDevice};
use crate::analysis::live::reserved_growth::ReservedGrowth;
use crate::analysis::live::segment_takers::SegmentTakers;
use crate::analysis::live::usage_history::{PeakUsage, UsageHistory};
use crate::analysis::profile::Profile;
use crate::analysis::profile::attributed_snapshot::Moment;
use crate::analysis::profile::warning::RecordingWarning;
use crate::model::{
    CudaIndex, EventKind, Frame, FunctionId, GpuDevice, MemoryKind, MissReason, Nanos, ReaderKind,
    Record, RecordSink, SinkResult, SleepTags, SnapshotConsistency,
};

/// What a profile may take of memory before it has to begin anew, in bytes. A training job stays below a tenth of it; a
/// program that makes up functions as it runs does not.
const MAX_MEMORY: u64 = 192 << 20;
/// What one definition takes, here and in the recorder.
const DEFINITION: u64 = 320;

/// Sums over all that was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Looks at the stacks.
    pub samples: u64,
    /// Changes of the allocator's counters that were followed; 0 where it is only sampled.
    pub changes: u64,
    /// Looks that came too late to be made.
    pub late: u64,
    /// Stacks, counters and snapshots that the job changed during every attempt to read them.
    pub torn: u64,
    /// Reads that failed for another reason.
    pub failed: u64,
    /// Exact events; `None` in a sampled recording.
    pub events: Option<u64>,
    /// Exact events that were lost.
    pub lost: u64,
}

/// A line, and what it holds. Bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveLine {
    /// A line of Python, or what stands in its place.
    pub place: StackLabel,
    /// Alive now, allocated by the line itself, or by library code that it called.
    pub own: u64,
    /// Alive now, allocated while the line was on the stack.
    pub total: u64,
    /// The same at the peak's moment.
    pub at_peak: u64,
    /// What the allocator reached while the line was on a stack; `None` where no thread was seen on it.
    pub peak: Option<BoundedValue>,
}

/// A stack, and what it holds. Bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStack {
    /// From the outermost frame to the innermost.
    pub path: Vec<StackLabel>,
    /// Alive now.
    pub bytes: u64,
    /// At the peak's moment.
    pub at_peak: u64,
}

/// Rows, and the moment that they are true of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRows<R> {
    /// When.
    pub time: Nanos,
    /// Bytes allocated then: what the rows (or their own bytes) add up to.
    pub allocated: u64,
    /// Whether it is one instant's truth.
    pub consistent: bool,
    /// Whether nothing was allocated or freed since.
    pub is_now: bool,
    /// The kind of memory in an exact recording; `None` in a sampled one.
    pub memory: Option<MemoryGroup>,
    /// How it is known who allocated these bytes.
    pub resolution: TimeResolution,
    /// In no order.
    pub rows: Vec<R>,
}

/// Which functions belong to libraries, not to the program itself.
pub type IsLibrary<'a> = &'a dyn Fn(FunctionId) -> bool;

/// A live profile that one thread fills and others look at.
#[derive(Debug, Clone)]
pub struct SharedProfile(Arc<Mutex<LiveProfile>>);

impl SharedProfile {
    /// An empty one that charges memory to the threads of `choice`.
    pub fn with_filter(choice: ThreadChoice) -> SharedProfile {
        SharedProfile(Arc::new(Mutex::new(LiveProfile::with_filter(choice))))
    }

    /// Forgets everything: another recording of the job follows.
    pub fn clear(&self) {
        let mut live = self.lock();
        *live = LiveProfile::with_filter(live.choice);
    }

    /// The profile as it is now.
    pub fn lock(&self) -> MutexGuard<'_, LiveProfile> {
        self.0.lock()
    }
}

impl RecordSink for SharedProfile {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.lock().record(record)
    }
}

/// Takes the records of a recording that has no planned end.
#[derive(Debug, Default)]
pub struct LiveProfile {
    profile: Profile,
    choice: ThreadChoice,
    levels: BTreeMap<CudaIndex, PeakUsage>,
    recent: BTreeMap<CudaIndex, UsageHistory>,
    /// When the counters last changed.
    changed: BTreeMap<CudaIndex, Nanos>,
    takers: SegmentTakers,
    /// Out-of-memory errors and retries, as first counted.
    first_failures: BTreeMap<CudaIndex, (i64, i64)>,
    /// By NVML's number: what PyTorch had reserved when the driver was asked.
    reserved_then: BTreeMap<u32, u64>,
    /// Of the recordings before this one.
    before: LiveCounts,
    marks_before: BTreeMap<CudaIndex, PeakUsage>,
    time_before: Nanos,
    renewed: u32,
}

impl LiveProfile {
    /// Without records; charges memory to the threads chosen.
    pub fn with_filter(choice: ThreadChoice) -> LiveProfile {
        LiveProfile { profile: Profile::with_filter(choice), choice, ..LiveProfile::default() }
    }

    /// Everything known since the recording began, or began anew.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Time since the first recording began.
    pub fn elapsed(&self) -> Nanos {
        self.since_first(self.profile.duration())
    }

    /// How often it began anew because it had grown too large.
    pub fn renewed(&self) -> u32 {
        self.renewed
    }

    fn since_first(&self, time: Nanos) -> Nanos {
        Nanos(self.time_before.0 + time.0)
    }

    /// Whether the profile has grown so large that the recording should begin anew ([`LiveProfile::reset`]).
    pub fn is_full(&self) -> bool {
        let bounds: u64 = self
            .profile
            .gpus()
            .filter_map(|gpu| self.profile.bounds(gpu))
            .map(BoundsByStack::memory)
            .sum();
        let exact = self.profile.exact().map_or(0, ExactProfile::line_memory);
        bounds + exact + self.profile.stacks().definitions() * DEFINITION > MAX_MEMORY
    }

    /// Forgets functions, stacks and who allocated what, and keeps sums, marks and the recent past. The records of a new
    /// recording follow.
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

    /// What is known of a device besides lines and owners; `seconds` is for how long it was
    /// observed, and `name` what a line is called.
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
            peak: self.profile.peak_allocated(gpu),
            until: self.profile.duration(),
            ooms: FailureCount::between(first.0, last.0),
            retries: FailureCount::between(first.1, last.1),
            reserved: ReservedGrowth::of(&levels),
            seconds,
            taken_by: taken_by.into_iter().map(|(line, _)| line).collect(),
        }
    }

    /// The devices that there are lists of. Exact events of other memory than PyTorch's are those of all devices; they
    /// stand under the first.
    pub fn gpus(&self) -> Vec<CudaIndex> {
        let gpus: Vec<CudaIndex> = self.profile.gpus().collect();
        let other = self.profile.exact().is_some_and(|exact| {
            !exact.has_torch() && exact.other(exact.default_memory()).is_some()
        });
        if gpus.is_empty() && other { vec![CudaIndex(0)] } else { gpus }
    }

    /// What an exact recording did not see.
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

    /// The high-water marks of the allocator, over all recordings.
    pub fn marks(&self, gpu: CudaIndex) -> Option<PeakUsage> {
        let before = self.marks_before.get(&gpu).copied();
        let now = self.profile.peak(gpu).map(|peak| PeakUsage {
            allocated: peak.bytes() as i64,
            reserved: self.profile.peak_reserved(gpu).map_or(0, |reserved| reserved.within),
        });
        let marks = match (before, now) {
            (Some(before), Some(now)) => Some(before.with(now)),
            (before, now) => now.or(before),
        };
        // Events tell what was allocated more often than what was reserved: that was never less.
        marks.map(|marks| PeakUsage { reserved: marks.reserved.max(marks.allocated), ..marks })
    }

    /// Allocated and reserved bytes of the last minutes.
    pub fn recent(&self, gpu: CudaIndex) -> Option<&UsageHistory> {
        self.recent.get(&gpu)
    }

    /// Where the memory of the devices is: those that the job uses, or all of the machine while it uses none.
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
        let mut look = KnownDevice {
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
        // Younger than the profile's: exact events tell more often than the counters are read.
        if let Some(level) = cuda_index.and_then(|gpu| self.levels.get(&gpu)) {
            let bytes = |value: i64| value.max(0) as u64;
            let (allocated, reserved) = (bytes(level.allocated), bytes(level.reserved));
            (look.allocated, look.reserved) = (Some(allocated), Some(reserved));
            look.cached = Some(reserved.saturating_sub(allocated));
        }
        look
    }

    /// What lines hold now, by the last snapshot (or the events so far). With `is_library`, the bytes of library code
    /// belong to the innermost line of the program itself, and lines of libraries that have none are left out.
    pub fn lines(
        &self,
        gpu: CudaIndex,
        is_library: Option<IsLibrary<'_>>,
    ) -> Result<LiveRows<LiveLine>, FoldError> {
        let now = self.profile.fold(gpu, Moment::End, FoldOptions::default())?;
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
        // Without counters there is no table: then what is known is what is alive.
        if let Ok(table) = self.profile.lines(gpu, &Profile::default_columns()[..1]) {
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

    /// What the program's own lines hold now, with the library code that they call: see [`LiveProfile::lines`].
    pub fn program_lines(&self, gpu: CudaIndex) -> Result<LiveRows<LiveLine>, FoldError> {
        let stacks = self.profile.stacks();
        let in_library =
            |function| stacks.get_function(function).is_some_and(|f| f.is_of_library());
        self.lines(gpu, Some(&in_library))
    }

    /// What stacks hold now, by the last snapshot (or the events so far).
    pub fn stacks(&self, gpu: CudaIndex) -> Result<LiveRows<LiveStack>, FoldError> {
        let now = self.profile.fold(gpu, Moment::End, FoldOptions::default())?;
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
        self.profile.fold(gpu, Moment::Peak, FoldOptions::default()).ok()
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

/// The lines of Python that were executing when the memory was allocated, a recursive one once: of backward work those of
/// its own stack. A stack without any is what it is called itself.
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
