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
pub mod frame_walk;
pub mod gpu;
pub mod holders;
pub mod holdings;
pub mod inherited;
pub mod machine;
pub mod object_head;
pub mod record;
pub mod source_file;
pub mod stack;
pub mod tensors;
pub mod thrown;
pub mod watched;

pub use allocator::{
    AllocatorBackend, AllocatorCounters, Metric, Pool, Stat, StatField, StatKey, UnknownStatKey,
};
pub use blocks::{Block, BlockMap, BlockState, Consistency, PoolId, Segment};
pub use called::{Called, called};
pub use events::{
    Arena, Change, Event, EventTotals, Events, Exact, ExactWay, FreedArena, Frees, Levels, Mark,
    Reconciled, Site, SiteId, StackSource,
};
pub use frame_walk::{BackwardWalk, FrameWalk, LevelsAt, ProbedFrame};
pub use gpu::{CudaIndex, Device, DeviceUsage, ProcessUsage};
pub use holders::{
    Category, CountingKind, CountingObject, GraphNode, HolderMap, Incomplete, LookLimit, Model,
    ModelModule, Referrer, Referrers, SavedBy, SavedIn, Stops, TensorRow,
};
pub use holdings::{
    DeviceHoldings, Held, HeldOnDevice, HeldStorages, HolderSnapshot, NamelessBlock, PythonTensors,
    StorageGroup,
};
pub use inherited::{Inherited, InheritedBlock, InheritedMemory, Maker, Share, Triggered};
pub use machine::{DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, MigDevice};
pub use object_head::ObjectHead;
pub use record::{
    End, EndReason, Gap, Missed, MissedWhy, Nanos, ReaderKind, Record, RecordSink, Runtime, Sample,
    Source, Start, Step, StepClock, ThreadSample, Totals,
};
pub use source_file::is_library;
pub use stack::{
    Activity, Definition, Frame, FrameId, Function, FunctionId, StackId, StackNode, StackTable,
    Thread, ThreadId,
};
pub use tensors::{DType, Storage, TensorDevice, TensorInfo};
pub use thrown::{Thrown, ThrownError};
pub use watched::{Watched, WatchedFrame, WatchedInteger, WatchedSteps};
