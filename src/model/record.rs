//! `Record`: the only type that passes from the live half to the recorded half.

use std::sync::Arc;

use super::allocator::{AllocatorBackend, AllocatorCounters};
use super::blocks::AllocatorSnapshot;
use super::events::{CounterCheck, EventBatch, EventTotals, ExactSettings};
use super::followed::{FollowTotals, FollowedChanges};
use super::gpu::{CudaIndex, DeviceUsage, GpuDevice};
use super::keyframe::{Keyframe, TriggerFired};
use super::oom_exception::OomException;
use super::ownership::OwnershipBreakdown;
use super::sink_error::SinkResult;
use super::stack::{Definition, FunctionId, StackId, ThreadActivity, ThreadId};

/// Nanoseconds since the recording began, on a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Everything in a recording, in time order; a definition comes before the first record that uses
/// its number.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// What is recorded, and how. Always first.
    Start(RecordingStart),
    /// What runs in the target; again after changes (CUDA initialised, another allocator), and now
    /// and then until PyTorch has an allocator.
    Runtime(TargetRuntime),
    /// A function, frame, stack or thread gets its number.
    Definition(Definition),
    /// The source text of a function.
    Source(SourceText),
    /// A GPU of the machine, before the first record that names it.
    Device(GpuDevice),
    /// The stacks of the threads at one instant.
    Sample(StackSample),
    /// The allocator's counters of one device, at the first sample and whenever they changed:
    /// between two records no sample saw a change. They are read right before and right after the
    /// stacks. Those read before have the sample's time and follow it; if the second ones differ,
    /// both are recorded.
    Counters {
        /// When.
        time: Nanos,
        /// The device, as the target numbers it.
        device: CudaIndex,
        /// All counters.
        counters: Box<AllocatorCounters>,
    },
    /// The allocator's segments and blocks of one device.
    Snapshot(AllocatorSnapshot),
    /// The driver's figures of one device.
    Usage(DeviceUsage),
    /// A failed observation.
    Missed(MissedObservation),
    /// Exact events begin.
    ExactSettings(ExactSettings),
    /// Exact events. No other record's time lies between two of them.
    Events(EventBatch),
    /// Counter deltas of fast polls. No other record's time lies between two of them.
    Followed(FollowedChanges),
    /// The events compared with the allocator's counters.
    CounterCheck(CounterCheck),
    /// The owners of memory at one moment.
    Ownership(OwnershipBreakdown),
    /// The number of training steps: when first known, and at every change.
    Step(TrainingStep),
    /// Replaces a dropped beginning: once, after records with the state at its first moment and
    /// before all later observations.
    Keyframe(Keyframe),
    /// A condition of the recording was met.
    TriggerFired(TriggerFired),
    /// The result of searching for an out-of-memory exception.
    OomException(OomException),
    /// Missing or damaged records, found when segments were joined.
    Gap(RecordingGap),
    /// The recording's end. Always last; without it the recording ended abruptly.
    End(RecordingEnd),
}

impl Record {
    /// When it was observed; `None`: it has no time (definitions, start).
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
    /// Version of the memspy that recorded.
    pub memspy: String,
    /// Process id of the target, in the recorder's pid namespace.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Command line of the target.
    pub command: Vec<String>,
    /// Working directory of the target; `None`: unreadable.
    pub directory: Option<String>,
    /// Wall clock at time 0: nanoseconds since 1970-01-01 UTC.
    pub unix_nanos: u64,
    /// Requested samples per second.
    pub rate: u32,
    /// The target's rank in a distributed job: `RANK` of its environment, if it has one.
    pub rank: Option<u32>,
}

/// What runs in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRuntime {
    /// When this was found.
    pub time: Nanos,
    /// CPython version, `3.12.1`; `None`: not Python.
    pub python: Option<String>,
    /// PyTorch version, `2.11.0+cu130`; `None`: not loaded.
    pub torch: Option<String>,
    /// The CUDA allocator.
    pub allocator: AllocatorBackend,
}

/// The source text of a function, from the target's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceText {
    /// The function.
    pub function: FunctionId,
    /// Line number of the first line of `text`.
    pub first_line: u32,
    /// The lines, separated by `\n`.
    pub text: Arc<str>,
}

/// The stacks of the target's Python threads at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StackSample {
    /// When.
    pub time: Nanos,
    /// The threads whose stack was readable, without those that have no Python frames.
    pub threads: Vec<ThreadSample>,
}

/// One thread's part of a [`StackSample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadSample {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub stack: StackId,
    /// Whether it held the GIL; `false` if unknown (free-threaded builds).
    pub gil: bool,
    /// Whether it was active.
    pub activity: ThreadActivity,
}

/// What counts training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepSource {
    /// An optimizer's count of its finished steps.
    #[default]
    Optimizer,
    /// A variable of the program: the number of the current step.
    Variable,
    /// `global_step` of the `TrainerState` of transformers.
    Trainer,
    /// `last_epoch` of a learning-rate scheduler: its own steps, each of which may be several of
    /// the optimizer, or an epoch.
    Scheduler,
}

/// A training step, by an optimizer's counter or a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrainingStep {
    /// When it was seen.
    pub time: Nanos,
    /// Finished steps, or the variable's value.
    pub step: u64,
    /// The value of the epoch variable; `None`: none was named or seen.
    pub epoch: Option<u64>,
    /// What counts.
    pub clock: StepSource,
    /// Upper bound on how long before `time` the step happened. 0 means exactly between two events:
    /// allocations and frees up to the last event before `time` belong to the step before, later
    /// ones to this one. `None`: seen in a sample, or when the counter was read.
    pub uncertainty: Option<Nanos>,
    /// Whether the variable is gone: the step is over, and no other one has begun.
    pub is_over: bool,
}

impl TrainingStep {
    /// Whether it happened exactly between the events before and after it.
    pub fn is_between_events(&self) -> bool {
        self.uncertainty == Some(Nanos(0))
    }
}

/// The reader that missed something.
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
    /// Probes: exact events.
    Events,
    /// Tensors and their owners.
    Owners,
}

/// Why something was missed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// The target changed it during every attempt.
    Torn,
    /// memspy was late (one count per sampling period).
    Late,
    /// It was unreadable, with the reason.
    Failed(String),
}

/// A failed observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissedObservation {
    /// When.
    pub time: Nanos,
    /// By which reader.
    pub reader: ReaderKind,
    /// Why.
    pub why: MissReason,
    /// How many.
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
    /// The target executed another program (`exec`).
    TargetExecuted,
    /// The recorder failed, with the reason.
    Failed(String),
    /// The condition that was met.
    Condition(String),
    /// A condition in another process of the job, which ended all recordings.
    OtherProcess {
        /// The condition.
        condition: String,
        /// The process, as messages name it: `rank 1 (process 1234)`.
        process: String,
    },
}

/// Totals of a recording, for its trailer and final messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordingTotals {
    /// Planned samples.
    pub ticks: u64,
    /// Samples missed because memspy was late.
    pub late: u64,
    /// Thread stacks read.
    pub stacks: u64,
    /// Thread stacks that stayed torn after every retry.
    pub torn: u64,
    /// Consistent snapshots read.
    pub snapshots_consistent: u64,
    /// Other snapshots read.
    pub snapshots_degraded: u64,
    /// Exact events; `None`: none were recorded.
    pub exact: Option<EventTotals>,
    /// The poller's totals; `None`: not followed.
    pub follow: Option<FollowTotals>,
}

/// The recording's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingEnd {
    /// When.
    pub time: Nanos,
    /// Why.
    pub reason: EndReason,
    /// Sums over the recording.
    pub totals: RecordingTotals,
}

/// An interval without records. What follows begins with the state at its end, if known
/// ([`Record::Keyframe`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingGap {
    /// The last complete moment.
    pub from: Nanos,
    /// When records are complete again.
    pub to: Nanos,
    /// What is missing.
    pub why: String,
}

/// Takes records: a trace writer, a profile, a test.
pub trait RecordSink {
    /// Takes one record. After an error the sink takes no more.
    fn record(&mut self, record: &Record) -> SinkResult;

    /// Makes earlier records survive even if this process is killed right after; nothing for sinks
    /// in memory.
    fn sync(&mut self) -> SinkResult {
        Ok(())
    }

    /// Tells it to leave out slow additions of its own to records: others wait for it.
    fn hurry(&mut self, _hurries: bool) {}
}

impl RecordSink for Vec<Record> {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.push(record.clone());
        Ok(())
    }
}
