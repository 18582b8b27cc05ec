//! Records which lines allocate, while a job is observed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use parking_lot::Mutex;

use super::ObserveOptions;
use super::job::ObservedJob;
use crate::analysis::{PseudoFrame, SharedProfile, StackLabel, ThreadChoice};
use crate::cli::mode::{ExactOutlook, ModeChoice};
use crate::cli::{hints, output};
use crate::model::{CudaIndex, SinkResult};
use crate::render::{FrameLabels, LineBytes, LinesSource, ObservedLines};
use crate::sampler::{
    AttachError, AttachedRecorder, CommonOptions, CostWatch, ExactOptions, ExactRecorder,
    RecordOptions, Recorder, StopSignal, TargetIdentity, Worker, check_exact_rights,
};

const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Where lines come from; it begins anew if exact stacks cost too much.
#[derive(Clone)]
struct LinesState {
    source: LinesSource,
    /// When the first of its records came.
    since: Instant,
    /// When it last began, or began to begin anew.
    begun: Instant,
}

impl LinesState {
    fn new(source: LinesSource) -> LinesState {
        let now = Instant::now();
        LinesState { source, since: now, begun: now }
    }
}

/// And the watch for that cost.
type WatchedState = (Arc<Mutex<LinesState>>, Option<CostWatch>);

pub(super) struct LineRecording {
    live: SharedProfile,
    attached: Receiver<Result<WatchedState>>,
    begun: Option<WatchedState>,
    thread: Option<Worker<SinkResult>>,
}

impl LineRecording {
    /// With exact stacks where the kernel allows them.
    pub(super) fn begin(
        process: TargetIdentity,
        pid: u32,
        options: ObserveOptions,
    ) -> Result<LineRecording> {
        let modes = ModeChoice::for_summary();
        let live = SharedProfile::with_filter(ThreadChoice::default());
        let (attached, is_attached) = channel();
        let sink = live.clone();
        // Attaches on the reading thread: probes and interpreters stay on one thread.
        let thread = Worker::spawn("lines", move |stop| {
            let begun = options.hurry(|| recorder(&process, &modes));
            match begun {
                Ok(begun) => record(&process, &modes, begun, sink, &attached, stop),
                Err(error) => {
                    let _ = attached.send(Err(hints::attach(error, pid)));
                    Ok(())
                }
            }
        })?;
        Ok(LineRecording { live, attached: is_attached, begun: None, thread: Some(thread) })
    }

    /// When it began; waits for that until `until`, or until `stop` is set.
    pub(super) fn began(&mut self, until: Instant, stop: &AtomicBool) -> Result<Option<Instant>> {
        while self.begun.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            match self.attached.recv_timeout(left.min(CHECK_INTERVAL)) {
                Ok(begun) => self.begun = Some(begun?),
                Err(RecvTimeoutError::Timeout)
                    if !left.is_zero() && !stop.load(Ordering::Relaxed) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(anyhow!("the recording of lines ended before it began"));
                }
            }
        }
        Ok(self.state().map(|state| state.begun))
    }

    fn state(&self) -> Option<LinesState> {
        self.begun.as_ref().map(|(state, _)| state.lock().clone())
    }

    /// Whether it has recorded for this long, without a trial that failed.
    pub(super) fn has_recorded(&self, time: Duration) -> bool {
        self.state().is_some_and(|state| state.begun.elapsed() >= time)
    }

    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(Worker::is_finished)
    }

    /// Shows the lines so far in `job`; `at` is the time for what grows.
    pub(super) fn show(&self, at: Duration, job: &ObservedJob) {
        let Some((_, cost)) = &self.begun else { return };
        let (lines, all) = self.observed();
        // A recording on trial does not count for growth.
        let is_on_trial = cost.as_ref().is_some_and(CostWatch::is_open);
        self.put(lines, job);
        if !is_on_trial {
            job.change(|state| state.growth.add_lines(at.as_secs_f64(), all));
        }
    }

    fn put(&self, lines: ObservedLines, job: &ObservedJob) {
        let devices = self.devices(lines.seconds);
        job.change(|state| {
            state.lines = lines;
            state.devices = devices;
        });
    }

    /// The lines so far, and their bytes by name.
    fn observed(&self) -> (ObservedLines, Vec<(String, u64)>) {
        let state = self.state();
        let live = self.live.lock();
        let labels = FrameLabels::new(live.profile(), false);
        let (mut lines, mut all) = (ObservedLines::default(), Vec::new());
        if let Some(state) = state {
            lines.seconds = state.since.elapsed().as_secs_f64();
            lines.source = state.source;
        }
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
        (lines, all)
    }

    fn devices(&self, seconds: f64) -> Vec<crate::analysis::ObservedDevice> {
        let live = self.live.lock();
        let labels = FrameLabels::new(live.profile(), false);
        let name = |frame| labels.frame(frame, true);
        live.profile().gpus().map(|gpu| live.observed(gpu, seconds, &name)).collect()
    }

    /// Ends it; the profile then has all records.
    pub(super) fn end(&mut self, job: &ObservedJob) {
        if self.begun.is_none() {
            // It is still placing probes: its end is not waited for.
            self.thread.take().into_iter().for_each(Worker::leave);
            return;
        }
        let ended = Instant::now();
        self.thread = None;
        let since = self.state().map_or(ended, |state| state.since);
        let seconds = ended.saturating_duration_since(since).as_secs_f64();
        let (mut lines, _) = self.observed();
        lines.seconds = seconds;
        if seconds == 0.0 {
            // It was about to begin anew.
            lines.source = LinesSource::None;
        }
        self.put(lines, job);
    }
}

type Begun = (AttachedRecorder, LinesSource, Option<CostWatch>);

fn record(
    process: &TargetIdentity,
    modes: &ModeChoice,
    (recorder, source, cost): Begun,
    mut sink: SharedProfile,
    attached: &Sender<Result<WatchedState>>,
    stop: &StopSignal,
) -> SinkResult {
    let state = Arc::new(Mutex::new(LinesState::new(source)));
    let _ = attached.send(Ok((Arc::clone(&state), cost.clone())));
    let ended = recorder.run(output::host(), &mut sink, stop.flag(), &mut |_| {});
    let failure = cost.and_then(|cost| cost.failure());
    let (Some(failure), false) = (failure, stop.is_set()) else { return ended.map(drop) };
    state.lock().begun = Instant::now();
    let Ok((recorder, next)) = without_exact(process, modes, (&failure).into()) else {
        return ended.map(drop); // The job has ended by now.
    };
    sink.clear();
    *state.lock() = LinesState::new(next);
    recorder.run(output::host(), &mut sink, stop.flag(), &mut |_| {}).map(drop)
}

fn on_gpu(gpu: CudaIndex, line: &str) -> String {
    match gpu.0 {
        0 => line.to_owned(),
        gpu => format!("{line} on GPU {gpu}"),
    }
}

/// Tries an exact recorder, else takes the mode without exact stacks.
fn recorder(process: &TargetIdentity, modes: &ModeChoice) -> Result<Begun, AttachError> {
    match exact(process, modes) {
        Ok((recorder, cost)) => {
            let recorder = AttachedRecorder::Exact(Box::new(recorder));
            Ok((recorder, LinesSource::Exact, Some(cost)))
        }
        Err(why) => {
            let (recorder, source) = without_exact(process, modes, why)?;
            Ok((recorder, source, None))
        }
    }
}

fn exact(
    process: &TargetIdentity,
    modes: &ModeChoice,
) -> Result<(ExactRecorder, CostWatch), ExactOutlook> {
    let no = ExactOutlook::No;
    let mut readers = process.attach_any().map_err(|error| no(error.to_string()))?;
    if let Some(outlook) = modes.too_costly(&mut readers) {
        return Err(outlook);
    }
    let cost = modes.cost_watch();
    let options = ExactOptions { cost: Some(cost.clone()), ..ExactOptions::default() };
    let mut recorder = ExactRecorder::new(readers, options);
    recorder.attach_probes().map_err(|error| no(hints::no_exact(&error)))?;
    match recorder.probes() {
        Some(_) => Ok((recorder, cost)),
        None => Err(no("no exact stacks (there is nothing to probe yet)".to_owned())),
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
    let lacks_rights = check_exact_rights().is_err();
    Ok((recorder, LinesSource::Sampled { why, lacks_rights }))
}
