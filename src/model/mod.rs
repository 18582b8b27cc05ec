//! The words everyone speaks: frames, stacks, allocator counters, blocks and the `Record` that joins the live and the recorded half.
//!
//! Turns nothing into anything: plain values with the field's standard terms.
//! May import `std` only (and the hasher of the stack table).
//! Never reads a process, a file or the clock.
//! Start reading at [`record::Record`].

pub mod allocator;
pub mod blocks;
pub mod called;
pub mod events;
pub mod unwind;
pub mod gpu;
pub mod owners;
pub mod ownership;
pub mod keyframe;
pub mod machine;
pub mod object_header;
pub mod record;
pub mod source_file;
pub mod stack;
pub mod tensors;
pub mod oom_exception;
pub mod step_counter;

pub use allocator::{
    AllocatorBackend, AllocatorCounters, Metric, Pool, Stat, StatField, StatKey, UnknownStatKey,
};
pub use blocks::{Block, AllocatorSnapshot, BlockState, SnapshotConsistency, PoolId, Segment};
pub use called::{NamedTensors, called};
pub use events::{
    MemoryKind, EventKind, Event, EventTotals, EventBatch, ExactSettings, ProbeBackend, AddressSpace, FreeTracking, CounterSnapshot, DriverEvent,
    CounterCheck, AllocationSite, SiteId, StackSource,
};
pub use unwind::{AutogradInfo, UnwindInfo, CounterAddresses, BpfFrame};
pub use gpu::{CudaIndex, GpuDevice, DeviceUsage, ProcessUsage};
pub use owners::{
    TensorCategory, CountingKind, CountingObject, GraphNode, OwnershipSnapshot, Incomplete, LookLimit, Model,
    ModelModule, Referrer, TensorReferrers, SavedBy, SavedIn, Stops, TensorRow,
};
pub use ownership::{
    DeviceOwnership, OwnedBytes, OwnedOnDevice, OwnedStorages, OwnershipBreakdown, UnnamedBlock, PythonTensors,
    StorageGroup,
};
pub use keyframe::{Keyframe, KeyframeBlock, KeyframeMemory, AllocationSource, AttributionShare, TriggerFired};
pub use machine::{DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, MigDevice};
pub use object_header::PyObjectHeader;
pub use record::{
    RecordingEnd, EndReason, RecordingGap, MissedObservation, MissReason, Nanos, ReaderKind, Record, RecordSink, TargetRuntime, StackSample,
    SourceText, RecordingStart, TrainingStep, StepSource, ThreadSample, RecordingTotals,
};
pub use source_file::is_library;
pub use stack::{
    ThreadActivity, Definition, Frame, FrameId, Function, FunctionId, StackId, StackNode, StackTable,
    Thread, ThreadId,
};
pub use tensors::{DType, Storage, TensorDevice, TensorInfo};
pub use oom_exception::{OomException, RaisedError};
pub use step_counter::{StepCounterLocation, WatchedFrame, WatchedInteger, WatchedSteps};
