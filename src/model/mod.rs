//! Shared data types: frames, stacks, counters, blocks, records. No I/O, no logic.
//!
//! Turns facts into plain values. May import only `std` (and the stack table's hasher). Never reads
//! a process, a file or the clock. Start reading at [`Record`].

mod allocator;
mod blocks;
mod card;
mod core_origin;
mod cpp_memory;
mod events;
mod followed;
mod gpu;
mod history;
mod host_memory;
mod job_cost;
mod job_threads;
mod keyframe;
mod machine;
mod native;
mod oom_exception;
mod owner_paths;
mod owners;
mod ownership;
mod quantity;
mod record;
mod record_size;
mod redaction;
mod retained;
mod run_marks;
mod sink_error;
mod size;
mod sleep_tags;
mod source_file;
mod stack;
mod tensors;
mod wrapper_functions;

pub use allocator::{
    AllocatorBackend, AllocatorCounters, Metric, Pool, Stat, StatField, StatKey, UnknownStat,
};
pub use blocks::{
    AllocatorSnapshot, Block, BlockState, MIN_BLOCK, PoolId, Segment, SnapshotConsistency,
    block_size,
};
pub use card::Card;
pub use core_origin::CoreOrigin;
pub use cpp_memory::{CppKeeper, CppMemory};
pub use events::{
    AddressSpace, AllocationSite, CounterCheck, CounterSnapshot, DriverEvent, Event, EventBatch,
    EventKind, EventTotals, ExactSettings, FreeTracking, MemoryKind, NativeFrames, ProbeBackend,
    SiteId, StackSource,
};
pub use followed::{
    AddressedBlock, CounterDelta, FollowTotals, FollowedAddresses, FollowedChange, FollowedChanges,
    FollowedThread, StackReading, ThreadWait,
};
pub use gpu::{CudaIndex, DeviceUsage, GpuDevice, ProcessUsage};
pub use history::{
    AllocationHistory, DeviceHistory, HistoryAction, HistoryEvent, HistoryFrame, HistoryStack,
};
pub use host_memory::{HostReading, PageLockedBlock, RecorderState};
pub use job_cost::{JobCost, MeasuredCost};
pub use job_threads::{HandledError, JobThreads, RunningThread};
pub use keyframe::{
    AllocationSource, AttributionShare, Keyframe, KeyframeBlock, KeyframeMemory, TriggerFired,
};
pub use machine::{
    DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, GpuNeighbour, LeftBehind,
    MigDevice, NeighbourRole,
};
pub use native::{MixedFrame, MixedStack, MixedStacks, NativeFrame};
pub use oom_exception::{OomException, RaisedError};
pub use owner_paths::{OwnerId, OwnerPaths};
pub use owners::{
    CopiedTensors, CountingObject, GarbageCycle, GraphNode, IncompleteSnapshot, LimitedQueue,
    NamedModule, Optimizer, OwnershipSnapshot, PoolUser, ReachedLimit, Referrer, RootModule,
    SavedBy, SavedIn, StepCounterKind, StopTotals, TensorCategory, TensorReferrers, TensorRow,
    UncertainSnapshot,
};
pub use ownership::{
    DeviceOwners, DeviceOwnership, OwnedBlock, OwnedBytes, OwnedStorages, OwnershipBreakdown,
    PythonTensors, StorageGroup, UnnamedBlock,
};
pub use quantity::{Quantity, QuantityError, parse_size, parse_time, parse_time_or_size};
pub use record::{
    EndReason, MissReason, MissedObservation, Nanos, ReaderKind, Record, RecordSink, RecordingEnd,
    RecordingGap, RecordingStart, RecordingTotals, SourceText, StackSample, StepSource,
    TargetRuntime, ThreadSample, TrainingStep,
};
pub use redaction::{BaseNames, RedactingSink, without_paths};
pub use retained::{FreedBytes, KeptWay, RetainedReference, WayStep};
pub use run_marks::{RunMark, RunMarkKind};
pub use sink_error::{SinkError, SinkResult};
pub use size::{bytes, count, number, optional_bytes, signed_bytes};
pub(crate) use size::{percent, scaled, short_bytes, short_signed_bytes};
pub use sleep_tags::{SleepTags, TaggedMemory};
pub(crate) use source_file::in_standard_library;
pub use source_file::is_library;
pub use stack::{
    Definition, Frame, FrameId, Function, FunctionId, StackId, StackNode, StackTable, Thread,
    ThreadActivity, ThreadId,
};
pub use tensors::{DType, JAX_ARRAY, Storage, TensorDevice, TensorInfo};
pub(crate) use wrapper_functions::MODULE_CALLS;
