//! Why free cache is not used or returned.

use std::collections::BTreeMap;

use crate::model::{AllocatorSnapshot, BlockState, PoolId, Segment};

/// The reasons, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheReason {
    /// Only CUDA graphs or a `MemPool` can use it.
    PrivatePool,
    /// Another stream may still use it.
    Pending,
    /// Only work on another stream than the main one can use it.
    OtherStream,
    /// `empty_cache()` returns it.
    Returnable,
    /// In a segment of which tensors use an eighth or less, which cannot be returned.
    Pinned,
    /// Beside tensors, in pieces.
    Pieces,
}

impl CacheReason {
    /// In a table.
    pub fn name(self) -> &'static str {
        match self {
            CacheReason::PrivatePool => "only for CUDA graphs or a MemPool",
            CacheReason::Pending => "other streams may still use it",
            CacheReason::OtherStream => "only for work on other streams",
            CacheReason::Returnable => "returned by empty_cache()",
            CacheReason::Pinned => "in segments pinned by small tensors",
            CacheReason::Pieces => "in pieces beside tensors",
        }
    }

    /// For programs.
    pub fn key(self) -> &'static str {
        match self {
            CacheReason::PrivatePool => "private_pool",
            CacheReason::Pending => "pending",
            CacheReason::OtherStream => "other_stream",
            CacheReason::Returnable => "returnable",
            CacheReason::Pinned => "pinned",
            CacheReason::Pieces => "pieces",
        }
    }
}

const PINNED_PART: u64 = 8;

/// Bytes by reason; they add up to what is reserved and not allocated.
pub fn cache_reasons(map: &AllocatorSnapshot) -> BTreeMap<CacheReason, u64> {
    let mut by_stream: BTreeMap<u64, u64> = BTreeMap::new();
    for (segment, block) in map.blocks() {
        if block.state == BlockState::Allocated && segment.pool == PoolId::default() {
            *by_stream.entry(segment.stream).or_default() += block.size;
        }
    }
    let main = by_stream.iter().max_by_key(|(_, bytes)| **bytes).map_or(0, |(stream, _)| *stream);
    let mut reasons = BTreeMap::new();
    for segment in &map.segments {
        let sum = |state| -> u64 {
            let blocks = segment.blocks.iter().filter(|block| block.state == state);
            blocks.map(|block| block.size).sum()
        };
        let (used, free) = (sum(BlockState::Allocated), sum(BlockState::Inactive));
        let mut add = |reason, bytes| {
            if bytes > 0 {
                *reasons.entry(reason).or_default() += bytes;
            }
        };
        add(CacheReason::Pending, sum(BlockState::PendingFree));
        let reason = reason_of(segment, used, main);
        let returnable = match reason {
            CacheReason::Pieces | CacheReason::Pinned => segment.releasable().min(free),
            _ => 0,
        };
        add(CacheReason::Returnable, returnable);
        add(reason, free - returnable);
    }
    reasons
}

fn reason_of(segment: &Segment, used: u64, main: u64) -> CacheReason {
    match used {
        _ if segment.is_private() => CacheReason::PrivatePool,
        _ if segment.stream != main => CacheReason::OtherStream,
        used if used <= segment.size / PINNED_PART => CacheReason::Pinned,
        _ => CacheReason::Pieces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Block, CudaIndex, Nanos, SnapshotConsistency};

    #[test]
    fn each_free_byte_has_one_reason() {
        use BlockState::{Allocated, Inactive, PendingFree};
        let segment = |stream, pool, blocks: &[(u64, BlockState)]| {
            let blocks: Vec<Block> = blocks
                .iter()
                .map(|&(size, state)| Block { address: 0, size, requested: 0, state })
                .collect();
            let size = blocks.iter().map(|block| block.size).sum();
            let (small, expandable, granule, retired) = (false, false, 0, false);
            Segment { address: 0, size, stream, small, expandable, granule, retired, pool, blocks }
        };
        let own = PoolId::default();
        let map = AllocatorSnapshot {
            time: Nanos(1),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: vec![
                segment(0, own, &[(600, Allocated), (400, Inactive)]),
                segment(0, own, &[(10, Allocated), (990, Inactive)]),
                segment(0, own, &[(1000, Inactive)]),
                segment(7, own, &[(300, Inactive), (50, PendingFree)]),
                segment(0, PoolId(0, 1), &[(200, Inactive)]),
            ],
        };
        let expected = [
            (CacheReason::PrivatePool, 200),
            (CacheReason::Pending, 50),
            (CacheReason::OtherStream, 300),
            (CacheReason::Returnable, 1000),
            (CacheReason::Pinned, 990),
            (CacheReason::Pieces, 400),
        ];
        let found = cache_reasons(&map);
        assert_eq!(found, expected.into());
        assert_eq!(found.values().sum::<u64>(), map.reserved() - map.allocated());
    }
}
