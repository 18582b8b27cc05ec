//! The state of any recording.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CudaIndex, Definition, EndReason,
    Frame, Function, MissReason, Nanos, OomException, OwnershipBreakdown, RaisedError, ReaderKind,
    Record, RecordSink, RecordingStart, RecordingTotals, SinkResult, SnapshotConsistency, StackId,
    StackTable, TargetRuntime, ThreadSample, TrainingStep,
};
use crate::owners::SnapshotOptions;
use rustc_hash::FxHashMap;

use super::error_thread::{ErrorThread, FoundErrors};
use super::gpu_watch::GpuWatch;
use super::loop_variables::LoopVariables;
use super::losses::PendingLosses;
use super::owner_thread::OwnerThread;
use super::process_tree::rank;
use super::readers::{TargetIdentity, TargetReaders, TorchState};
use super::step_shape::{StepMoment, StepShape};
use super::steps::{CounterMeaning, StepLocations, StepTracker};
use crate::probe::RawStep;
use crate::python::FoundException;

const MAX_STACKS: usize = 1 << 16;

/// torch/autograd/graph.py since PyTorch 2.1, torch/autograd/__init__.py before.
fn calls_engine(function: &Function) -> bool {
    match &*function.name {
        "_engine_run_backward" => function.file.ends_with("torch/autograd/graph.py"),
        "backward" | "grad" => function.file.ends_with("torch/autograd/__init__.py"),
        _ => false,
    }
}

/// Options of every recording.
#[derive(Debug, Clone, Default)]
pub struct CommonOptions {
    /// The share of time that owner snapshots may stop the target; `None`: none.
    pub owners: Option<f64>,
    /// Limits of each owner snapshot.
    pub owner_options: SnapshotOptions,
    /// A variable that counts training steps: `i`, or `function:i`.
    pub step_variable: Option<String>,
    /// One that counts epochs.
    pub epoch_variable: Option<String>,
    /// Numbers restart ([`Definition::Reset`]) above this many; `None`: never.
    pub forget_after: Option<usize>,
}

pub(super) struct RecordingSession {
    pub(super) readers: TargetReaders,
    pub(super) start: Instant,
    pub(super) table: StackTable,
    pub(super) losses: PendingLosses,
    pub(super) totals: RecordingTotals,
    gpu: Option<GpuWatch>,
    owners: Option<OwnerThread>,
    /// An owner snapshot, or why there is none, has come.
    has_owner_result: bool,
    errors: Option<ErrorThread>,
    steps: StepTracker,
    shape: StepShape,
    backward: FxHashMap<StackId, bool>,
    /// Every allocation is recorded: unnamed tensors then have allocation sites.
    pub(super) exact: bool,
    forget_after: Option<usize>,
}

impl RecordingSession {
    pub(super) fn new(readers: TargetReaders, forget_after: Option<usize>) -> RecordingSession {
        RecordingSession {
            readers,
            start: Instant::now(),
            table: StackTable::new(),
            losses: PendingLosses::default(),
            totals: RecordingTotals::default(),
            gpu: None,
            owners: None,
            has_owner_result: false,
            errors: None,
            steps: StepTracker::default(),
            shape: StepShape::default(),
            backward: FxHashMap::default(),
            exact: false,
            forget_after,
        }
    }

    /// Restarts numbers if there are many; returns the old table. Callers must forget their
    /// numbers.
    pub(super) fn forget(&mut self, sink: &mut dyn RecordSink) -> SinkResult<Option<StackTable>> {
        if self.forget_after.is_none_or(|most| self.table.size() <= most) {
            return Ok(None);
        }
        self.restart_numbers(sink).map(Some)
    }

    pub(super) fn restart_numbers(&mut self, sink: &mut dyn RecordSink) -> SinkResult<StackTable> {
        self.record_definitions(sink)?;
        sink.record(&Record::Definition(Definition::Reset))?;
        self.backward.clear();
        if let Some(python) = &mut self.readers.python {
            python.forget_numbers();
        }
        Ok(std::mem::take(&mut self.table))
    }

    pub(super) fn count_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        match snapshot.consistency {
            SnapshotConsistency::Consistent => self.totals.snapshots_consistent += 1,
            SnapshotConsistency::Degraded { .. } => self.totals.snapshots_degraded += 1,
        }
    }

    pub(super) fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(super) fn is_over(&self) -> Option<EndReason> {
        if !self.readers.process.is_alive() {
            Some(EndReason::TargetExited)
        } else if !self.readers.process.same_start() {
            Some(EndReason::TargetExecuted)
        } else {
            None
        }
    }

    pub(super) fn watch_gpu(&mut self) {
        let indices: Vec<u32> =
            self.readers.devices().iter().filter_map(|d| d.nvml_index).collect();
        if indices.is_empty() {
            return;
        }
        let Ok(gpu) = &self.readers.gpu else { return };
        match GpuWatch::start(gpu.clone(), indices) {
            Ok(watch) => self.gpu = Some(watch),
            Err(e) => self.losses.add(ReaderKind::Gpu, MissReason::Failed(e.to_string()), 1),
        }
    }

    pub(super) fn watch_also(&mut self, wanted: &CommonOptions) {
        let process = &self.readers.process;
        self.steps.follow(LoopVariables::find(
            self.readers.python.as_ref(),
            process,
            wanted.step_variable.as_deref(),
            wanted.epoch_variable.as_deref(),
        ));
        let python = self.readers.python.as_ref();
        match python.and_then(|python| ErrorThread::start(python, process)) {
            Some(Ok(thread)) => self.errors = Some(thread),
            Some(Err(e)) => {
                self.losses.add(ReaderKind::Stacks, MissReason::Failed(e.to_string()), 1)
            }
            None => {}
        }
        let Some(budget) = wanted.owners else { return };
        let process = TargetIdentity::from(process);
        match OwnerThread::start(process, budget, wanted.owner_options, self.start) {
            Ok(thread) => self.owners = Some(thread),
            Err(e) => self.losses.add(ReaderKind::Owners, MissReason::Failed(e.to_string()), 1),
        }
    }

    pub(super) fn record_watched(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        while let Some(result) = self.owners.as_ref().and_then(OwnerThread::poll) {
            self.has_owner_result = true;
            match result {
                // Records of the snapshot's own time have been passed on.
                Ok((snapshot, counter, counting)) => {
                    self.steps.found(counter);
                    let (python, process) = (self.readers.python.as_ref(), &self.readers.process);
                    self.steps.found_objects(python, process, &counting);
                    let time = self.now();
                    let age = Nanos(time.0.saturating_sub(snapshot.time.0));
                    let snapshot = match self.exact {
                        true => OwnershipBreakdown { time, age, ..snapshot },
                        false => {
                            OwnershipBreakdown { time, age, unnamed_blocks: Vec::new(), ..snapshot }
                        }
                    };
                    sink.record(&Record::Ownership(snapshot))?;
                }
                Err(why) => self.losses.add(ReaderKind::Owners, MissReason::Failed(why), 1),
            }
        }
        while let Some(result) = self.gpu.as_ref().and_then(GpuWatch::poll) {
            match result {
                Ok(mut usage) => {
                    usage.time = self.now();
                    sink.record(&Record::Usage(usage))?;
                }
                Err(why) => self.losses.add(ReaderKind::Gpu, MissReason::Failed(why), 1),
            }
        }
        Ok(())
    }

    pub(super) fn end_watching(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.record_watched(sink)?;
        if self.owners.is_some() && !self.has_owner_result {
            let why = "the recording ended before the first one was taken: record longer";
            self.losses.add(ReaderKind::Owners, MissReason::Failed(why.to_owned()), 1);
        }
        Ok(())
    }

    pub(super) fn is_backward(&mut self, threads: &[ThreadSample]) -> bool {
        if self.owners.is_none() {
            return false;
        }
        if self.backward.len() > MAX_STACKS {
            self.backward.clear();
        }
        let table = &self.table;
        let runs_engine = |stack: StackId| {
            table
                .frames(stack)
                .any(|frame| table.get_function(frame.function).is_some_and(calls_engine))
        };
        let known = &mut self.backward;
        threads.iter().any(|it| *known.entry(it.stack).or_insert_with(|| runs_engine(it.stack)))
    }

    pub(super) fn see_moment(&mut self, now: StepMoment) {
        let Some(owners) = &self.owners else { return };
        self.shape.see(now);
        if let Some((waited, timeout)) = owners.due()
            && self.shape.is_time(waited, timeout)
        {
            owners.go();
            self.shape.on_snapshot();
        }
    }

    pub(super) fn step_locations(&mut self) -> StepLocations {
        let time = self.now();
        self.steps.locations(&self.readers.process, time)
    }

    pub(super) fn step_at_event(
        &mut self,
        counts: &CounterMeaning,
        seen: &RawStep,
        time: Nanos,
        within: Option<Nanos>,
    ) -> Option<TrainingStep> {
        self.steps.at_event(counts, seen, time, within)
    }

    pub(super) fn last_step(&self) -> (Option<TrainingStep>, Option<Nanos>) {
        (self.steps.last(), self.steps.known_until())
    }

    pub(super) fn on_step(&mut self, step: TrainingStep) -> Option<TrainingStep> {
        self.steps.on_step(step)
    }

    pub(super) fn step_over(&mut self) -> Option<TrainingStep> {
        let time = self.now();
        self.steps.over(time)
    }

    pub(super) fn observe_counters(&mut self, counters: &[(CudaIndex, AllocatorCounters)]) {
        if let Some(errors) = &mut self.errors {
            errors.observe(counters);
        }
    }

    pub(super) fn record_oom_exceptions(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        while let Some(found) = self.errors.as_mut().and_then(ErrorThread::poll) {
            self.record_found(found, sink)?;
        }
        Ok(())
    }

    pub(super) fn wait_for_oom_exceptions(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        while let Some(found) = self.errors.as_mut().and_then(ErrorThread::wait) {
            self.record_found(found, sink)?;
        }
        Ok(())
    }

    fn record_found(&mut self, found: FoundErrors, sink: &mut dyn RecordSink) -> SinkResult {
        let time = self.now();
        let mut errors: Vec<_> = found.into_iter().map(|raised| Some(self.name(raised))).collect();
        if errors.is_empty() {
            errors.push(None);
        }
        self.record_definitions(sink)?;
        errors
            .into_iter()
            .try_for_each(|error| sink.record(&Record::OomException(OomException { time, error })))
    }

    fn name(&mut self, raised: FoundException) -> RaisedError {
        let table = &mut self.table;
        let stack = raised.frames.into_iter().rev().fold(None, |parent, (function, line)| {
            let function = table.function(function);
            let frame = table.frame(Frame { function, line });
            Some(table.stack(parent, frame))
        });
        let thread = raised.python_id.and_then(|id| table.find_thread(id, None));
        RaisedError { thread, stack, text: raised.text }
    }

    pub(super) fn record_step(&mut self, sink: &mut dyn RecordSink) -> SinkResult<bool> {
        let time = self.now();
        match self.steps.next(&self.readers.process, time) {
            Some(step) => sink.record(&Record::Step(step)).map(|()| true),
            None => Ok(false),
        }
    }

    /// `rate` is in samples a second; 0 without sampling.
    pub(super) fn record_start(
        &mut self,
        host: String,
        rate: u32,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let process = &self.readers.process;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = unix.saturating_sub(self.start.elapsed()).as_nanos() as u64;
        sink.record(&Record::Start(RecordingStart {
            memspy: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process.pid(),
            host,
            command: process.command().unwrap_or_default(),
            directory: process.directory().map(|d| d.to_string_lossy().into_owned()),
            unix_nanos,
            rate,
            rank: rank(process),
        }))?;
        self.record_runtime(sink)
    }

    pub(super) fn refresh(&mut self, sink: &mut dyn RecordSink) -> SinkResult<bool> {
        let changed = self.readers.refresh();
        if changed {
            self.record_runtime(sink)?;
        }
        Ok(changed)
    }

    pub(super) fn waits_for_devices(&self) -> bool {
        matches!(&self.readers.torch, TorchState::Attached(torch) if *torch.backend() == AllocatorBackend::NotInitialized)
    }

    /// Before there is an allocator: all its counts will come later.
    pub(super) fn record_waiting(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        match self.waits_for_devices() {
            true => self.record_what_runs(sink),
            false => Ok(()),
        }
    }

    /// Device numbers may depend on the runtime.
    pub(super) fn record_runtime(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.record_what_runs(sink)?;
        for device in self.readers.devices() {
            sink.record(&Record::Device(device))?;
        }
        Ok(())
    }

    fn record_what_runs(&self, sink: &mut dyn RecordSink) -> SinkResult {
        sink.record(&Record::Runtime(TargetRuntime {
            time: self.now(),
            python: self.readers.python.as_ref().map(|python| python.version().to_owned()),
            torch: self.readers.torch_version(),
            allocator: self.readers.allocator(),
        }))
    }

    pub(super) fn record_definitions(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if self.table.has_definitions() {
            for definition in self.table.take_definitions() {
                sink.record(&Record::Definition(definition))?;
            }
        }
        Ok(())
    }

    pub(super) fn record_losses(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let time = self.now();
        for missed in self.losses.drain(time) {
            sink.record(&Record::Missed(missed))?;
        }
        Ok(())
    }
}
