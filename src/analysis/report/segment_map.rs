//! The segments of the allocator at a moment, each block with the stack that allocated it.

use rustc_hash::FxHashMap;

use crate::model::{AllocatorSnapshot, BlockState, CudaIndex, Nanos};

/// The most blocks of one map; neighbours in the same state become one where there are more.
const MAX_BLOCKS: usize = 20_000;

/// A block, or several neighbours in the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedBlock {
    /// Its state.
    pub state: BlockState,
    /// Bytes.
    pub size: u64,
    /// The number of its stack in [`MemoryTrack::stacks`](super::MemoryTrack::stacks); `None` where it is not known.
    pub stack: Option<u32>,
}

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedSegment {
    /// Bytes.
    pub size: u64,
    /// Whether it is of the pool of small blocks.
    pub small: bool,
    /// Whether it expands.
    pub expandable: bool,
    /// Whether it belongs to a private pool.
    pub private: bool,
    /// The stream of its blocks, as the allocator numbers them.
    pub stream: u64,
    /// Its blocks by address; where they do not fill it, the rest is unknown.
    pub blocks: Vec<MappedBlock>,
}

/// All segments of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentMap {
    /// When the snapshot was read.
    pub time: Nanos,
    /// Whether it is one instant's truth.
    pub consistent: bool,
    /// Segments by address.
    pub segments: Vec<MappedSegment>,
    /// Whether neighbours were put together, as there are very many blocks.
    pub merged: bool,
}

impl SegmentMap {
    /// That of a snapshot; `source_of` has who allocated the block at an address.
    pub(super) fn new(snapshot: &AllocatorSnapshot, source_of: &FxHashMap<u64, u32>) -> SegmentMap {
        let merged = snapshot.blocks().count() > MAX_BLOCKS;
        let segments = snapshot.segments.iter().map(|segment| {
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
            time: snapshot.time,
            consistent: matches!(
                snapshot.consistency,
                crate::model::SnapshotConsistency::Consistent
            ),
            segments: segments.collect(),
            merged,
        }
    }

    /// How many blocks it has.
    pub(super) fn blocks(&self) -> usize {
        self.segments.iter().map(|segment| segment.blocks.len() + 1).sum()
    }
}

/// The maps kept of a device: some along the whole recording, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct SegmentMaps {
    pub(super) kept: Vec<SegmentMap>,
    blocks: usize,
}

/// The most blocks of all maps of a device.
const MAX_BLOCKS_IN_ALL: usize = 150_000;
/// Maps along a recording.
const MAPS: u64 = 40;

impl SegmentMaps {
    /// Whether a snapshot is to be kept: `always`, or where the last one kept is long ago.
    pub(super) fn wants(&self, snapshot: &AllocatorSnapshot, length: Nanos, always: bool) -> bool {
        let Some(last) = self.kept.last() else { return true };
        let apart = snapshot.time.0.saturating_sub(last.time.0);
        apart > 0 && (always || apart >= length.0 / MAPS && self.blocks < MAX_BLOCKS_IN_ALL)
    }

    pub(super) fn keep(&mut self, map: SegmentMap) {
        self.blocks += map.blocks();
        self.kept.push(map);
    }
}

/// The snapshots that a recording has, the last one of each device.
pub(super) type LastSnapshots = std::collections::BTreeMap<CudaIndex, AllocatorSnapshot>;
