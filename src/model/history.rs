//! The job's own allocation history: `torch.cuda.memory._record_memory_history`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::gpu::CudaIndex;

/// What happened, named as in `torch.cuda.memory._snapshot()` (`TraceEntry::Action`,
/// c10/cuda/CUDACachingAllocator.h to torch 2.12, c10/core/CachingDeviceAllocator.h since).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryAction {
    /// A block was allocated.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// No stream uses the block any more.
    FreeCompleted,
    /// Memory was obtained from the driver.
    SegmentAlloc,
    /// Memory was returned to the driver.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation failed: its address is the device's free bytes.
    Oom,
    /// A text was attached to a live block (torch 2.15).
    Annotate,
}

impl HistoryAction {
    /// All, by PyTorch's numbers.
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

/// An entry of the history's ring buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// What happened.
    pub action: HistoryAction,
    /// Device address; for an OOM the device's free bytes.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The CUDA stream (`cudaStream_t` as a number).
    pub stream: u64,
    /// Microseconds since the epoch.
    pub time_us: i64,
    /// Index in [`AllocationHistory::stacks`], or among the stacks read with it; `None`: not
    /// recorded.
    pub stack: Option<u32>,
    /// The memory pool, if this PyTorch version records it.
    pub pool: Option<PoolId>,
    /// `compile_context`, if this PyTorch version records it.
    pub compile_context: Option<Arc<str>>,
    /// `user_metadata`, if this PyTorch version records it.
    pub user_metadata: Option<Arc<str>>,
}

/// A Python frame of a recorded stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HistoryFrame {
    /// The function (`co_name`).
    pub name: Arc<str>,
    /// Its file (`co_filename`).
    pub file: Arc<str>,
    /// The line; 0: the instruction has none.
    pub line: u32,
}

/// A recorded stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HistoryStack {
    /// Its Python frames in [`AllocationHistory::frames`], innermost first.
    pub frames: Vec<u32>,
    /// Number of its unnamed C++ frames.
    pub native: u32,
    /// Whether it also has unnamed TorchScript frames.
    pub has_script: bool,
}

/// One device's history.
#[derive(Debug, Clone)]
pub struct DeviceHistory {
    /// Its number in the job.
    pub device: CudaIndex,
    /// Capacity of the ring buffer in events.
    pub max_entries: u64,
    /// Its events, oldest first.
    pub events: Vec<HistoryEvent>,
    /// Oldest events left out because the job overwrote them during the read.
    pub overwritten: u64,
    /// Oldest events left out because of memspy's limit.
    pub beyond_limit: u64,
    /// Its segments and blocks; `None`: the job changed them during every attempt.
    pub snapshot: Option<AllocatorSnapshot>,
    /// Allocating stacks by block address.
    pub block_stacks: BTreeMap<u64, u32>,
    /// Stacks that made the allocator obtain segments, by segment address.
    pub segment_stacks: BTreeMap<u64, u32>,
}

/// The job's allocation history.
#[derive(Debug, Clone, Default)]
pub struct AllocationHistory {
    /// Its devices, by number.
    pub devices: Vec<DeviceHistory>,
    /// All stacks, each once.
    pub stacks: Vec<HistoryStack>,
    /// All frames, each once.
    pub frames: Vec<HistoryFrame>,
    /// Frames with an unreadable code object.
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
