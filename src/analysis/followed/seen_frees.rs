//! In which calls the blocks of one maker are freed, as the tables of addresses showed it since the map before.
//!
//! Of several blocks that are alike the tables tell most often which one was freed, and so what becomes of the blocks of each maker: the normalised input of
//! a layer goes when the layer's attention returns, the keys and values of a cache stay. Where the tables tell nothing, because a new block has the address of
//! the one that was freed, it was rather none of a maker whose blocks always go elsewhere.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::free_sites::FreeSite;

/// Makers and places remembered.
const MAX_KNOWN: usize = 1 << 16;
/// So many frees of a maker's blocks show where they go.
const MIN_FREES: u32 = 8;
/// At a place where fewer than one in so many of them goes, none does: now and then one is taken for another.
const SELDOM: u32 = 16;

/// What was seen to be freed, by who had made it.
#[derive(Debug, Default)]
pub(super) struct SeenFrees {
    /// In all.
    made: FxHashMap<(BlockGroup, AllocationOrigin), u32>,
    /// In each call.
    at: FxHashMap<(BlockGroup, AllocationOrigin, AllocationOrigin), u32>,
}

impl SeenFrees {
    /// The address of a block was taken back there.
    pub(super) fn add(&mut self, group: BlockGroup, site: &FreeSite, maker: AllocationOrigin) {
        if site == &[None; 2] || self.at.len() >= MAX_KNOWN {
            return;
        }
        let all = self.made.entry((group, maker)).or_default();
        *all = all.saturating_add(1);
        for &call in site.iter().flatten() {
            let here = self.at.entry((group, maker, call)).or_default();
            *here = here.saturating_add(1);
        }
    }

    /// Whether the blocks of a maker are freed, and hardly ever there.
    pub(super) fn go_elsewhere(
        &self,
        group: BlockGroup,
        site: &FreeSite,
        maker: AllocationOrigin,
    ) -> bool {
        let all = self.made.get(&(group, maker)).copied().unwrap_or(0);
        let here =
            |call: &AllocationOrigin| self.at.get(&(group, maker, *call)).copied().unwrap_or(0);
        let most = site.iter().flatten().map(here).max();
        all >= MIN_FREES && most.is_some_and(|most| most.saturating_mul(SELDOM) < all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pool, StackId, ThreadId};

    #[test]
    fn blocks_go_elsewhere_that_are_freed_and_hardly_ever_there() {
        let group = BlockGroup { size: 512, requested: 512, pool: Pool::Small };
        let call = |stack| AllocationOrigin::Below(ThreadId(0), StackId(stack));
        let site = |stack| [Some(call(stack)), None];
        let [cache, hidden] =
            [1, 2].map(|stack| AllocationOrigin::Stack(ThreadId(0), StackId(stack)));
        let mut seen = SeenFrees::default();
        let is_elsewhere = |seen: &SeenFrees| seen.go_elsewhere(group, &site(7), cache);
        for _ in 0..MIN_FREES - 1 {
            seen.add(group, &site(9), cache);
            seen.add(group, &site(7), hidden);
        }
        assert!(!is_elsewhere(&seen), "not often enough");
        seen.add(group, &[None; 2], cache);
        assert!(!is_elsewhere(&seen), "nobody knows where that was");
        seen.add(group, &[Some(call(8)), Some(call(9))], cache);
        assert!(is_elsewhere(&seen));
        assert!(!seen.go_elsewhere(group, &[None; 2], cache));
        assert!(!seen.go_elsewhere(group, &[Some(call(7)), Some(call(9))], cache));
        seen.add(group, &site(7), cache);
        assert!(!is_elsewhere(&seen), "one of nine");
    }
}
