//! Which allocation each free freed, counted back in allocations: the same in each iteration.
//!
//! Where the addresses were read after a change, they tell which block it freed. Kept with the change
//! (`repeated_steps.rs`), the distance in allocations tells it again in a later iteration, where several changes were seen as one
//! and blocks that are alike cannot be told apart.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::addressed_changes::group_of;
use crate::analysis::followed::change_origins::allocated_kind;
use crate::analysis::followed::freed_matching::{MatchedFree, Matching};
use crate::analysis::followed::repeated_steps::PoolDeltas;
use crate::model::{AddressedBlock, FollowedAddresses, Pool};

/// Blocks remembered by address.
const MAX_BLOCKS: usize = 1 << 17;
/// Changes remembered until addresses are read, and blocks freed in them.
pub(super) const MAX_CHANGES: usize = 1 << 12;

/// How many allocations ago each block was allocated that a change freed: 0 is the last one up to that change.
pub(super) type FreedBlocks = Arc<[u64]>;

/// Takes the changes of one device and what was read of its addresses.
#[derive(Debug, Default)]
pub(super) struct FreedAllocations {
    /// How many blocks were allocated.
    allocations: u64,
    alive: NumberedBlocks,
    /// The changes since addresses were read last, one by one.
    window: Vec<WindowPart>,
    /// How many there were, those of several blocks counted once.
    changes: u32,
}

/// Which allocation is at each address, and of which kind it is, where that is known.
#[derive(Debug, Default)]
pub(super) struct NumberedBlocks {
    blocks: FxHashMap<u64, (u64, BlockGroup)>,
    /// The address of each allocation.
    addresses: FxHashMap<u64, u64>,
}

impl NumberedBlocks {
    pub(super) fn insert(&mut self, address: u64, number: u64, group: BlockGroup) {
        self.remove(address);
        self.blocks.insert(address, (number, group));
        self.addresses.insert(number, address);
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<(u64, BlockGroup)> {
        let block = self.blocks.remove(&address)?;
        self.addresses.remove(&block.0);
        Some(block)
    }

    /// The block of this number, with its address.
    pub(super) fn get(&self, number: u64) -> Option<(u64, BlockGroup)> {
        let address = *self.addresses.get(&number)?;
        self.blocks.get(&address).map(|(_, group)| (address, *group))
    }

    /// Any block of this pool and size may be another one now.
    pub(super) fn forget_alike(&mut self, pool: Pool, size: u64) {
        self.blocks.retain(|_, (number, group)| {
            let stays = (group.pool, group.size) != (pool, size);
            if !stays {
                self.addresses.remove(number);
            }
            stays
        });
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.addresses.clear();
    }
}

/// A change, or a part of one, since addresses were read last.
#[derive(Debug)]
pub(super) struct WindowPart {
    /// Its number among the past changes.
    pub(super) past: u64,
    pub(super) pools: PoolDeltas,
    /// How many blocks were allocated up to it.
    pub(super) allocations: u64,
}

impl WindowPart {
    pub(super) fn allocated(&self) -> i64 {
        self.pools[0].allocations.saturating_add(self.pools[1].allocations)
    }

    pub(super) fn freed(&self) -> i64 {
        self.pools[0].frees.saturating_add(self.pools[1].frees)
    }

    /// The only block that it allocated.
    pub(super) fn only_allocated(&self) -> Option<(u64, BlockGroup)> {
        let kind = allocated_kind(&self.pools[0], &self.pools[1])?;
        Some((self.allocations.checked_sub(1)?, kind))
    }
}

impl FreedAllocations {
    /// How many blocks were allocated until now.
    pub(super) fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Takes one change, or the next part of one, which is kept as change `past`.
    pub(super) fn add(&mut self, past: u64, pools: &PoolDeltas) {
        let allocated = pools.iter().map(|pool| pool.allocations.max(0) as u64);
        self.allocations = allocated.fold(self.allocations, u64::saturating_add);
        if self.window.len() == MAX_CHANGES {
            self.forget();
        }
        self.window.push(WindowPart { past, pools: *pools, allocations: self.allocations });
    }

    /// A change is complete. Gives what was freed in the changes since the last reading of addresses where `addresses` were read after this one and tell it.
    /// `known` says what a past change freed, as far as that is known already.
    pub(super) fn complete(
        &mut self,
        addresses: Option<&FollowedAddresses>,
        known: impl Fn(u64) -> Option<FreedBlocks>,
    ) -> Vec<(u64, FreedBlocks)> {
        self.changes = self.changes.saturating_add(1);
        let Some(addresses) = addresses else { return Vec::new() };
        let changes = std::mem::take(&mut self.changes);
        let window = std::mem::take(&mut self.window);
        if addresses.changes != changes || self.alive.blocks.len() > MAX_BLOCKS {
            self.alive.clear();
            return Vec::new();
        }
        self.read(&window, addresses, known)
    }

    /// Changes are missing.
    pub(super) fn forget(&mut self) {
        self.alive.clear();
        self.window.clear();
        self.changes = 0;
    }

    /// Takes what was read of the addresses after the changes of a window.
    fn read(
        &mut self,
        window: &[WindowPart],
        addresses: &FollowedAddresses,
        known: impl Fn(u64) -> Option<FreedBlocks>,
    ) -> Vec<(u64, FreedBlocks)> {
        let Matching { frees, reused, unknown, own, .. } =
            Matching::find(window, addresses, &mut self.alive, known);
        let untold: Vec<(Pool, u64)> =
            frees.iter().filter(|free| free.number.is_none()).map(|free| free.of).collect();
        // Else they are those at the addresses of which nothing is known.
        if untold.len() != unknown {
            untold.into_iter().for_each(|(pool, size)| self.alive.forget_alike(pool, size));
        }
        self.place(window, &addresses.allocated, |number| !own.contains(&number));
        for (address, group) in reused {
            let is_new = addresses.allocated.iter().any(|new| new.address == address);
            let mut takers =
                window.iter().filter_map(WindowPart::only_allocated).filter(|(n, kind)| {
                    *kind == group && !own.contains(n) && self.alive.get(*n).is_none()
                });
            if let (false, Some((number, _)), None) = (is_new, takers.next(), takers.next()) {
                self.alive.insert(address, number, group);
            }
        }
        MatchedFree::told(&frees)
    }

    /// Notes which allocation has which address, where that is clear; `lives` says of which is not known that they were freed again.
    fn place(
        &mut self,
        window: &[WindowPart],
        allocated: &[AddressedBlock],
        lives: impl Fn(u64) -> bool,
    ) {
        let made = || window.iter().filter(|part| part.allocated() > 0);
        let is_clear = made().all(|part| part.only_allocated().is_some());
        for block in allocated {
            self.alive.remove(block.address);
            let kind = group_of(block);
            let alike = allocated.iter().filter(|other| group_of(other) == kind).count();
            let mut of_kind = made()
                .filter_map(WindowPart::only_allocated)
                .filter(|(number, made)| *made == kind && lives(*number));
            if let (true, 1, Some((number, _)), None) =
                (is_clear, alike, of_kind.next(), of_kind.next())
            {
                self.alive.insert(block.address, number, kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::followed::pool_change::MIN_BLOCK;
    use crate::model::CounterDelta;

    fn pools(allocations: i64, frees: i64) -> PoolDeltas {
        let bytes = |count: i64| count * MIN_BLOCK as i64;
        let small = CounterDelta {
            allocations,
            frees,
            allocated_bytes: bytes(allocations),
            freed_bytes: bytes(frees),
            requested_bytes: bytes(allocations),
            freed_requested_bytes: bytes(frees),
        };
        [small, CounterDelta::default()]
    }

    fn addresses(changes: u32, allocated: &[u64], freed: &[u64]) -> FollowedAddresses {
        let block =
            |&address: &u64| AddressedBlock { address, size: MIN_BLOCK, requested: MIN_BLOCK };
        let allocated = allocated.iter().map(block).collect();
        FollowedAddresses { changes, allocated, freed: freed.to_vec() }
    }

    /// Takes changes, each with its number and what it did, and what was read after them; nothing is known of earlier iterations but `known`.
    fn take(
        freed: &mut FreedAllocations,
        changes: &[(u64, i64, i64)],
        read: FollowedAddresses,
        known: &[(u64, u64)],
    ) -> Vec<(u64, Vec<u64>)> {
        let known = |past: u64| {
            let (_, ago) = known.iter().find(|(number, _)| *number == past)?;
            Some(FreedBlocks::from([*ago]))
        };
        let mut told = Vec::new();
        for (at, &(number, allocations, frees)) in changes.iter().enumerate() {
            freed.add(number, &pools(allocations, frees));
            let read = Some(&read).filter(|_| at + 1 == changes.len());
            told.extend(freed.complete(read, known));
        }
        told.into_iter().map(|(number, ago)| (number, ago.to_vec())).collect()
    }

    #[test]
    fn an_address_that_was_taken_back_tells_how_long_ago_its_block_was_allocated() {
        let mut freed = FreedAllocations::default();
        take(&mut freed, &[(0, 1, 0)], addresses(1, &[10], &[]), &[]);
        take(&mut freed, &[(1, 1, 0)], addresses(1, &[20], &[]), &[]);
        let told = take(&mut freed, &[(2, 0, 1)], addresses(1, &[], &[10]), &[]);
        assert_eq!(told, [(2, vec![1])]);
        let told = take(&mut freed, &[(3, 0, 1)], addresses(1, &[], &[10]), &[]);
        assert_eq!(told, [], "it is not known what was there");
    }

    #[test]
    fn a_block_that_the_tables_never_had_was_freed_if_nothing_came_after_the_free() {
        let mut freed = FreedAllocations::default();
        let told = take(&mut freed, &[(0, 1, 0), (1, 0, 1)], addresses(2, &[], &[]), &[]);
        assert_eq!(told, [(1, vec![0])]);
    }

    /// The address of a block that was freed is another one's now, and the tables do not tell.
    #[test]
    fn an_address_that_may_be_another_blocks_now_tells_nothing_unless_an_earlier_iteration_does() {
        for known in [&[][..], &[(2, 1)]] {
            let mut freed = FreedAllocations::default();
            take(&mut freed, &[(0, 1, 0)], addresses(1, &[10], &[]), &[]);
            take(&mut freed, &[(1, 1, 0)], addresses(1, &[20], &[]), &[]);
            take(&mut freed, &[(2, 0, 1), (3, 1, 0)], addresses(2, &[], &[]), known);
            let told = take(&mut freed, &[(4, 0, 1)], addresses(1, &[], &[10]), &[]);
            let expected = if known.is_empty() { vec![] } else { vec![(4, vec![0])] };
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn where_readings_are_missing_nothing_is_known() {
        let mut freed = FreedAllocations::default();
        take(&mut freed, &[(0, 1, 0)], addresses(1, &[10], &[]), &[]);
        take(&mut freed, &[(1, 1, 0), (2, 1, 0)], addresses(1, &[20], &[]), &[]);
        let told = take(&mut freed, &[(3, 0, 1)], addresses(1, &[], &[10]), &[]);
        assert_eq!(told, []);
    }
}
