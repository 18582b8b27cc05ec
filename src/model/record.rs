//! `Record`: the only type from the live to the recorded half.

use std::sync::Arc;

use super::allocator::{AllocatorBackend, AllocatorCounters};
use super::blocks::AllocatorSnapshot;
use super::events::{CounterCheck, EventBatch, EventTotals, ExactSettings};
use super::followed::{FollowTotals, FollowedChanges};
use super::gpu::{CudaIndex, DeviceUsage, GpuDevice};
use super::job_cost::JobCost;
use super::keyframe::{Keyframe, TriggerFired};
use super::oom_exception::OomException;
use super::ownership::OwnershipBreakdown;
use super::sink_error::SinkResult;
use super::stack::{Definition, FunctionId, StackId, ThreadActivity, ThreadId};

/// Nanoseconds since the start of recording, on a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// All of a recording, in time order; numbers are defined before use.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Always first.
    Start(RecordingStart),
    /// What runs in the target: at each change (CUDA initialised, another allocator), and now and
    /// then until PyTorch has an allocator.
    Runtime(TargetRuntime),
    /// A number for a function, frame, stack, thread or site.
    Definition(Definition),
    /// A function's source text.
    Source(SourceText),
    /// A GPU, before it is named.
    Device(GpuDevice),
    /// The threads' stacks at one instant.
    Sample(StackSample),
    /// A device's counters, at the first sample and at each change: samples in between saw none.
    /// Read before and after the stacks: the first follow the sample, with its time; the second are
    /// recorded if they differ.
    Counters {
        /// When.
        time: Nanos,
        /// The device's number in the target.
        device: CudaIndex,
        /// All counters.
        counters: Box<AllocatorCounters>,
    },
    /// A device's segments and blocks.
    Snapshot(AllocatorSnapshot),
    /// A device's memory, by the driver.
    Usage(DeviceUsage),
    /// A failed observation.
    Missed(MissedObservation),
    /// Exact events begin.
    ExactSettings(ExactSettings),
    /// Exact events. No other record's time is between two of them.
    Events(EventBatch),
    /// Counter deltas. No other record's time is between two of them.
    Followed(FollowedChanges),
    /// Events compared with counters.
    CounterCheck(CounterCheck),
    /// Owners at one moment.
    Ownership(OwnershipBreakdown),
    /// Number of training steps: when first known, and at each change.
    Step(TrainingStep),
    /// Replaces a dropped beginning: once, after records of the state at its first moment.
    Keyframe(Keyframe),
    /// A condition of the recording was met.
    TriggerFired(TriggerFired),
    /// Result of a search for an out-of-memory exception.
    OomException(OomException),
    /// Missing or damaged records, found by joining segments.
    Gap(RecordingGap),
    /// Always last; else recording ended abruptly.
    End(RecordingEnd),
}

impl Record {
    /// When it was observed; `None` for definitions and the start.
    pub fn time(&self) -> Option<Nanos> {
        match self {
            Record::Start(_) | Record::Definition(_) | Record::Source(_) | Record::Device(_) => {
                None
            }
            Record::Runtime(r) => Some(r.time),
            Record::Ownership(h) => Some(h.time),
            Record::Step(s) => Some(s.time),
            Record::Keyframe(i) => Some(i.time),
            Record::TriggerFired(t) => Some(t.time),
            Record::OomException(t) => Some(t.time),
            Record::Gap(g) => Some(g.to),
            Record::Sample(s) => Some(s.time),
            Record::Counters { time, .. } => Some(*time),
            Record::Snapshot(b) => Some(b.time),
            Record::Usage(u) => Some(u.time),
            Record::Missed(m) => Some(m.time),
            Record::ExactSettings(e) => Some(e.time),
            Record::Events(e) => e.events.last().map(|e| e.time),
            Record::Followed(f) => f.changes.last().map(|change| change.after),
            Record::CounterCheck(r) => Some(r.time),
            Record::End(e) => Some(e.time),
        }
    }
}

/// What is recorded, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingStart {
    /// The recorder's version.
    pub memspy: String,
    /// As the recorder sees it.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// The target's command line.
    pub command: Vec<String>,
    /// The target's working directory, if readable.
    pub directory: Option<String>,
    /// Wall clock at time 0: nanoseconds since 1970 (UTC).
    pub unix_nanos: u64,
    /// Samples per second.
    pub rate: u32,
    /// `RANK` in the target's environment.
    pub rank: Option<u32>,
}

/// What runs in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRuntime {
    /// When this was found.
    pub time: Nanos,
    /// `3.12.1`, if any.
    pub python: Option<String>,
    /// `2.11.0+cu130`, if loaded.
    pub torch: Option<String>,
    /// The CUDA allocator.
    pub allocator: AllocatorBackend,
}

/// A function's source text, from the target's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceText {
    /// The function.
    pub function: FunctionId,
    /// Number of `text`'s first line.
    pub first_line: u32,
    /// Lines, separated by `\n`.
    pub text: Arc<str>,
}

/// Stacks of the Python threads at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StackSample {
    /// When.
    pub time: Nanos,
    /// Those with readable Python frames.
    pub threads: Vec<ThreadSample>,
}

/// A thread in a [`StackSample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadSample {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub stack: StackId,
    /// It held the GIL; `false` if unknown (free-threaded).
    pub gil: bool,
    /// Whether it ran.
    pub activity: ThreadActivity,
}

/// What counts training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepSource {
    /// An optimizer's count of finished steps.
    #[default]
    Optimizer,
    /// A variable with the current step.
    Variable,
    /// `global_step` of transformers' `TrainerState`.
    Trainer,
    /// `last_epoch` of a learning-rate scheduler: perhaps several optimizer steps, or an epoch.
    Scheduler,
}

/// A training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrainingStep {
    /// When it was seen.
    pub time: Nanos,
    /// Finished steps, or the variable's value.
    pub step: u64,
    /// The epoch variable, if named and seen.
    pub epoch: Option<u64>,
    /// Its source.
    pub clock: StepSource,
    /// How long before `time` the step happened, at most. 0: between two events, and those before
    /// `time` belong to the step before. `None`: seen in a sample, or when the counter was read.
    pub uncertainty: Option<Nanos>,
    /// The variable is gone: the step ended, none has begun.
    pub is_over: bool,
}

impl TrainingStep {
    /// Whether it is exactly between two events.
    pub fn is_between_events(&self) -> bool {
        self.uncertainty == Some(Nanos(0))
    }
}

/// A reader that missed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReaderKind {
    /// Python stacks.
    Stacks,
    /// Allocator counters.
    Counters,
    /// Snapshots.
    Snapshots,
    /// NVML.
    Gpu,
    /// Exact events.
    Events,
    /// Tensors and owners.
    Owners,
}

/// Why it was missed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// The target changed during every attempt.
    Torn,
    /// memspy was late (counted per period).
    Late,
    /// Unreadable, with the reason.
    Failed(String),
}

/// A failed observation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MissedObservation {
    pub time: Nanos,
    pub reader: ReaderKind,
    pub why: MissReason,
    pub count: u64,
}

/// Why a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// The requested time was over.
    Duration,
    /// The user ended it.
    Interrupted,
    /// The target exited.
    TargetExited,
    /// The target called `exec`.
    TargetExecuted,
    /// The recorder failed.
    Failed(String),
    /// A condition was met.
    Condition(String),
    /// A condition met in another process; all recordings of the job end.
    OtherProcess {
        /// The condition.
        condition: String,
        /// `rank 1 (process 1234)`.
        process: String,
    },
}

/// Totals for trailer and final messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordingTotals {
    /// Planned samples.
    pub ticks: u64,
    /// Missed by lateness.
    pub late: u64,
    /// Thread stacks read.
    pub stacks: u64,
    /// Stacks still torn after all retries.
    pub torn: u64,
    /// Consistent snapshots.
    pub snapshots_consistent: u64,
    /// Other snapshots.
    pub snapshots_degraded: u64,
    /// Exact events, if recorded.
    pub exact: Option<EventTotals>,
    /// The poller's totals, if counters were polled.
    pub follow: Option<FollowTotals>,
    /// What the recording cost the job, if known.
    pub cost: Option<JobCost>,
}

/// The recording's end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RecordingEnd {
    pub time: Nanos,
    pub reason: EndReason,
    pub totals: RecordingTotals,
}

/// An interval without records; then the state at its end follows, if known ([`Record::Keyframe`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingGap {
    /// Last complete moment before it.
    pub from: Nanos,
    /// First complete moment after it.
    pub to: Nanos,
    /// What is missing.
    pub why: String,
}

/// Takes records: a trace writer, a profile, a test.
pub trait RecordSink {
    /// Takes one record; none after an error.
    fn record(&mut self, record: &Record) -> SinkResult;

    /// Makes earlier records survive a kill; nothing in memory.
    fn sync(&mut self) -> SinkResult {
        Ok(())
    }

    /// From now on leaves out its own slow additions: others wait.
    fn hurry(&mut self, _hurries: bool) {}
}

impl<T: RecordSink + ?Sized> RecordSink for &mut T {
    fn record(&mut self, record: &Record) -> SinkResult {
        (**self).record(record)
    }

    fn sync(&mut self) -> SinkResult {
        (**self).sync()
    }

    fn hurry(&mut self, hurries: bool) {
        (**self).hurry(hurries);
    }
}

impl RecordSink for Vec<Record> {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.push(record.clone());
        Ok(())
    }
}
