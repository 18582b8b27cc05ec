//! The job's own allocation history (`torch.cuda.memory._record_memory_history`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::gpu::CudaIndex;

/// An action, named as in `torch.cuda.memory._snapshot()` (`TraceEntry::Action`: up to torch 2.12
/// in c10/cuda/CUDACachingAllocator.h, since in c10/core/CachingDeviceAllocator.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryAction {
    /// Block allocated.
    Alloc,
    /// Block freed by the program.
    FreeRequested,
    /// No stream uses the block any more.
    FreeCompleted,
    /// Segment obtained from the driver.
    SegmentAlloc,
    /// Segment returned to the driver.
    SegmentFree,
    /// Mapped into an expandable segment.
    SegmentMap,
    /// Unmapped from an expandable segment.
    SegmentUnmap,
    /// Snapshot taken.
    Snapshot,
    /// Allocation failed; `address` holds the device's free bytes.
    Oom,
    /// Text attached to a live block (torch 2.15).
    Annotate,
}

impl HistoryAction {
    /// All, in PyTorch's order.
    pub const ALL: [HistoryAction; 10] = [
        HistoryAction::Alloc,
        HistoryAction::FreeRequested,
        HistoryAction::FreeCompleted,
        HistoryAction::SegmentAlloc,
        HistoryAction::SegmentFree,
        HistoryAction::SegmentMap,
        HistoryAction::SegmentUnmap,
        HistoryAction::Snapshot,
        HistoryAction::Oom,
        HistoryAction::Annotate,
    ];

    /// Its name in a snapshot.
    pub fn name(self) -> &'static str {
        match self {
            HistoryAction::Alloc => "alloc",
            HistoryAction::FreeRequested => "free_requested",
            HistoryAction::FreeCompleted => "free_completed",
            HistoryAction::SegmentAlloc => "segment_alloc",
            HistoryAction::SegmentFree => "segment_free",
            HistoryAction::SegmentMap => "segment_map",
            HistoryAction::SegmentUnmap => "segment_unmap",
            HistoryAction::Snapshot => "snapshot",
            HistoryAction::Oom => "oom",
            HistoryAction::Annotate => "annotate",
        }
    }
}

/// An entry of the ring buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The action.
    pub action: HistoryAction,
    /// Device address; for an OOM the device's free bytes.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// CUDA stream (`cudaStream_t`).
    pub stream: u64,
    /// Microseconds since the epoch.
    pub time_us: i64,
    /// Index in [`AllocationHistory::stacks`], or among stacks read with it, if recorded.
    pub stack: Option<u32>,
    /// Pool, if this PyTorch records it.
    pub pool: Option<PoolId>,
    /// `compile_context`, if this PyTorch records it.
    pub compile_context: Option<Arc<str>>,
    /// `user_metadata`, if this PyTorch records it.
    pub user_metadata: Option<Arc<str>>,
}

/// A Python frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HistoryFrame {
    /// `co_name`.
    pub name: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// 0: none for this instruction.
    pub line: u32,
}

/// A recorded stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HistoryStack {
    /// Indices in [`AllocationHistory::frames`], innermost first.
    pub frames: Vec<u32>,
    /// Unnamed C++ frames.
    pub native: u32,
    /// It also has TorchScript frames, unnamed.
    pub has_script: bool,
}

/// One device's history.
#[derive(Debug, Clone)]
pub struct DeviceHistory {
    /// The device's number in the job.
    pub device: CudaIndex,
    /// Capacity of the ring buffer.
    pub max_entries: u64,
    /// Oldest first.
    pub events: Vec<HistoryEvent>,
    /// Oldest events lost: overwritten during the read.
    pub overwritten: u64,
    /// Oldest events beyond memspy's limit.
    pub beyond_limit: u64,
    /// Segments and blocks; `None`: the job changed them during every attempt.
    pub snapshot: Option<AllocatorSnapshot>,
    /// Allocating stacks, by block address.
    pub block_stacks: BTreeMap<u64, u32>,
    /// Stacks that caused a segment, by its address.
    pub segment_stacks: BTreeMap<u64, u32>,
}

/// The job's allocation history.
#[derive(Debug, Clone, Default)]
pub struct AllocationHistory {
    /// By number.
    pub devices: Vec<DeviceHistory>,
    /// Each once.
    pub stacks: Vec<HistoryStack>,
    /// Each once.
    pub frames: Vec<HistoryFrame>,
    /// Frames with unreadable code objects.
    pub unreadable_frames: u64,
    /// Unreadable stacks.
    pub unreadable_stacks: u64,
}

impl AllocationHistory {
    /// Number of events.
    pub fn events(&self) -> usize {
        self.devices.iter().map(|device| device.events.len()).sum()
    }
}
