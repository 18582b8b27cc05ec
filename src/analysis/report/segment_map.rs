//! A moment's segments, with each block's stack.

use rustc_hash::FxHashMap;

use super::lifetimes::ReportedBlock;
use crate::analysis::blocks::tile;
use crate::model::{
    AllocatorSnapshot, BlockState, CudaIndex, KeyframeBlock, Nanos, Segment, SnapshotConsistency,
};

/// Above this, neighbours of equal state are joined.
const MAX_BLOCKS: usize = 20_000;

/// A block, or joined neighbours of equal state; `stack` is an index in
/// [`MemoryTrack::stacks`](super::MemoryTrack::stacks).
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedBlock {
    pub state: BlockState,
    pub size: u64,
    pub stack: Option<u32>,
}

/// A segment; `stream` is the allocator's number. Blocks are by address, the rest is unknown.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedSegment {
    pub size: u64,
    pub small: bool,
    pub expandable: bool,
    pub private: bool,
    pub stream: u64,
    pub blocks: Vec<MappedBlock>,
}

/// All segments of a device; bytes in segments newer than `segments_at` are `unplaced`. If
/// `merged`, neighbours were joined.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentMap {
    pub time: Nanos,
    pub segments_at: Nanos,
    pub unplaced: u64,
    pub consistent: bool,
    pub segments: Vec<MappedSegment>,
    pub merged: bool,
}

impl SegmentMap {
    /// Puts live blocks into the segments of the last snapshot.
    pub(super) fn new(
        snapshot: &AllocatorSnapshot,
        time: Nanos,
        blocks: &[ReportedBlock],
    ) -> SegmentMap {
        let source_of: FxHashMap<u64, u32> =
            blocks.iter().map(|block| (block.address, block.source)).collect();
        // A sampled moment is the snapshot itself.
        let segments: Vec<Segment> = match snapshot.time == time {
            true => snapshot.segments.clone(),
            false => {
                let living: Vec<KeyframeBlock> = blocks.iter().map(living_block).collect();
                snapshot.segments.iter().map(|segment| tile(segment.clone(), &living)).collect()
            }
        };
        let in_map = segments.iter().flat_map(|segment| &segment.blocks);
        let in_map = in_map.filter(|block| block.state == BlockState::Allocated);
        let placed: u64 = in_map.map(|block| block.size).sum();
        let all: u64 = blocks.iter().map(|block| block.size).sum();
        let merged =
            segments.iter().map(|segment| segment.blocks.len()).sum::<usize>() > MAX_BLOCKS;
        let segments = segments.iter().map(|segment| {
            let mut blocks: Vec<MappedBlock> = Vec::new();
            for block in &segment.blocks {
                let is_allocated = block.state == BlockState::Allocated;
                let known = source_of.get(&block.address).copied();
                let stack = known.filter(|_| is_allocated && !merged);
                match blocks.last_mut().filter(|last| merged && last.state == block.state) {
                    Some(last) => last.size += block.size,
                    None => {
                        blocks.push(MappedBlock { state: block.state, size: block.size, stack });
                    }
                }
            }
            MappedSegment {
                size: segment.size,
                small: segment.small,
                expandable: segment.expandable,
                private: segment.pool != Default::default(),
                stream: segment.stream,
                blocks,
            }
        });
        SegmentMap {
            time,
            segments_at: snapshot.time,
            unplaced: all.saturating_sub(placed),
            consistent: snapshot.consistency == SnapshotConsistency::Consistent,
            segments: segments.collect(),
            merged,
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.segments.iter().map(|segment| segment.blocks.len() + 1).sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct SegmentMaps {
    pub(super) kept: Vec<SegmentMap>,
    blocks: u64,
}

fn living_block(block: &ReportedBlock) -> KeyframeBlock {
    KeyframeBlock {
        address: block.address,
        size: block.size,
        requested: 0,
        stands_for: block.size,
        allocated_at: Nanos(block.allocated_at),
        small: false,
        allocation_source: block.source,
    }
}

/// Per device, without the peak; spread over the recording.
const MAX_BLOCKS_IN_ALL: u64 = 150_000;

impl SegmentMaps {
    pub(super) fn wants(&self, time: Nanos, length: Nanos) -> bool {
        let passed = time.0 as f64 / length.0.max(1) as f64;
        self.blocks as f64 <= MAX_BLOCKS_IN_ALL as f64 * passed
    }

    pub(super) fn keep(&mut self, map: SegmentMap) {
        self.blocks += map.blocks() as u64;
        self.kept.push(map);
    }
}

pub(super) type LastSnapshots = std::collections::BTreeMap<CudaIndex, AllocatorSnapshot>;
