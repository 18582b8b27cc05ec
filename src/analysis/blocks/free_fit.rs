//! Free blocks large enough for a failed request, and why PyTorch could not use them.
//!
//! As `get_free_block` (c10/cuda/CUDACachingAllocator.cpp): it searches the request's pool and
//! stream; below `max_split_size`, it skips blocks above. Freed blocks count after their events on
//! other streams.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::{AllocatorSnapshot, BlockState, PoolId, Segment};

/// Greatest request to the small pool (`kSmallSize`).
const SMALL_REQUEST: u64 = 1 << 20;
const MIN_LARGE_REQUEST: u64 = 10 << 20;

/// Why a free block was unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnusableReason {
    /// Another stream may still use it.
    EventsPending,
    /// In the pool of a CUDA graph or a `MemPool`.
    PrivatePool(PoolId),
    /// In the small pool (`true`) or the large one.
    OtherPool(bool),
    /// On another stream than the main one.
    OtherStream(u64),
    /// Larger than `max_split_size`, so reserved for requests of that size.
    NotSplit,
    /// The block was not free, or not in this form, at the time of the request.
    None,
}

/// Free blocks large enough, with one reason; sizes in bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusableBlocks {
    pub reason: UnusableReason,
    pub blocks: u64,
    pub bytes: u64,
    pub largest: u64,
}

/// The cache at a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeFit {
    /// A free block of this size always serves the request.
    pub needed: u64,
    /// By reason, most bytes first.
    pub large_enough: Vec<UnusableBlocks>,
    /// Largest usable block.
    pub largest_usable: u64,
}

impl FreeFit {
    /// `asked`: bytes of the request to the driver. `max_split_size`: PyTorch's setting.
    pub fn new(snapshot: &AllocatorSnapshot, asked: u64, max_split_size: Option<u64>) -> FreeFit {
        let needed = match asked {
            Segment::SMALL_SIZE => SMALL_REQUEST,
            Segment::LARGE_SIZE => MIN_LARGE_REQUEST,
            asked => asked,
        };
        let small = needed <= SMALL_REQUEST;
        let stream = main_stream(snapshot);
        let mut found: BTreeMap<UnusableReason, UnusableBlocks> = BTreeMap::new();
        let mut largest_usable = 0;
        for (segment, block) in snapshot.blocks() {
            let reason = match block.state {
                BlockState::Allocated => continue,
                BlockState::PendingFree => UnusableReason::EventsPending,
                BlockState::Inactive => {
                    reason(segment, small, stream, block.size, needed, max_split_size)
                }
            };
            if reason == UnusableReason::None {
                largest_usable = largest_usable.max(block.size);
            }
            if block.size < needed {
                continue;
            }
            let sum = found.entry(reason).or_insert(UnusableBlocks {
                reason,
                blocks: 0,
                bytes: 0,
                largest: 0,
            });
            sum.blocks += 1;
            sum.bytes += block.size;
            sum.largest = sum.largest.max(block.size);
        }
        let mut large_enough: Vec<UnusableBlocks> = found.into_values().collect();
        large_enough.sort_by_key(|sum| (Reverse(sum.bytes), sum.reason));
        FreeFit { needed, large_enough, largest_usable }
    }
}

fn reason(
    segment: &Segment,
    small: bool,
    stream: Option<u64>,
    size: u64,
    needed: u64,
    max_split_size: Option<u64>,
) -> UnusableReason {
    if segment.pool != PoolId::default() {
        return UnusableReason::PrivatePool(segment.pool);
    }
    if segment.small != small {
        return UnusableReason::OtherPool(segment.small);
    }
    if stream.is_some_and(|stream| stream != segment.stream) {
        return UnusableReason::OtherStream(segment.stream);
    }
    match max_split_size {
        Some(most) if needed < most && size >= most => UnusableReason::NotSplit,
        // Above the limit, only a small remainder is accepted (`kLargeBuffer`).
        Some(most) if needed >= most && size >= needed.saturating_add(Segment::LARGE_SIZE) => {
            UnusableReason::NotSplit
        }
        _ => UnusableReason::None,
    }
}

/// The stream with most memory, taken as the request's.
fn main_stream(snapshot: &AllocatorSnapshot) -> Option<u64> {
    let mut by_stream: BTreeMap<u64, u64> = BTreeMap::new();
    for segment in snapshot.segments.iter().filter(|s| s.pool == PoolId::default()) {
        *by_stream.entry(segment.stream).or_default() += segment.size;
    }
    by_stream.into_iter().max_by_key(|(stream, bytes)| (*bytes, Reverse(*stream))).map(|(s, _)| s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Block, CudaIndex, Nanos, SnapshotConsistency};

    const MIB: u64 = 1 << 20;

    fn segment(stream: u64, small: bool, pool: PoolId, blocks: &[(u64, BlockState)]) -> Segment {
        let blocks: Vec<Block> = blocks
            .iter()
            .map(|&(mib, state)| Block { address: 0, size: mib * MIB, requested: 0, state })
            .collect();
        let size = blocks.iter().map(|b| b.size).sum();
        Segment {
            address: 0,
            size,
            stream,
            small,
            expandable: false,
            granule: 0,
            retired: false,
            pool,
            blocks,
        }
    }

    fn fit(segments: Vec<Segment>, asked: u64, most: Option<u64>) -> Vec<(UnusableReason, u64)> {
        let consistency = SnapshotConsistency::Consistent;
        let (time, device) = (Nanos(0), CudaIndex(0));
        let map = AllocatorSnapshot { time, device, retries: 0, consistency, segments };
        let fit = FreeFit::new(&map, asked * MIB, most.map(|most| most * MIB));
        fit.large_enough.iter().map(|sum| (sum.reason, sum.bytes / MIB)).collect()
    }

    #[test]
    fn each_large_free_block_has_its_reason() {
        use BlockState::{Allocated, Inactive, PendingFree};
        let free = PoolId::default();
        let graph = PoolId(0, 1);
        let segments = vec![
            segment(0, false, free, &[(900, Allocated), (30, Inactive), (300, PendingFree)]),
            segment(7, false, free, &[(200, Inactive), (10, Inactive)]),
            segment(0, false, graph, &[(100, Inactive)]),
            segment(0, true, free, &[(2, Inactive)]),
        ];
        assert_eq!(
            fit(segments.clone(), 64, None),
            [
                (UnusableReason::EventsPending, 300),
                (UnusableReason::OtherStream(7), 200),
                (UnusableReason::PrivatePool(graph), 100),
            ]
        );
        assert!(fit(segments, 30, None).contains(&(UnusableReason::None, 30)));
        let limited = vec![segment(0, false, free, &[(500, Inactive)])];
        assert_eq!(fit(limited.clone(), 64, Some(128)), [(UnusableReason::NotSplit, 500)]);
        assert_eq!(fit(limited.clone(), 200, Some(128)), [(UnusableReason::NotSplit, 500)]);
        assert_eq!(fit(limited, 490, Some(128)), [(UnusableReason::None, 500)]);
        let large = vec![segment(0, false, free, &[(500, Inactive)])];
        assert_eq!(fit(large, 2, None), [(UnusableReason::OtherPool(false), 500)]);
    }
}
