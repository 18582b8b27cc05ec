//! Fragmentation of PyTorch's cache, and what is releasable.

use std::collections::BTreeMap;

use super::cache_reasons::{CacheReason, cache_reasons};
use crate::model::{AllocatorSnapshot, BlockState, PoolId, Segment};

/// Free blocks of `from` up to `2 * from` bytes; `from` is a power of two.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass {
    pub from: u64,
    pub blocks: u64,
    pub bytes: u64,
}

/// A sum of segments, in bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentSum {
    pub segments: u64,
    pub bytes: u64,
    pub allocated: u64,
    pub free: u64,
}

impl SegmentSum {
    pub(super) fn add(&mut self, segment: &Segment) {
        let of = |state| -> u64 {
            segment.blocks.iter().filter(|b| b.state == state).map(|b| b.size).sum()
        };
        self.segments += 1;
        self.bytes += segment.size;
        self.allocated += of(BlockState::Allocated);
        self.free += of(BlockState::Inactive);
    }
}

/// A sum of free blocks, in bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeBlocks {
    pub blocks: u64,
    pub bytes: u64,
    pub largest: u64,
}

/// Fragmentation of one device's cache. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// All segments.
    pub all: SegmentSum,
    /// Freed, but another stream may still use it.
    pub pending_free: u64,
    /// For any tensor: not in a private pool in use.
    pub general: FreeBlocks,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// The largest free block, or 0.
    pub largest_free: u64,
    /// Smallest first, without empty classes.
    pub by_size: Vec<SizeClass>,
    /// Completely free segments of the default pool that do not expand.
    pub wholly_free: SegmentSum,
    /// What `torch.cuda.empty_cache()` would return: see [`Segment::releasable`].
    pub releasable: u64,
    /// Private pools (CUDA graphs, `torch.cuda.MemPool`), whose free blocks serve only them.
    pub private_pools: BTreeMap<PoolId, SegmentSum>,
    /// Expandable segments of all pools.
    pub expandable: SegmentSum,
    /// Why what is cached is not used or returned.
    pub reasons: BTreeMap<CacheReason, u64>,
}

impl Fragmentation {
    /// Fragmentation in a snapshot.
    pub fn new(snapshot: &AllocatorSnapshot) -> Fragmentation {
        let mut sums = Fragmentation::default();
        let mut by_size: BTreeMap<u64, SizeClass> = BTreeMap::new();
        for segment in &snapshot.segments {
            sums.all.add(segment);
            if segment.pool != PoolId::default() {
                sums.private_pools.entry(segment.pool).or_default().add(segment);
            }
            if segment.expandable {
                sums.expandable.add(segment);
            } else if segment.pool == PoolId::default()
                && segment.blocks.iter().all(|block| block.state == BlockState::Inactive)
            {
                sums.wholly_free.add(segment);
            }
        }
        sums.releasable = snapshot.releasable();
        sums.reasons = cache_reasons(snapshot);
        for (segment, block) in snapshot.blocks() {
            match block.state {
                BlockState::Allocated => {}
                BlockState::PendingFree => sums.pending_free += block.size,
                BlockState::Inactive => {
                    let from = 1u64 << block.size.max(1).ilog2();
                    let empty = SizeClass { from, blocks: 0, bytes: 0 };
                    let class = by_size.entry(from).or_insert(empty);
                    class.blocks += 1;
                    class.bytes += block.size;
                    if !segment.is_private() {
                        let FreeBlocks { blocks, bytes, largest } = sums.general;
                        sums.general = FreeBlocks {
                            blocks: blocks + 1,
                            bytes: bytes + block.size,
                            largest: largest.max(block.size),
                        };
                    }
                    sums.free_blocks += 1;
                    sums.largest_free = sums.largest_free.max(block.size);
                }
            }
        }
        sums.by_size = by_size.into_values().collect();
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Block, CudaIndex, Nanos, SnapshotConsistency};

    fn segment(address: u64, pool: PoolId, expandable: bool, blocks: &[(u64, bool)]) -> Segment {
        let mut at = address;
        let block = |&(size, used): &(u64, bool)| {
            at += size;
            let state = if used { BlockState::Allocated } else { BlockState::Inactive };
            Block { address: at - size, size, requested: 0, state }
        };
        let blocks: Vec<Block> = blocks.iter().map(block).collect();
        let size = blocks.iter().map(|b| b.size).sum();
        let granule = if expandable { Segment::usual_granule(false) } else { 0 };
        let (small, retired) = (false, false);
        Segment { address, size, stream: 0, small, expandable, granule, retired, pool, blocks }
    }

    fn map(segments: Vec<Segment>) -> AllocatorSnapshot {
        AllocatorSnapshot {
            time: Nanos(0),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments,
        }
    }

    #[test]
    fn free_blocks_are_sorted_by_powers_of_two() {
        let whole = segment(0, PoolId(0, 0), false, &[(512, true), (1023, false), (1024, false)]);
        let empty = segment(1 << 20, PoolId(0, 0), false, &[(2047, false)]);
        let found = Fragmentation::new(&map(vec![whole, empty]));
        let class = |from, blocks, bytes| SizeClass { from, blocks, bytes };
        assert_eq!(found.by_size, [class(512, 1, 1023), class(1024, 2, 3071)]);
        assert_eq!((found.free_blocks, found.largest_free), (3, 2047));
        assert_eq!(found.by_size.iter().map(|c| c.bytes).sum::<u64>(), found.all.free);
        assert_eq!(
            found.wholly_free,
            SegmentSum { segments: 1, bytes: 2047, allocated: 0, free: 2047 }
        );
    }

    #[test]
    fn private_pools_and_expandable_segments_are_counted_separately() {
        let private = segment(0, PoolId(0, 1), false, &[(4096, false)]);
        let expands = segment(1 << 20, PoolId(0, 0), true, &[(100, true), (200, false)]);
        let found = Fragmentation::new(&map(vec![private, expands]));
        let pool = SegmentSum { segments: 1, bytes: 4096, allocated: 0, free: 4096 };
        assert_eq!(found.private_pools, [(PoolId(0, 1), pool)].into());
        let expanding = SegmentSum { segments: 1, bytes: 300, allocated: 100, free: 200 };
        assert_eq!(found.expandable, expanding);
        assert_eq!(found.wholly_free, SegmentSum::default());
        assert_eq!(Fragmentation::new(&map(Vec::new())), Fragmentation::default());
    }
}
