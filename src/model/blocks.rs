//! The allocator's map of memory: segments obtained from the driver, cut into blocks.

use super::gpu::CudaIndex;
use super::record::Nanos;

/// State of a block, with the names of `torch.cuda.memory_snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockState {
    /// `active_allocated`: held by the program.
    Allocated,
    /// `active_pending_free`: freed by the program, another stream may still use it.
    PendingFree,
    /// `inactive`: in the cache.
    Inactive,
}

/// A block of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Device address.
    pub address: u64,
    /// Size in bytes, rounded by the allocator.
    pub size: u64,
    /// Bytes asked for; 0 for an inactive block, where the stored value is stale.
    pub requested: u64,
    /// State.
    pub state: BlockState,
}

/// A memory pool's id as PyTorch counts it; `(0, 0)` is the default pool, all others are private
/// (CUDA graphs, `torch.cuda.MemPool`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PoolId(pub u64, pub u64);

/// A stretch of memory obtained from the driver, tiled by its blocks in address order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Device address of its first byte.
    pub address: u64,
    /// Size in bytes: the sum of its blocks' sizes.
    pub size: u64,
    /// The CUDA stream (`cudaStream_t` as a number) it belongs to; 0 is the default stream.
    pub stream: u64,
    /// Whether it serves small blocks (up to 1 MiB).
    pub small: bool,
    /// Whether it is an expandable segment (mapped part of a larger address range).
    pub expandable: bool,
    /// Bytes that PyTorch maps and unmaps at once in it, counted from its first byte; 0 when it is not expandable.
    pub granule: u64,
    /// Whether its private pool serves no CUDA graph or `MemPool` any more: what is free in it can be given back.
    pub retired: bool,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Its blocks, in address order.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// Whether only CUDA graphs or `MemPool`s that exist can use what is free in it.
    pub fn is_private(&self) -> bool {
        self.pool != PoolId::default() && !self.retired
    }

    /// What PyTorch maps at once in an expandable segment unless it is told otherwise (`kSmallBuffer`, `kLargeBuffer` in
    /// c10/core/AllocatorConfig.h; only `large_segment_size_mb` changes it).
    pub fn usual_granule(small: bool) -> u64 {
        if small { 2 << 20 } else { 20 << 20 }
    }

    /// Bytes of it that `torch.cuda.empty_cache()` would return to the driver.
    ///
    /// As `release_cached_blocks` does it (c10/cuda/CUDACachingAllocator.cpp): it first waits for other streams, so that what is
    /// pending is free as well. Then it returns segments without a block in use, and of expandable ones every whole
    /// granule that is free. Private pools keep everything while a CUDA graph or a `MemPool` uses them.
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

/// How far a snapshot can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotConsistency {
    /// The sums over the blocks equal the counters, read before and after: one instant's truth.
    Consistent,
    /// The target changed it during every attempt to read it; the sums differ from the counters.
    Degraded {
        /// Sum of the sizes of the allocated blocks read, in bytes.
        allocated_in_blocks: u64,
        /// `allocated_bytes.all.current` read right after, in bytes.
        allocated_counter: u64,
    },
}

/// All segments and blocks of one device at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatorSnapshot {
    /// When it was read.
    pub time: Nanos,
    /// The device, as the target numbers it.
    pub device: CudaIndex,
    /// How often the read was repeated because the target changed it meanwhile.
    pub retries: u32,
    /// Whether it is one instant's truth.
    pub consistency: SnapshotConsistency,
    /// Segments in address order.
    pub segments: Vec<Segment>,
}

impl AllocatorSnapshot {
    /// All blocks, in address order of their segments.
    pub fn blocks(&self) -> impl Iterator<Item = (&Segment, &Block)> {
        self.segments.iter().flat_map(|s| s.blocks.iter().map(move |b| (s, b)))
    }

    /// Sum of the sizes of the allocated blocks, in bytes.
    pub fn allocated(&self) -> u64 {
        self.blocks().filter(|(_, b)| b.state == BlockState::Allocated).map(|(_, b)| b.size).sum()
    }

    /// Bytes that `torch.cuda.empty_cache()` would return to the driver: see [`Segment::releasable`].
    pub fn releasable(&self) -> u64 {
        self.segments.iter().map(Segment::releasable).sum()
    }

    /// Sum of the sizes of the segments, in bytes.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().map(|s| s.size).sum()
    }
}
