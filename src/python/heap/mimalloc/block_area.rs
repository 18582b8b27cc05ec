//! The blocks of a mimalloc page.

use super::super::blocks::{MimallocLayout, PageBlocks};
use super::{MIDDLE_BLOCK, MIN_BLOCK_BYTES, SEGMENT, SLICE, SMALL_BLOCK};
use crate::target::Addr;

pub(super) struct BlockArea {
    pub(super) start: Addr,
    pub(super) block: u64,
    pub(super) capacity: u64,
}

impl BlockArea {
    pub(super) fn new(
        mimalloc: &MimallocLayout,
        page: Addr,
        copy: &[u8],
        capacity: u64,
    ) -> Option<BlockArea> {
        let segment = Addr(page.0 & !(SEGMENT - 1));
        let into = page.0.checked_sub(segment.0 + mimalloc.segment_slices)?;
        let slice = into / mimalloc.page_len as u64;
        let block = mimalloc.blocks.size(copy);
        let fits = into.is_multiple_of(mimalloc.page_len as u64)
            && (1..SEGMENT / SLICE).contains(&slice)
            && block >= MIN_BLOCK_BYTES
            && capacity > 0;
        let slice = segment + slice * SLICE;
        let start = match mimalloc.blocks {
            PageBlocks::Computed { .. } if block <= SMALL_BLOCK => slice + 3 * block,
            PageBlocks::Computed { .. } if block <= MIDDLE_BLOCK => slice + block,
            PageBlocks::Computed { .. } => slice,
            PageBlocks::Recorded { start, .. } => start.get(copy)?,
        };
        let near = (slice.0..slice.0 + SLICE).contains(&start.0);
        (fits && near).then_some(BlockArea { start, block, capacity })
    }

    pub(super) fn number(&self, at: u64) -> Option<u64> {
        let into = at.checked_sub(self.start.0)?;
        let number = into / self.block;
        (into.is_multiple_of(self.block) && number < self.capacity).then_some(number)
    }
}
