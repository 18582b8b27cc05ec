//! Idle CUDA streams hold cached blocks, none in use.
//!
//! A cached block serves only the stream of its allocation, and stays until `empty_cache()` or a
//! refused request.

use std::collections::BTreeMap;

use crate::model::{AllocatorSnapshot, BlockState, PoolId};

/// Idle streams of one device, with their cached bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdleStreams {
    pub streams: u64,
    pub bytes: u64,
}

impl IdleStreams {
    /// Private pools do not count: CUDA graphs keep these for replay.
    pub fn new(map: &AllocatorSnapshot) -> IdleStreams {
        let mut streams: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for (segment, block) in map.blocks().filter(|(s, _)| s.pool == PoolId::default()) {
            let (free, is_used) = streams.entry(segment.stream).or_default();
            match block.state {
                BlockState::Inactive => *free += block.size,
                BlockState::Allocated | BlockState::PendingFree => *is_used = true,
            }
        }
        let idle = streams.values().filter(|(free, is_used)| *free > 0 && !is_used);
        idle.fold(IdleStreams::default(), |sum, (free, _)| IdleStreams {
            streams: sum.streams + 1,
            bytes: sum.bytes + free,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Block, CudaIndex, Nanos, Segment, SnapshotConsistency};

    #[test]
    fn used_streams_and_private_pools_are_not_idle() {
        let segment = |stream, pool, states: &[BlockState]| {
            let block = |(at, state): (u64, &BlockState)| Block {
                address: at << 20,
                size: 1 << 20,
                requested: 1 << 20,
                state: *state,
            };
            let blocks: Vec<Block> = (0..).zip(states).map(block).collect();
            let size = (blocks.len() as u64) << 20;
            let (small, expandable, granule, retired) = (false, false, 0, false);
            let address = stream << 40;
            Segment { address, size, stream, small, expandable, granule, retired, pool, blocks }
        };
        use BlockState::{Allocated, Inactive, PendingFree};
        let own = PoolId::default();
        let map = AllocatorSnapshot {
            time: Nanos(1),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: vec![
                segment(0, own, &[Allocated, Inactive]),
                segment(7, own, &[Inactive, Inactive]),
                segment(7, own, &[Inactive]),
                segment(8, own, &[Inactive]),
                segment(9, own, &[PendingFree, Inactive]),
                segment(10, PoolId(0, 3), &[Inactive]),
            ],
        };
        assert_eq!(IdleStreams::new(&map), IdleStreams { streams: 2, bytes: 4 << 20 });
    }
}
