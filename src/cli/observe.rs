//! Takes owner snapshots of a job while lines are recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;

use crate::analysis::{
    GpuFacts, GrowthWatch, ObservedDevice, OwnerGroup, ProcessSnapshot, PseudoFrame, SharedProfile,
    StackLabel, ThreadChoice, in_no_tensor, owner_groups,
};
use crate::model::{CudaIndex, OwnershipSnapshot, SinkResult, StopTotals};
use crate::render::{FrameLabels, LineBytes, LinesSource, ObservedLines};
use crate::sampler::{
    AttachError, AttachedRecorder, CommonOptions, CostWatch, ExactOptions, ExactRecorder,
    RecordOptions, Recorder, SnapshotOptions, TargetIdentity, TargetReaders, Worker, read_owners,
    read_sleep_tags, sleep_unless,
};

use super::mode::{ExactOutlook, ModeChoice};
use super::{hints, output};

const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum number of snapshots after the first.
const MIN_ROUNDS: u32 = 3;

#[derive(Debug, Clone, Copy)]
pub(super) struct ObserveOptions {
    pub(super) duration: Duration,
    /// Minimum time between two ownership snapshots.
    pub(super) every: Duration,
    pub(super) limits: SnapshotOptions,
}

pub(super) struct JobObservation {
    pub(super) process: ProcessSnapshot,
    pub(super) growth: GrowthWatch,
    pub(super) last: Result<OwnershipSnapshot, String>,
    pub(super) stops: StopTotals,
    pub(super) lines: ObservedLines,
    pub(super) devices: Vec<ObservedDevice>,
    /// Reused: they know which memory matters.
    pub(super) readers: TargetReaders,
}

impl JobObservation {
    pub(super) fn gpus(&self) -> Vec<GpuFacts> {
        let blocks = self.last.as_ref().map_or(&[][..], |look| &look.blocks);
        let at_snapshot = |facts: GpuFacts| {
            let map = blocks.iter().find(|map| map.device.0 == facts.gpu);
            map.map_or(facts, |map| facts.with_blocks(map))
        };
        self.process.devices().iter().filter_map(GpuFacts::new).map(at_snapshot).collect()
    }
}

pub(super) fn observe(
    readers: TargetReaders,
    options: ObserveOptions,
    stop: &AtomicBool,
) -> Result<JobObservation> {
    let (identity, pid) = (readers.identity(), readers.pid());
    let mut snapshots = SnapshotRounds::begin(readers, options.limits)?;
    let began = snapshots.began;
    // Attaching takes as long as a snapshot: do both at once.
    let attaching = LineRecording::begin(identity.clone(), pid)?;
    // The first snapshot is slowest: it finds which memory matters.
    let first = snapshots.take();
    let mut recording = attaching.attached(pid)?;
    // The observation began while the first snapshot was analysed.
    let mut next = first.max(recording.began);
    let until = next + options.duration;
    let mut lines = ObservedLines::default();
    let mut at_end = None;
    for round in 1.. {
        // Counts from start to start, with a rest for the machine.
        let rest = Instant::now() + options.every / 8;
        next = (next + options.every).max(rest).min(until);
        let wait = next.saturating_duration_since(Instant::now());
        sleep_unless(wait, || stop.load(Ordering::Relaxed) || recording.is_over());
        if recording.is_over() {
            break;
        }
        recording.lines(began, &mut snapshots.growth, &mut lines);
        if round >= MIN_ROUNDS && next >= until {
            at_end = Some(EndSnapshot::begin(identity.clone(), pid)?);
        }
        snapshots.take();
        // Growth needs several snapshots, however slow.
        let is_over = Instant::now() >= until && round >= MIN_ROUNDS;
        if is_over || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let at_end = match at_end {
        Some(begun) => begun,
        None => EndSnapshot::begin(identity, pid)?,
    };
    lines.seconds = recording.end();
    let devices = recording.devices(lines.seconds);
    let mut process = at_end.read()?;
    process.set_tags(read_sleep_tags(&snapshots.readers));
    let SnapshotRounds { readers, grouping, mut growth, stops, failed, .. } = snapshots;
    // If the last snapshot failed, use the one before.
    let last = grouping.end(&mut growth).ok_or(failed);
    Ok(JobObservation { process, growth, last, stops, lines, devices, readers })
}

/// Takes ownership snapshots, one after the other.
struct SnapshotRounds {
    readers: TargetReaders,
    limits: SnapshotOptions,
    began: Instant,
    grouping: GroupingThread,
    growth: GrowthWatch,
    stops: StopTotals,
    /// The error of the last one that failed.
    failed: String,
}

impl SnapshotRounds {
    fn begin(readers: TargetReaders, limits: SnapshotOptions) -> Result<SnapshotRounds> {
        let grouping = GroupingThread::begin()?;
        Ok(SnapshotRounds {
            readers,
            limits,
            began: Instant::now(),
            grouping,
            growth: GrowthWatch::default(),
            stops: StopTotals::default(),
            failed: "no snapshot was read".to_owned(),
        })
    }

    /// Returns the time of the stop, not of the analysis's end.
    fn take(&mut self) -> Instant {
        match read_owners(&mut self.readers, self.limits) {
            Ok(read) => {
                self.stops.merge(read.snapshot.stops);
                let time = self.began.elapsed().saturating_sub(read.snapshot.age);
                self.grouping.add(time, read.snapshot, &mut self.growth);
                self.began + time
            }
            Err(error) => {
                self.failed = error.to_string();
                Instant::now()
            }
        }
    }
}

/// Groups owners on a thread: for a large job this takes as long as the next snapshot.
struct GroupingThread {
    snapshots: Option<Sender<(Duration, OwnershipSnapshot)>>,
    grouped: Receiver<(Duration, Vec<OwnerGroup>)>,
    last: Receiver<OwnershipSnapshot>,
    _thread: Worker<()>,
}

impl GroupingThread {
    fn begin() -> Result<GroupingThread> {
        let (snapshots, to_group) = channel::<(Duration, OwnershipSnapshot)>();
        let ((done, grouped), (done_last, last)) = (channel(), channel());
        let thread = Worker::spawn("owners", move |_| {
            let mut last = None;
            for (time, snapshot) in to_group {
                if snapshot.has_all_tensors() {
                    let mut groups = owner_groups(&snapshot);
                    groups.extend(in_no_tensor(&snapshot));
                    let _ = done.send((time, groups));
                }
                last = Some(snapshot);
            }
            if let Some(last) = last {
                let _ = done_last.send(last);
            }
        })?;
        Ok(GroupingThread { snapshots: Some(snapshots), grouped, last, _thread: thread })
    }

    fn add(&mut self, time: Duration, snapshot: OwnershipSnapshot, growth: &mut GrowthWatch) {
        if let Some(snapshots) = &self.snapshots {
            let _ = snapshots.send((time, snapshot));
        }
        add_groups(self.grouped.try_iter(), growth);
    }

    fn end(mut self, growth: &mut GrowthWatch) -> Option<OwnershipSnapshot> {
        self.snapshots = None;
        add_groups(self.grouped.iter(), growth);
        self.last.recv().ok()
    }
}

fn add_groups(
    grouped: impl Iterator<Item = (Duration, Vec<OwnerGroup>)>,
    growth: &mut GrowthWatch,
) {
    for (time, groups) in grouped {
        growth.add_owners(time.as_secs_f64(), groups);
    }
}

/// Reads process, threads and devices on a thread, as it waits for names and blocks.
struct EndSnapshot {
    result: Receiver<Result<ProcessSnapshot>>,
    _thread: Worker<()>,
}

impl EndSnapshot {
    fn begin(process: TargetIdentity, pid: u32) -> Result<EndSnapshot> {
        let (done, result) = channel();
        let thread = Worker::spawn("process", move |_| {
            let _ = done.send(read_process(&process, pid));
        })?;
        Ok(EndSnapshot { result, _thread: thread })
    }

    fn read(self) -> Result<ProcessSnapshot> {
        self.result.recv().map_err(|_| anyhow!("reading the process ended unexpectedly"))?
    }
}

fn read_process(process: &TargetIdentity, pid: u32) -> Result<ProcessSnapshot> {
    let mut snapshot = ProcessSnapshot::new();
    let once =
        RecordOptions { rate: 1, duration: None, follow: None, common: CommonOptions::default() };
    Recorder::new(process.attach().map_err(|error| hints::attach(error, pid))?, once)
        .record_once(output::host(), &mut snapshot)
        .context("cannot read the process")?;
    Ok(snapshot)
}

/// The source of lines, which changes if exact stacks cost too much, and the watch for that.
type LinesState = (Arc<Mutex<LinesSource>>, Option<CostWatch>);

struct AttachingRecording {
    live: SharedProfile,
    attached: Receiver<Result<(LinesState, Instant)>>,
    thread: Worker<SinkResult>,
}

impl AttachingRecording {
    fn attached(self, pid: u32) -> Result<LineRecording> {
        let ((source, cost), began) = self
            .attached
            .recv_timeout(ATTACH_TIMEOUT)
            .map_err(|_| anyhow!("cannot record process {pid}: the recording did not begin"))??;
        let AttachingRecording { live, thread, .. } = self;
        Ok(LineRecording { live, source, cost, thread: Some(thread), began })
    }
}

struct LineRecording {
    live: SharedProfile,
    source: Arc<Mutex<LinesSource>>,
    cost: Option<CostWatch>,
    thread: Option<Worker<SinkResult>>,
    began: Instant,
}

impl LineRecording {
    /// With exact stacks where the kernel allows them.
    fn begin(process: TargetIdentity, pid: u32) -> Result<AttachingRecording> {
        let modes = ModeChoice::for_summary();
        let live = SharedProfile::with_filter(ThreadChoice::default());
        let (attached, is_attached) = channel();
        let mut sink = live.clone();
        // Attaches on the reading thread: probes and interpreters stay on one thread.
        let thread = Worker::spawn("lines", move |stop| {
            let (recorder, source, cost) = match recorder(&process, &modes) {
                Ok(begun) => begun,
                Err(error) => {
                    let _ = attached.send(Err(hints::attach(error, pid)));
                    return Ok(());
                }
            };
            let source = Arc::new(Mutex::new(source));
            let shared = (Arc::clone(&source), cost.clone());
            let _ = attached.send(Ok((shared, Instant::now())));
            let ended = recorder.run(output::host(), &mut sink, stop.flag(), &mut |_| {});
            let failure = cost.and_then(|cost| cost.failure());
            let (Some(failure), false) = (failure, stop.is_set()) else { return ended.map(drop) };
            let Ok((recorder, next)) = without_exact(&process, &modes, (&failure).into()) else {
                return ended.map(drop); // The job has ended by now.
            };
            sink.clear();
            *source.lock() = next;
            recorder.run(output::host(), &mut sink, stop.flag(), &mut |_| {}).map(drop)
        })?;
        Ok(AttachingRecording { live, attached: is_attached, thread })
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(Worker::is_finished)
    }

    fn lines(&self, began: Instant, growth: &mut GrowthWatch, lines: &mut ObservedLines) {
        let live = self.live.lock();
        let labels = FrameLabels::new(live.profile(), false);
        lines.source = self.source.lock().clone();
        lines.gpus.clear();
        let mut all = Vec::new();
        for gpu in live.gpus() {
            let Ok(found) = live.program_lines(gpu) else { continue };
            let mut rows: Vec<LineBytes> = Vec::new();
            for row in found.rows.iter().filter(|row| row.own > 0) {
                let line = match row.place {
                    StackLabel::Frame(frame) => labels.frame(frame, true),
                    // The job allocated it meanwhile, at an unknown site.
                    StackLabel::Pseudo(
                        pseudo @ (PseudoFrame::NotSeen
                        | PseudoFrame::NoPython
                        | PseudoFrame::NoPythonStack
                        | PseudoFrame::UnknownStack),
                    ) => pseudo.text().to_owned(),
                    _ => continue,
                };
                rows.push(LineBytes { line, bytes: row.own });
            }
            rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.line.cmp(&b.line)));
            let one = |row: &LineBytes| (on_gpu(gpu, &row.line), row.bytes);
            all.extend(rows.iter().map(one));
            lines.gpus.push((gpu, found.allocated, rows));
        }
        drop(live);
        // A recording on trial does not count for growth.
        if self.cost.as_ref().is_some_and(CostWatch::is_open) {
            return;
        }
        growth.add_lines(began.elapsed().as_secs_f64(), all);
    }

    fn devices(&self, seconds: f64) -> Vec<ObservedDevice> {
        let live = self.live.lock();
        let labels = FrameLabels::new(live.profile(), false);
        let name = |frame| labels.frame(frame, true);
        live.profile().gpus().map(|gpu| live.observed(gpu, seconds, &name)).collect()
    }

    /// Returns the seconds recorded; the profile then has all records.
    fn end(&mut self) -> f64 {
        let seconds = self.began.elapsed().as_secs_f64();
        self.thread = None;
        seconds
    }
}

fn on_gpu(gpu: CudaIndex, line: &str) -> String {
    match gpu.0 {
        0 => line.to_owned(),
        gpu => format!("{line} on GPU {gpu}"),
    }
}

/// Tries an exact recorder, else takes the mode without exact stacks.
fn recorder(
    process: &TargetIdentity,
    modes: &ModeChoice,
) -> Result<(AttachedRecorder, LinesSource, Option<CostWatch>), AttachError> {
    match exact(process, modes.cost_watch()) {
        Ok((recorder, cost)) => {
            let recorder = AttachedRecorder::Exact(Box::new(recorder));
            Ok((recorder, LinesSource::Exact, Some(cost)))
        }
        Err(why) => {
            let (recorder, source) = without_exact(process, modes, ExactOutlook::No(why))?;
            Ok((recorder, source, None))
        }
    }
}

fn exact(process: &TargetIdentity, cost: CostWatch) -> Result<(ExactRecorder, CostWatch), String> {
    let readers = process.attach_any().map_err(|error| error.to_string())?;
    let options = ExactOptions { cost: Some(cost.clone()), ..ExactOptions::default() };
    let mut recorder = ExactRecorder::new(readers, options);
    recorder.attach_probes().map_err(|error| hints::no_exact(&error))?;
    match recorder.probes() {
        Some(_) => Ok((recorder, cost)),
        None => Err("no exact stacks (there is nothing to probe yet)".to_owned()),
    }
}

fn without_exact(
    process: &TargetIdentity,
    modes: &ModeChoice,
    exact: ExactOutlook,
) -> Result<(AttachedRecorder, LinesSource), AttachError> {
    let readers = process.attach()?;
    let (follow, why) = modes.without_exact(exact, &readers);
    let common = CommonOptions::default();
    let wanted = RecordOptions { rate: follow.rate, duration: None, follow: follow.budget, common };
    let recorder = AttachedRecorder::Samples(Box::new(Recorder::new(readers, wanted)));
    Ok((recorder, LinesSource::Sampled { why }))
}
