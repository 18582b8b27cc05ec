//! Where the blocks of a replay are: no two of them can be at one place.
//!
//! The allocator cuts a block that was freed where a smaller one is wanted, and joins free blocks that lie side by side. So a new block says of all that lay
//! where it lies that they were freed, also where the tables of addresses told nothing of it then: one that took the address of a larger one is no new
//! address to them.

use std::collections::BTreeMap;

use crate::analysis::attribution::BlockGroup;
use crate::model::AddressedBlock;

/// The group of the block at each address, where that is known.
#[derive(Debug, Default)]
pub(super) struct BlockPlaces(BTreeMap<u64, BlockGroup>);

impl BlockPlaces {
    pub(super) fn insert(&mut self, address: u64, group: BlockGroup) {
        self.0.insert(address, group);
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<BlockGroup> {
        self.0.remove(&address)
    }

    pub(super) fn get(&self, address: u64) -> Option<BlockGroup> {
        self.0.get(&address).copied()
    }

    /// The blocks that lie where this one lies, or at a part of it.
    pub(super) fn under(&self, block: &AddressedBlock) -> impl Iterator<Item = (u64, BlockGroup)> {
        let end = block.address.saturating_add(block.size.max(1));
        let reaches =
            |(at, group): &(&u64, &BlockGroup)| at.saturating_add(group.size) > block.address;
        let below = self.0.range(..block.address).next_back().filter(reaches);
        below.into_iter().chain(self.0.range(block.address..end)).map(|(at, group)| (*at, *group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pool;

    #[test]
    fn a_block_lies_on_all_that_share_a_byte_with_it() {
        let mut places = BlockPlaces::default();
        for (address, size) in [(0, 10), (10, 30), (40, 10), (60, 10)] {
            places.insert(address, BlockGroup { size, requested: size, pool: Pool::Large });
        }
        let under = |address, size| -> Vec<u64> {
            let block = AddressedBlock { address, size, requested: size };
            places.under(&block).map(|(at, _)| at).collect()
        };
        assert_eq!(under(10, 10), [10]);
        assert_eq!(under(20, 20), [10]);
        assert_eq!(under(30, 31), [10, 40, 60]);
        assert!(under(50, 10).is_empty());
        assert!(under(u64::MAX - 1, 10).is_empty());
    }
}
