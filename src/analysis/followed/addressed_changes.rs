//! Changes of which the tables of the allocator told the addresses: which block each of them
//! allocated and freed is then known, not guessed.
//!
//! The tables are read after the changes of a *window*, most often a single one. What they have and
//! had not before was allocated in the window; what they had and have not any more was freed. Only
//! a block that was freed and allocated, or allocated and freed, at one address within the window
//! is in neither: then the counters have more allocations and frees than the tables tell. If the
//! frees came after the allocations, the block lived within the window; if they came before, it
//! took the address of one that was freed, of its own size or larger, and of which one is told by
//! the rules in `replayed_group.rs`.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::BlockGroup;
use crate::analysis::followed::change_window::{
    SeveralAllocations, Window, WindowChange, WindowFree,
};
use crate::analysis::followed::follow_replay::FollowReplay;
use crate::analysis::followed::freed_groups::PoolFrees;
use crate::analysis::followed::pool_change::{MAX_SMALL_BLOCK, PoolChange, allocated, sole_group};
use crate::analysis::followed::replayed_group::{
    BlockSource, FreeMoment, GroupReplay, ReplayedBlock,
};
use crate::model::{AddressedBlock, FollowedAddresses, Pool};

impl FollowReplay<'_> {
    /// Takes the changes of a window, the last of which `addresses` is told with.
    pub(in crate::analysis) fn addressed_changes(
        &mut self,
        changes: &[WindowChange<'_>],
        addresses: &FollowedAddresses,
    ) {
        self.is_addressed = true;
        let mut window = Window::new(self.changes + 1);
        for change in changes {
            self.take_window_change(change, &mut window);
        }
        let mut by_group: FxHashMap<BlockGroup, Vec<u64>> = FxHashMap::default();
        for block in &addresses.allocated {
            by_group.entry(group_of(block)).or_default().push(block.address);
        }
        addresses.freed.iter().for_each(|address| self.take_back(*address, &mut window));
        addresses.allocated.iter().for_each(|block| self.evict(block.address));
        self.free_hidden(&mut window, &by_group);
        self.give_addresses(&mut window, by_group);
        for pool in [Pool::Small, Pool::Large] {
            self.free_rest(pool, &mut window);
        }
    }

    /// Takes what one change allocated, whose addresses are still to be found, and notes what it
    /// freed.
    fn take_window_change<'a>(&mut self, change: &WindowChange<'a>, window: &mut Window<'a>) {
        let WindowChange { pools, parts } = change;
        self.step += 1;
        if let Some(blocks) = change.blocks_of_parts() {
            return self.take_parts(parts, blocks, window);
        }
        self.changes += 1;
        let last_before = self.last;
        for (number, pool) in pools.iter().enumerate() {
            if pool.delta.allocations <= 0 {
                continue;
            }
            match sole_group(pool) {
                Some((group, count)) => {
                    self.last = Some(self.changes);
                    let replayed = self.groups.entry(group).or_default();
                    for _ in 0..count {
                        replayed.push(self.changes, pool.attribution.clone(), pool.returned);
                    }
                    window.made.push(group);
                }
                None => {
                    let parts = parts.iter().map(|part| part[number]).collect();
                    let change = self.changes;
                    let pool = *pool;
                    window.several.push(SeveralAllocations { change, pool, parts });
                }
            }
        }
        self.note_frees(pools, last_before, window);
    }

    /// Takes a change as the parts that it is likely to have been, which allocated `blocks`: one
    /// after another, so that what one freed is not what a later one allocated.
    fn take_parts<'a>(
        &mut self,
        parts: &[[PoolChange<'a>; 2]],
        blocks: Vec<(BlockGroup, PoolChange<'a>)>,
        window: &mut Window<'a>,
    ) {
        let mut blocks = blocks.into_iter();
        for part in parts {
            self.changes += 1;
            let last_before = self.last;
            for (group, pool) in blocks.by_ref().take(allocated(part) as usize) {
                self.last = Some(self.changes);
                let replayed = self.groups.entry(group).or_default();
                replayed.push(self.changes, pool.attribution.clone(), None);
                window.made.push(group);
            }
            self.note_frees(part, last_before, window);
        }
    }

    /// Notes what the change that was taken last freed.
    fn note_frees<'a>(
        &self,
        pools: &[PoolChange<'a>; 2],
        last_before: Option<usize>,
        window: &mut Window<'a>,
    ) {
        for pool in pools.iter().filter(|pool| pool.delta.frees > 0) {
            let (change, step, last) = (self.changes, self.step, self.last);
            let left = pool.delta;
            window.note_free(WindowFree { change, step, last, last_before, pool: *pool, left });
        }
    }

    /// Gives the blocks that the window allocated their addresses.
    fn give_addresses(
        &mut self,
        window: &mut Window<'_>,
        by_group: FxHashMap<BlockGroup, Vec<u64>>,
    ) {
        for (group, mut addresses) in by_group {
            let replayed = self.groups.entry(group).or_default();
            let mut made = unplaced(replayed, window.first);
            let missing = addresses.len().saturating_sub(made.len());
            let hidden = made.len().saturating_sub(addresses.len());
            // The youngest are alive, if not all are.
            made.drain(..hidden);
            for (at, address) in made.into_iter().zip(addresses.drain(..addresses.len() - missing))
            {
                self.places.insert(address, group);
                if let Some(block) = replayed.live.get_mut(at) {
                    block.given = Some(address);
                }
            }
            for address in addresses {
                self.give_late(group, address, window);
            }
        }
    }

    /// Gives an address to a block that was allocated together with others, or of which the bytes
    /// asked for were not counted yet.
    fn give_late(&mut self, group: BlockGroup, address: u64, window: &mut Window<'_>) {
        if let Some((change, charge)) = window.take_of_several(group) {
            let replayed = self.groups.entry(group).or_default();
            replayed.push(change, charge, None);
            self.last = self.last.max(Some(change));
        } else {
            let is_like = |made: &&BlockGroup| (made.size, made.pool) == (group.size, group.pool);
            let block = window.made.iter().filter(is_like).find_map(|made| {
                let replayed = self.groups.get_mut(made)?;
                let at = *unplaced(replayed, window.first).first()?;
                Some(replayed.live.remove(at))
            });
            let Some(block) = block else { return };
            self.groups.entry(group).or_default().live.push(block);
        }
        if let Some(block) =
            self.groups.get_mut(&group).and_then(|of_group| of_group.live.last_mut())
        {
            block.given = Some(address);
            self.places.insert(address, group);
        }
    }

    /// A block is new: what was at its address was freed.
    fn evict(&mut self, address: u64) {
        let Some(group) = self.places.remove(&address) else { return };
        let Some(replayed) = self.groups.get_mut(&group) else { return };
        if let Some(at) = replayed.at_address(address) {
            replayed.remove(at, [None; 2], 0);
        }
    }

    /// An address was taken back: what was there was freed in the window.
    fn take_back(&mut self, address: u64, window: &mut Window<'_>) {
        let Some(group) = self.places.remove(&address) else { return };
        let Some(replayed) = self.groups.get_mut(&group) else { return };
        let Some(at) = replayed.at_address(address) else { return };
        window.found(group);
        let freed = window.take_free(group);
        let (site, time) =
            freed.map_or(([None; 2], 0), |of| (of.pool.site, of.pool.attribution.allocated_at));
        if let Some(WindowFree { step, last, .. }) = freed {
            let usual = self.sites.usual(group, &site);
            let youngest = self.sites.youngest;
            let moment = FreeMoment { change: step, time, site, usual, last, youngest };
            replayed.check(at, &moment, &mut self.checked);
        }
        replayed.remove(at, site, time);
    }

    /// Frees what the tables do not tell of: of each group, as many blocks as were allocated and
    /// have no new address.
    fn free_hidden(&mut self, window: &mut Window<'_>, by_group: &FxHashMap<BlockGroup, Vec<u64>>) {
        let mut made = window.made.clone();
        made.sort_unstable();
        made.dedup();
        for group in made {
            let Some(replayed) = self.groups.get_mut(&group) else { continue };
            let new = by_group.get(&group).map_or(0, Vec::len);
            let count = unplaced(replayed, window.first).len().saturating_sub(new);
            for _ in 0..count {
                if !window.may_hide(group) || self.free_one_hidden(group, window).is_none() {
                    break;
                }
                window.found(group);
            }
        }
    }

    /// Frees one block of a group of which the window allocated more than have new addresses: one
    /// of these that lived within the window, or an older one whose address one of these has now.
    /// `None` if none can be.
    fn free_one_hidden(&mut self, group: BlockGroup, window: &mut Window<'_>) -> Option<()> {
        let freed = window.take_free(group)?;
        let replayed = self.groups.get_mut(&group)?;
        let is_later = |block: &ReplayedBlock| match block.from {
            BlockSource::Change(change) => change >= freed.change && block.given.is_none(),
            BlockSource::Snapshot(_) => false,
        };
        let first = replayed.live.iter().position(is_later).unwrap_or(replayed.live.len());
        let mut later = replayed.live.split_off(first);
        // Where there is no older one, it was freed in the change that allocated it.
        let is_own = |block: &ReplayedBlock| block.from == BlockSource::Change(freed.change);
        if replayed.live.is_empty() && later.first().is_some_and(is_own) {
            replayed.live.push(later.remove(0));
        }
        // Without an allocation of its group after it, it most likely was one of the window's own.
        let mut older = Vec::new();
        if later.is_empty() {
            let own = match unplaced(replayed, window.first).first().copied() {
                Some(own) => replayed.live.split_off(own),
                // Or one of which the address is not known.
                None => {
                    let all = std::mem::take(&mut replayed.live);
                    let (own, rest) = all.into_iter().partition(|b| b.address().is_none());
                    replayed.live = rest;
                    own
                }
            };
            older = std::mem::replace(&mut replayed.live, own);
        }
        let in_same_change = later.first().is_some_and(is_own);
        let site = freed.pool.site;
        let moment = FreeMoment {
            change: freed.step,
            time: freed.pool.attribution.allocated_at,
            site,
            usual: self.sites.usual(group, &site),
            youngest: self.sites.youngest,
            last: if in_same_change { freed.last_before } else { freed.last },
        };
        let chosen = replayed.choose(&moment).map(|at| {
            let address = replayed.live.get(at).and_then(ReplayedBlock::address);
            replayed.remove(at, site, moment.time);
            address
        });
        older.append(&mut replayed.live);
        let taker = older.len();
        older.extend(later);
        replayed.live = older;
        replayed.live.sort_by_key(|block| match block.from {
            BlockSource::Snapshot(_) => (0, block.attribution.allocated_at),
            BlockSource::Change(change) => (change, 0),
        });
        // Without one it lived within the window.
        let Some(address) = chosen? else { return Some(()) };
        match replayed.live.get_mut(taker) {
            Some(taker) => taker.given = Some(address),
            None => drop(self.places.remove(&address)),
        }
        Some(())
    }

    /// Frees what is left of the window: what was allocated several at once and freed, or blocks
    /// whose addresses such allocations have now.
    fn free_rest(&mut self, pool: Pool, window: &mut Window<'_>) {
        let Some(first) = window.first_free(pool).map(|freed| freed.change) else { return };
        let left = *window.hidden(pool);
        if left.frees < 0 || left.freed_bytes < 0 {
            return;
        }
        let frees = PoolFrees::new(pool, &left);
        for group in self.freed_groups(pool, &frees) {
            // An allocation of several at once has its address now.
            if let Some((change, charge)) = window.take_of_several(group) {
                let replayed = self.groups.entry(group).or_default();
                replayed.push(change, charge, None);
            }
            self.free_one_hidden(group, window);
        }
        // What is left of several at once was not freed either.
        while let Some((group, change, charge)) = window.take_rest_of_several(pool, first) {
            self.groups.entry(group).or_default().push(change, charge, None);
        }
    }
}

/// The kind of a block that the tables tell.
pub(super) fn group_of(block: &AddressedBlock) -> BlockGroup {
    let pool = if block.size <= MAX_SMALL_BLOCK { Pool::Small } else { Pool::Large };
    BlockGroup { size: block.size, requested: block.requested, pool }
}

/// The blocks that were allocated from change `first` on and have no address, from the oldest to
/// the youngest.
fn unplaced(of_group: &GroupReplay, first: usize) -> Vec<usize> {
    let is_new = |block: &ReplayedBlock| match block.from {
        BlockSource::Change(change) => change >= first,
        BlockSource::Snapshot(_) => false,
    };
    let new = of_group.live.iter().enumerate().rev().take_while(|(_, block)| is_new(block));
    let mut unplaced: Vec<usize> =
        new.filter(|(_, block)| block.given.is_none()).map(|(at, _)| at).collect();
    unplaced.reverse();
    unplaced
}
