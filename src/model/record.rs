//! `Record`: the one thing that passes from the live half to the recorded half.

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
    /// The same in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Everything a recording consists of. Records come in time order; a definition comes before the
/// first record that uses its number.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// What is recorded, and how. Always first.
    Start(RecordingStart),
    /// What runs in the target; again whenever that changes (CUDA initialised, another allocator), and now and then
    /// while PyTorch has no allocator yet.
    Runtime(TargetRuntime),
    /// A function, frame, stack or thread gets its number.
    Definition(Definition),
    /// The source text of a function.
    Source(SourceText),
    /// A GPU of the machine, before the first record that names it.
    Device(GpuDevice),
    /// The stacks of the threads at one instant.
    Sample(StackSample),
    /// The allocator's counters of one device. Recorded with the first sample and whenever they
    /// differ from the last ones recorded: between two records they did not change at any sample.
    /// They are read right before the stacks and again right after them. Those read before have the
    /// sample's time and follow it; when the second ones differ, both are recorded.
    Counters {
        /// When.
        time: Nanos,
        /// Which device, as the target numbers it.
        device: CudaIndex,
        /// All counters.
        counters: Box<AllocatorCounters>,
    },
    /// The allocator's segments and blocks of one device.
    Snapshot(AllocatorSnapshot),
    /// What the driver says of one device.
    Usage(DeviceUsage),
    /// Something that was to be observed and was not.
    Missed(MissedObservation),
    /// From now on events are recorded exactly.
    ExactSettings(ExactSettings),
    /// Exact events. No other record's time lies between two of them.
    Events(EventBatch),
    /// Steps of the allocation counters, as fast polls saw them. No other record's time lies between two of them.
    Followed(FollowedChanges),
    /// How the events compare with the allocator's counters.
    CounterCheck(CounterCheck),
    /// Who held the memory at one moment.
    Ownership(OwnershipBreakdown),
    /// How many steps training has made: when that is first known, and whenever it changes.
    Step(TrainingStep),
    /// What a recording whose beginning was dropped has from it: once, behind the records that say how things were
    /// at its first moment and before all that happened since.
    Keyframe(Keyframe),
    /// A condition came true for which the recording was waiting.
    TriggerFired(TriggerFired),
    /// The exception of an out-of-memory error was looked for.
    OomException(OomException),
    /// Something was recorded here and is missing or damaged: written where segments of a recording are joined.
    Gap(RecordingGap),
    /// The recording's end. Always last; its absence means that the recording ended abruptly.
    End(RecordingEnd),
}

impl Record {
    /// When it was observed; `None` for records that have no moment (definitions, start).
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
    /// Working directory of the target; `None` when it could not be read.
    pub directory: Option<String>,
    /// Wall clock at time 0: nanoseconds since 1970-01-01 UTC.
    pub unix_nanos: u64,
    /// Samples wanted per second.
    pub rate: u32,
    /// Which rank of a distributed job the target is: `RANK` of its environment; `None` when it has none.
    pub rank: Option<u32>,
}

/// What runs in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRuntime {
    /// When this was found.
    pub time: Nanos,
    /// CPython version, `3.12.1`; `None` when the target is not Python.
    pub python: Option<String>,
    /// PyTorch version, `2.11.0+cu130`; `None` when it is not loaded.
    pub torch: Option<String>,
    /// The CUDA allocator.
    pub allocator: AllocatorBackend,
}

/// The source text of a function, as the recorder found it in the target's file system.
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
    /// The threads whose stack could be read. A thread without Python frames is not listed.
    pub threads: Vec<ThreadSample>,
}

/// One thread's part of a [`StackSample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadSample {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub stack: StackId,
    /// Whether it held the GIL; `false` also where that cannot be known (free-threaded builds).
    pub gil: bool,
    /// Whether it was doing anything.
    pub activity: ThreadActivity,
}

/// What counts the steps of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepSource {
    /// An optimizer's counter of the steps it has made.
    #[default]
    Optimizer,
    /// A variable of the program: the number of the step under way.
    Variable,
    /// `global_step` of the `TrainerState` of transformers.
    Trainer,
    /// `last_epoch` of a scheduler of learning rates: its own steps, each of which may be several of the optimizer, or an epoch.
    Scheduler,
}

/// The step counter of an optimizer, or a variable of the program that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrainingStep {
    /// When it was seen.
    pub time: Nanos,
    /// Steps made, or the variable's value.
    pub step: u64,
    /// The value of the variable that counts epochs; `None` where none was named or seen.
    pub epoch: Option<u64>,
    /// What counts.
    pub clock: StepSource,
    /// Upper bound on how long before `time` the step happened. 0 means exactly between two events: what was allocated or
    /// freed up to the last event before `time` belongs to the step before, everything since to this one. `None` where the
    /// step was seen in a sample, or when the counter was read.
    pub uncertainty: Option<Nanos>,
    /// Whether the variable is there no more: the step is over, and no other one is under way.
    pub is_over: bool,
}

impl TrainingStep {
    /// Whether it was made exactly between the events before and after it.
    pub fn is_between_events(&self) -> bool {
        self.uncertainty == Some(Nanos(0))
    }
}

/// Which reader missed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReaderKind {
    /// Python stacks.
    Stacks,
    /// Allocator counters.
    Counters,
    /// Snapshot.
    Snapshots,
    /// NVML.
    Gpu,
    /// Probes: exact events.
    Events,
    /// Tensors and who holds them.
    Owners,
}

/// Why something was missed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// The target changed it during every attempt to read it.
    Torn,
    /// memspy did not get to it in time (one count per period of the rate).
    Late,
    /// It could not be read; says why.
    Failed(String),
}

/// Something that was to be observed and was not.
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
    /// The time asked for was over.
    Duration,
    /// The user ended it.
    Interrupted,
    /// The target exited.
    TargetExited,
    /// The target replaced itself by another program (`exec`).
    TargetExecuted,
    /// The recorder could not go on; says why.
    Failed(String),
    /// A condition came true for which it was waiting; says which.
    Condition(String),
    /// A condition came true in another process of the job, and ended the recordings of all.
    OtherProcess {
        /// The condition.
        condition: String,
        /// The process, as messages name it: `rank 1 (process 1234)`.
        process: String,
    },
}

/// Sums over a recording, for its trailer and for the lines printed at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordingTotals {
    /// Instants at which the target was to be looked at.
    pub ticks: u64,
    /// Instants that were missed because memspy came too late.
    pub late: u64,
    /// Thread stacks read.
    pub stacks: u64,
    /// Thread stacks that stayed torn after every retry.
    pub torn: u64,
    /// Snapshots read that are one instant's truth.
    pub snapshots_consistent: u64,
    /// Snapshots read that are not.
    pub snapshots_degraded: u64,
    /// Exact events; `None` when none were recorded.
    pub exact: Option<EventTotals>,
    /// What the poller did; `None` when the allocator was not followed.
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

/// A stretch of which records are missing. What stands behind it begins with how things stood at its end, where that is
/// known ([`Record::Keyframe`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingGap {
    /// The last moment of which everything is there.
    pub from: Nanos,
    /// From when on everything is there again.
    pub to: Nanos,
    /// What is missing.
    pub why: String,
}

/// Something that takes records: a trace writer, a profile, a test.
pub trait RecordSink {
    /// Takes one record. An error means that the sink cannot take any more.
    fn record(&mut self, record: &Record) -> SinkResult;

    /// Makes sure that what was taken so far stays, even if this process is killed right after; nothing where it is only kept
    /// in memory.
    fn sync(&mut self) -> SinkResult {
        Ok(())
    }

    /// Whether it is to leave out, from now on, what it adds to records by itself and what takes time: others wait for it.
    fn hurry(&mut self, _hurries: bool) {}
}

impl RecordSink for Vec<Record> {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.push(record.clone());
        Ok(())
    }
}
