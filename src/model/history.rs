//! What a job recorded of its own allocations: `torch.cuda.memory._record_memory_history`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocks::{AllocatorSnapshot, PoolId};
use super::gpu::CudaIndex;

/// What happened, with the names of `torch.cuda.memory._snapshot()` (`TraceEntry::Action`,
/// c10/cuda/CUDACachingAllocator.h to torch 2.12, c10/core/CachingDeviceAllocator.h since).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryAction {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
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
    /// An allocation failed: its address is the number of bytes free on the device.
    Oom,
    /// A text was attached to a live block (torch 2.15).
    Annotate,
}

impl HistoryAction {
    /// All, by the number PyTorch stores.
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

/// An entry of the ring buffer in which a job records its allocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// What happened.
    pub action: HistoryAction,
    /// Device address; of an OOM the bytes that were free on the device.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The CUDA stream (`cudaStream_t` as a number).
    pub stream: u64,
    /// Microseconds since the epoch.
    pub time_us: i64,
    /// Where its stack is in [`AllocationHistory::stacks`], or among the stacks read with it; `None` when none was recorded.
    pub stack: Option<u32>,
    /// The memory pool, where this version of PyTorch records it.
    pub pool: Option<PoolId>,
    /// `compile_context`, where this version of PyTorch records it.
    pub compile_context: Option<Arc<str>>,
    /// `user_metadata`, where this version of PyTorch records it.
    pub user_metadata: Option<Arc<str>>,
}

/// A Python frame of a stack that the job recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HistoryFrame {
    /// The function (`co_name`).
    pub name: Arc<str>,
    /// Its file (`co_filename`).
    pub file: Arc<str>,
    /// The line; 0 where the instruction has none.
    pub line: u32,
}

/// A stack that the job recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HistoryStack {
    /// Its Python frames in [`AllocationHistory::frames`], the innermost first.
    pub frames: Vec<u32>,
    /// How many frames of C++ it has as well, which are not named.
    pub native: u32,
    /// Whether it has frames of TorchScript as well, which are not named.
    pub has_script: bool,
}

/// What a job recorded of one device.
#[derive(Debug, Clone)]
pub struct DeviceHistory {
    /// Its number, as the job counts.
    pub device: CudaIndex,
    /// Room in its ring buffer, in events.
    pub max_entries: u64,
    /// Its events, the oldest first.
    pub events: Vec<HistoryEvent>,
    /// How many of the oldest events the job overwrote while they were read; they are left out.
    pub overwritten: u64,
    /// How many of the oldest events are left out because there are more than memspy reads.
    pub beyond_limit: u64,
    /// Its segments and blocks; `None` when the job changed them during every attempt to read them.
    pub snapshot: Option<AllocatorSnapshot>,
    /// The stacks that allocated blocks, by the blocks' addresses.
    pub block_stacks: BTreeMap<u64, u32>,
    /// The stacks that made the allocator obtain segments, by the segments' addresses.
    pub segment_stacks: BTreeMap<u64, u32>,
}

/// What a job recorded of its allocations.
#[derive(Debug, Clone, Default)]
pub struct AllocationHistory {
    /// Its devices, by number.
    pub devices: Vec<DeviceHistory>,
    /// All stacks, each once.
    pub stacks: Vec<HistoryStack>,
    /// All frames, each once.
    pub frames: Vec<HistoryFrame>,
    /// Frames whose code object could not be read.
    pub unreadable_frames: u64,
    /// Stacks that could not be read.
    pub unreadable_stacks: u64,
}

impl AllocationHistory {
    /// How many events there are.
    pub fn events(&self) -> usize {
        self.devices.iter().map(|device| device.events.len()).sum()
    }
}
