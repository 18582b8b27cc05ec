//! Allocator snapshots: segments, divided into blocks.

use super::gpu::CudaIndex;
use super::record::Nanos;

/// PyTorch's blocks are multiples of this (`kMinBlockSize`, c10/cuda/CUDACachingAllocator.cpp).
pub const MIN_BLOCK: u64 = 512;

/// Least block size for a request. A damaged file may have any size.
pub fn block_size(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(MIN_BLOCK).unwrap_or(u64::MAX)
}

/// A block's state, as in `torch.cuda.memory_snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockState {
    /// `active_allocated`: allocated to the program.
    Allocated,
    /// `active_pending_free`: freed, but another stream may still use it.
    PendingFree,
    /// `inactive`: cached.
    Inactive,
}

/// A block of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Device address.
    pub address: u64,
    /// Rounded bytes.
    pub size: u64,
    /// Bytes requested; 0 if inactive: PyTorch's value is stale.
    pub requested: u64,
    /// State.
    pub state: BlockState,
}

/// PyTorch's pool id; all but the default `(0, 0)` are private (CUDA graphs, `torch.cuda.MemPool`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PoolId(pub u64, pub u64);

/// Memory from the driver, tiled by blocks in address order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Bytes: the sum of its blocks.
    pub size: u64,
    /// CUDA stream (`cudaStream_t`); 0 is the default one.
    pub stream: u64,
    /// It serves blocks of up to 1 MiB.
    pub small: bool,
    /// It is a mapped part of an expandable segment.
    pub expandable: bool,
    /// Bytes that PyTorch maps and unmaps at once; 0: not expandable.
    pub granule: u64,
    /// Its private pool has no CUDA graph or `MemPool` any more, so free memory can be
    /// returned.
    pub retired: bool,
    /// Its pool.
    pub pool: PoolId,
    /// Its blocks, in address order.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// Whether only a CUDA graph or `MemPool` can use its free memory.
    pub fn is_private(&self) -> bool {
        self.pool != PoolId::default() && !self.retired
    }

    /// A segment's bytes in the small pool (`kSmallBuffer` in c10/core/AllocatorConfig.h).
    pub(crate) const SMALL_SIZE: u64 = 2 << 20;
    /// Those for a request of 1 to 10 MiB (`kLargeBuffer`), by default.
    pub(crate) const LARGE_SIZE: u64 = 20 << 20;

    /// Default granule, changed only by `large_segment_size_mb`.
    pub fn usual_granule(small: bool) -> u64 {
        if small { Segment::SMALL_SIZE } else { Segment::LARGE_SIZE }
    }

    /// Bytes that `torch.cuda.empty_cache()` would release.
    ///
    /// As in `release_cached_blocks` (c10/cuda/CUDACachingAllocator.cpp): streams are synchronized,
    /// so pending blocks are free. Unused segments go, and free granules of expandable ones, but
    /// nothing of a private pool in use.
    pub fn releasable(&self) -> u64 {
        if self.is_private() {
            return 0;
        }
        let in_use = |block: &Block| block.state == BlockState::Allocated;
        if self.granule == 0 {
            return if self.blocks.iter().any(in_use) { 0 } else { self.size };
        }
        let offset = |block: &Block| block.address.saturating_sub(self.address);
        let mut bytes = 0;
        let mut free_from = 0u64;
        let used = self.blocks.iter().filter(|block| in_use(block));
        let ends = used.map(|block| (offset(block), offset(block).saturating_add(block.size)));
        for (begin, end) in ends.chain([(self.size, self.size)]) {
            let (first, last) = (free_from.div_ceil(self.granule), begin / self.granule);
            bytes += last.saturating_sub(first) * self.granule;
            free_from = end;
        }
        bytes
    }
}

/// How consistent a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotConsistency {
    /// Its sums equal the counters read before and after.
    Consistent,
    /// The job changed it during every attempt; the sums differ from the counters.
    Degraded {
        /// Bytes of allocated blocks.
        allocated_in_blocks: u64,
        /// `allocated_bytes.all.current` right after.
        allocated_counter: u64,
    },
}

/// A device's segments and blocks at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatorSnapshot {
    /// When it was read.
    pub time: Nanos,
    /// The device's number in the target.
    pub device: CudaIndex,
    /// Reads repeated because the target changed it.
    pub retries: u32,
    /// Whether it shows one instant.
    pub consistency: SnapshotConsistency,
    /// Segments in address order.
    pub segments: Vec<Segment>,
}

impl AllocatorSnapshot {
    /// All, in address order.
    pub fn blocks(&self) -> impl Iterator<Item = (&Segment, &Block)> {
        self.segments.iter().flat_map(|s| s.blocks.iter().map(move |b| (s, b)))
    }

    /// Bytes of allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.blocks().filter(|(_, b)| b.state == BlockState::Allocated).map(|(_, b)| b.size).sum()
    }

    /// The sum of [`Segment::releasable`].
    pub fn releasable(&self) -> u64 {
        self.segments.iter().map(Segment::releasable).sum()
    }

    /// Bytes of the segments.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().map(|s| s.size).sum()
    }
}
