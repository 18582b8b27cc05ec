//! Events that make what was live before the recording.

use super::ReplayEvent;
use super::placement::{BlockPlace, SegmentPlaces};
use crate::model::{AllocatorSnapshot, Block, Segment};

/// `kSmallSize`: larger requests are not of the small pool.
const SMALL_REQUEST: u64 = 1 << 20;
/// Of a free block.
const MAX_PIECES: u64 = 1 << 14;

/// The events, by the first snapshot.
#[derive(Debug, Default)]
pub(super) struct StartEvents {
    /// Only what is older and live.
    pub(super) live: Vec<ReplayEvent>,
    /// With the free memory of its segments, so that these are PyTorch's own again.
    pub(super) with_cache: Vec<ReplayEvent>,
    /// Bytes of the live blocks.
    pub(super) live_bytes: u64,
    /// Bytes of the free memory.
    pub(super) cached_bytes: u64,
    /// Numbers of the live blocks: the first ones, by address.
    pub(super) blocks: Vec<Block>,
    /// Numbers in use.
    pub(super) numbers: u32,
}

/// `is_older`: a live block is older than the recording.
pub(super) fn start_events(
    snapshot: &AllocatorSnapshot,
    places: &mut SegmentPlaces,
    is_older: impl Fn(&Block) -> bool,
) -> StartEvents {
    let mut start = StartEvents::default();
    let older = snapshot.blocks().map(|(_, block)| block).filter(|block| is_older(block));
    start.blocks = older.copied().collect();
    start.live_bytes = bytes_of(start.blocks.iter());
    let mut next = 0;
    let mut maker = SegmentMaker { spare: start.blocks.len() as u32, ..SegmentMaker::default() };
    let mut at = BlockPlace::default();
    for segment in &snapshot.segments {
        let kept: Vec<Option<u32>> = segment
            .blocks
            .iter()
            .map(|block| {
                is_older(block).then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let free = segment.blocks.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        let free = bytes_of(free.map(|(block, _)| block));
        start.cached_bytes = start.cached_bytes.saturating_add(free);
        let place = places.of_segment(segment);
        for events in [&mut start.live, &mut maker.events] {
            move_to(events, at, place);
        }
        at = place;
        for (block, kept) in segment.blocks.iter().zip(&kept) {
            if let Some(number) = *kept {
                start.live.push(ReplayEvent::Allocate { block: number, size: block.size });
            }
        }
        maker.make(segment, &kept);
    }
    for events in [&mut start.live, &mut maker.events] {
        move_to(events, at, BlockPlace::default());
    }
    // Only now: a hole would serve blocks of later segments.
    let holes = std::mem::take(&mut maker.holes);
    maker.events.extend(holes.into_iter().map(|block| ReplayEvent::Free { block }));
    start.numbers = maker.spare;
    start.with_cache = maker.events;
    start
}

/// A damaged trace may have any sizes.
fn bytes_of<'a>(blocks: impl Iterator<Item = &'a Block>) -> u64 {
    blocks.fold(0, |sum, block| sum.saturating_add(block.size))
}

pub(super) fn move_to(events: &mut Vec<ReplayEvent>, from: BlockPlace, to: BlockPlace) {
    if from.stream != to.stream {
        events.push(ReplayEvent::Stream(to.stream));
    }
    if from.pool != to.pool {
        events.push(ReplayEvent::Pool(to.pool));
    }
}

/// Fills one segment after the other, free memory too: PyTorch then takes each block from the front
/// of what is left of the segment.
#[derive(Default)]
struct SegmentMaker {
    events: Vec<ReplayEvent>,
    holes: Vec<u32>,
    spare: u32,
}

impl SegmentMaker {
    fn make(&mut self, segment: &Segment, kept: &[Option<u32>]) {
        // A segment of the small pool, and of an expandable one, comes with its first block.
        if !segment.small && !segment.expandable {
            let block = self.spare();
            self.events.push(ReplayEvent::Allocate { block, size: segment.size });
            self.events.push(ReplayEvent::Free { block });
        }
        for (block, kept) in segment.blocks.iter().zip(kept) {
            if let Some(number) = *kept {
                self.events.push(ReplayEvent::Allocate { block: number, size: block.size });
                continue;
            }
            let most = match segment.small {
                true => SMALL_REQUEST.max(block.size / MAX_PIECES),
                false => u64::MAX,
            };
            let mut left = block.size;
            while left > 0 {
                let (hole, size) = (self.spare(), left.min(most));
                self.events.push(ReplayEvent::Allocate { block: hole, size });
                self.holes.push(hole);
                left -= size;
            }
        }
    }

    fn spare(&mut self) -> u32 {
        self.spare += 1;
        self.spare - 1
    }
}
