//! Who made the last few blocks, one after the other: who makes the next one is told by that, in each layer of a model alike, whatever the sizes.
//!
//! The sums of `allocation_places.rs` are others where blocks have other sizes: for a prompt and for one token, for each token more in a cache,
//! for each image. The lines that make the blocks come in the same order.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::analysis::attribution::{AllocationOrigin, BlockGroup};

/// So many makers in a row tell who makes the next block.
const MAKERS: usize = 3;

/// The makers of the last blocks, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct MakerSequence {
    makers: VecDeque<AllocationOrigin>,
    /// The bytes asked for by the last block.
    requested: u64,
}

impl MakerSequence {
    /// The place of a block of this kind that is made now; `None` behind a loop, which does not tell when it ends, and where makers are not known.
    pub(super) fn place(&self, kind: BlockGroup) -> Option<u64> {
        let is_loop = self.makers.iter().all(|maker| Some(maker) == self.makers.front());
        if self.makers.len() < MAKERS || is_loop {
            return None;
        }
        let mut hasher = FxHasher::default();
        ("sequence", kind.requested == self.requested, &self.makers).hash(&mut hasher);
        Some(hasher.finish())
    }

    /// Takes the blocks that a change allocated, in order; `None` for one whose maker is not known.
    pub(super) fn add(
        &mut self,
        made: impl IntoIterator<Item = Option<(BlockGroup, AllocationOrigin)>>,
    ) {
        for made in made {
            let Some((kind, maker)) = made else {
                self.makers.clear();
                continue;
            };
            if self.makers.len() == MAKERS {
                self.makers.pop_front();
            }
            self.makers.push_back(maker);
            self.requested = kind.requested;
        }
    }

    /// Begins anew: changes are missing.
    pub(super) fn clear(&mut self) {
        self.makers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pool, StackId, ThreadId};

    fn made(line: u32, requested: u64) -> Option<(BlockGroup, AllocationOrigin)> {
        let kind = BlockGroup { size: requested, requested, pool: Pool::Small };
        Some((kind, AllocationOrigin::Stack(ThreadId(0), StackId(line))))
    }

    fn behind(blocks: &[Option<(BlockGroup, AllocationOrigin)>], requested: u64) -> Option<u64> {
        let mut sequence = MakerSequence::default();
        sequence.add(blocks.iter().copied());
        sequence.place(made(9, requested)?.0)
    }

    #[test]
    fn the_same_lines_are_the_same_place_whatever_the_sizes() {
        let token = behind(&[made(7, 64), made(1, 512), made(2, 512), made(1, 512)], 512);
        let prompt = behind(&[made(1, 4096), made(2, 4096), made(1, 4096)], 4096);
        assert!(token.is_some());
        assert_eq!(token, prompt);
        assert_ne!(token, behind(&[made(2, 512), made(1, 512), made(1, 512)], 512));
        assert_ne!(token, behind(&[made(1, 512), made(2, 512), made(1, 512)], 4096));
    }

    #[test]
    fn a_loop_and_an_unknown_maker_are_no_place() {
        assert_eq!(behind(&[made(1, 512), made(1, 512), made(1, 512)], 512), None);
        assert_eq!(behind(&[made(1, 512), made(2, 512)], 512), None);
        assert_eq!(
            behind(&[made(1, 512), made(2, 512), made(3, 512), None, made(1, 512)], 512),
            None
        );
    }
}
