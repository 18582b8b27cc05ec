//! Shared data types: frames, stacks, counters, blocks, records. No I/O, no logic.
//!
//! Turns facts into plain values. May import only `std` (and the stack table's hasher). Never reads
//! a process, a file or the clock. Start reading at [`record::Record`].

pub mod allocator;
pub mod blocks;
pub mod core_origin;
pub mod events;
pub mod followed;
pub mod gpu;
pub mod history;
pub mod keyframe;
pub mod machine;
pub mod native;
pub mod oom_exception;
pub mod owner_paths;
pub mod owners;
pub mod ownership;
pub mod quantity;
pub mod record;
mod record_size;
pub mod sink_error;
pub mod sleep_tags;
pub mod source_file;
pub mod stack;
pub mod tensors;

pub use allocator::{
    AllocatorBackend, AllocatorCounters, Metric, Pool, Stat, StatField, StatKey, UnknownStat,
};
pub use blocks::{AllocatorSnapshot, Block, BlockState, PoolId, Segment, SnapshotConsistency};
pub use core_origin::CoreOrigin;
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
pub use keyframe::{
    AllocationSource, AttributionShare, Keyframe, KeyframeBlock, KeyframeMemory, TriggerFired,
};
pub use machine::{
    DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, LeftBehind, MigDevice,
};
pub use native::{MixedFrame, MixedStack, MixedStacks, NativeFrame};
pub use oom_exception::{OomException, RaisedError};
pub use owner_paths::{OwnerId, OwnerPaths};
pub use owners::{
    CopiedTensors, CountingKind, CountingObject, GarbageCycle, GraphNode, IncompleteSnapshot,
    ModelModule, Optimizer, OwnershipSnapshot, PoolUser, ReachedLimit, Referrer, RootModule,
    SavedBy, SavedIn, StopTotals, TensorCategory, TensorReferrers, TensorRow,
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
pub use sink_error::{SinkError, SinkResult};
pub use sleep_tags::{SleepTags, TaggedMemory};
pub use source_file::is_library;
pub use stack::{
    Definition, Frame, FrameId, Function, FunctionId, StackId, StackNode, StackTable, Thread,
    ThreadActivity, ThreadId,
};
pub use tensors::{DType, Storage, TensorDevice, TensorInfo};
