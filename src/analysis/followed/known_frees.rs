//! Changes of which is known from earlier iterations which blocks they freed (`freed_allocations.rs`), where the tables of addresses do not tell it.
//!
//! What was allocated and freed in a window of changes is replayed in order, without addresses. That is accepted only if it comes to what the tables
//! say after it: each address that was taken back was one of a block that was freed, each that was given out is for a block that is alive, and what is
//! alive beyond that has the address of one that was freed.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::block_attribution::BlockAttribution;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::addressed_changes::group_of;
use crate::analysis::followed::change_window::{Window, WindowChange};
use crate::analysis::followed::follow_replay::FollowReplay;
use crate::analysis::followed::free_sites::FreeSite;
use crate::analysis::followed::pool_change::{PoolChange, allocated, sole_group};
use crate::analysis::followed::replayed_group::{GivenAddress, ReplayedBlock};
use crate::model::{FollowedAddresses, Pool};

/// With more blocks allocated and freed in a window the tables' word is taken as it is.
const MAX_BLOCKS: u64 = 1 << 12;

/// What happened in a window.
#[derive(Default)]
struct Course<'a> {
    made: Vec<MadeBlock<'a>>,
    freed: Vec<PlannedFree>,
    /// Of the recording, up to its end.
    allocations: u64,
}

/// A block that was allocated in it.
struct MadeBlock<'a> {
    group: BlockGroup,
    number: u64,
    /// The number of the change.
    change: usize,
    attribution: &'a Arc<BlockAttribution>,
    returned: Option<(usize, usize)>,
}

/// One that was freed in it.
struct PlannedFree {
    group: BlockGroup,
    number: u64,
    site: FreeSite,
    time: u64,
}

impl Course<'_> {
    fn frees(&self, number: u64) -> bool {
        self.freed.iter().any(|freed| freed.number == number)
    }
}

/// Two blocks of one kind whose addresses are the other way round: the one at this address, and the one of this number.
type SwappedBlocks = (BlockGroup, u64, u64);

impl FollowReplay<'_> {
    /// The group of an allocation of the recording that is alive.
    fn alive_group(&self, number: u64) -> Option<BlockGroup> {
        let group = *self.numbered.get(&number)?;
        self.groups.get(&group)?.numbered(number).map(|_| group)
    }

    /// The blocks that a change freed in one pool, if it did what it did in an earlier iteration and they are alive.
    pub(super) fn freed_before(&self, change: &PoolChange<'_>) -> Option<Vec<(BlockGroup, u64)>> {
        let block = |ago: &u64| {
            let number = self.allocations.checked_sub(ago + 1)?;
            Some((self.alive_group(number)?, number))
        };
        let mut freed: Vec<_> = change.freed?.iter().map(block).collect::<Option<_>>()?;
        freed.retain(|(group, _)| group.pool == change.pool);
        let sizes = freed.iter().map(|(group, _)| group.size);
        let bytes = sizes.fold(0, u64::saturating_add);
        let fits =
            freed.len() as i64 == change.delta.frees && bytes as i64 == change.delta.freed_bytes;
        fits.then_some(freed)
    }

    /// Frees one of them.
    pub(super) fn free_numbered(
        &mut self,
        group: BlockGroup,
        number: u64,
        change: &PoolChange<'_>,
    ) {
        let Some(replayed) = self.groups.get_mut(&group) else { return };
        let Some(at) = replayed.numbered(number) else { return };
        replayed.reused |= replayed.last == Some(self.changes);
        replayed.open_addresses();
        replayed.remove(at, change.site, change.attribution.allocated_at, false);
    }

    /// Takes the changes of a window as what they were in an earlier iteration; `false` where that is not known, or does not agree with the tables.
    pub(super) fn known_window(
        &mut self,
        changes: &[WindowChange<'_>],
        addresses: &FollowedAddresses,
    ) -> bool {
        if has_too_many_blocks(changes) {
            return false;
        }
        let made = sum(changes, allocated);
        // Else the tables tell all.
        let is_hidden = made > addresses.allocated.len() as u64
            || changes.iter().any(|change| !change.parts.is_empty());
        if !is_hidden || addresses.changes as usize != changes.len() {
            return false;
        }
        let Some(course) = self.course(changes) else { return false };
        let Some(swapped) = self.agree(&course, addresses) else { return false };
        self.step += changes.len();
        self.changes += changes.len();
        self.take_course(&course, &swapped, addresses);
        true
    }

    /// Frees what the changes of a window freed as in an earlier iteration, as far as the tables do not tell it; `allocations` is how many blocks were
    /// allocated before the window, `taken_back` what is freed already. Gives the addresses of those that had one.
    pub(super) fn free_known(
        &mut self,
        changes: &[WindowChange<'_>],
        mut allocations: u64,
        taken_back: &[BlockGroup],
        window: &mut Window<'_>,
    ) -> Vec<(u64, BlockGroup)> {
        if has_too_many_blocks(changes) {
            return Vec::new();
        }
        let parts = || changes.iter().flat_map(WindowChange::one_by_one);
        // Of blocks that are alike, others may have been at the addresses that were taken back.
        let mut left: FxHashMap<(Pool, u64), i64> = FxHashMap::default();
        for pool in parts().flatten().filter(|pool| pool.delta.frees > 0) {
            let size = pool.delta.freed_bytes.max(0) / pool.delta.frees;
            let left = left.entry((pool.pool, size as u64)).or_default();
            *left = left.saturating_add(pool.delta.frees);
        }
        for group in taken_back {
            *left.entry((group.pool, group.size)).or_default() -= 1;
        }
        let mut reused = Vec::new();
        for part in parts() {
            allocations = allocations.saturating_add(allocated(part));
            let known = part[0].freed.filter(|known| known.len() as u64 == freed(part));
            for ago in known.into_iter().flatten() {
                let number = allocations.checked_sub(ago + 1);
                let block = number.and_then(|number| Some((self.alive_group(number)?, number)));
                let Some((group, number)) = block else { continue };
                let change = &part[usize::from(group.pool == Pool::Large)];
                let size = group.size as i64;
                let is_one = size.checked_mul(change.delta.frees) == Some(change.delta.freed_bytes);
                let has_room = is_one && window.may_hide(group);
                let left = left.get_mut(&(group.pool, group.size));
                let Some(left) = left.filter(|left| **left > 0 && has_room) else { continue };
                let (site, time) = (change.site, change.attribution.allocated_at);
                let freed = PlannedFree { group, number, site, time };
                reused.extend(self.free_planned(&freed, &[]));
                window.take_free(group);
                window.found(group);
                *left -= 1;
            }
        }
        reused
    }

    /// What happened in the changes, in order.
    fn course<'a>(&self, changes: &[WindowChange<'a>]) -> Option<Course<'a>> {
        let mut course = Course { allocations: self.allocations, ..Course::default() };
        for (nth, change) in changes.iter().enumerate() {
            let number = self.changes + 1 + nth;
            for part in change.one_by_one() {
                self.add_part(&mut course, part, number)?;
            }
        }
        Some(course)
    }

    fn add_part<'a>(
        &self,
        course: &mut Course<'a>,
        part: &[PoolChange<'a>; 2],
        change: usize,
    ) -> Option<()> {
        if part.iter().any(|pool| pool.is_open) {
            return None;
        }
        for pool in part.iter().filter(|pool| pool.delta.allocations > 0) {
            let (group, count) = sole_group(pool)?;
            // Of blocks that are not alike the order is not known.
            if count as u64 != allocated(part) {
                return None;
            }
            for nth in 0..count as u64 {
                let (attribution, returned) = (pool.attribution, pool.returned);
                let number = course.allocations.saturating_add(nth);
                course.made.push(MadeBlock { group, number, change, attribution, returned });
            }
        }
        course.allocations = course.allocations.saturating_add(allocated(part));
        let wanted = freed(part);
        if wanted == 0 {
            return Some(());
        }
        let mut bytes = [0_i64; 2];
        for ago in part[0].freed.filter(|freed| freed.len() as u64 == wanted)? {
            let number = course.allocations.checked_sub(ago + 1)?;
            let group = match course.made.iter().find(|made| made.number == number) {
                Some(made) => made.group,
                None => self.alive_group(number)?,
            };
            if course.frees(number) {
                return None;
            }
            let of_pool = usize::from(group.pool == Pool::Large);
            bytes[of_pool] = bytes[of_pool].saturating_add(group.size as i64);
            let PoolChange { site, attribution, .. } = &part[of_pool];
            let (site, time) = (*site, attribution.allocated_at);
            course.freed.push(PlannedFree { group, number, site, time });
        }
        let fits = part.iter().zip(bytes).all(|(pool, bytes)| pool.delta.freed_bytes == bytes);
        fits.then_some(())
    }

    /// Whether what happened comes to what the tables say: if so, which blocks have each other's addresses.
    fn agree(
        &self,
        course: &Course<'_>,
        addresses: &FollowedAddresses,
    ) -> Option<Vec<SwappedBlocks>> {
        let gone: FxHashSet<u64> = addresses.freed.iter().copied().collect();
        // The blocks of before that were freed, with their addresses.
        let mut older = Vec::new();
        for freed in &course.freed {
            if let Some(replayed) = self.groups.get(&freed.group)
                && let Some(at) = replayed.numbered(freed.number)
            {
                older.push((freed, &replayed.live[at]));
            }
        }
        let mut swapped: Vec<SwappedBlocks> = Vec::new();
        let mut unknown = 0;
        for address in &addresses.freed {
            let block = self.places.get(*address).and_then(|group| {
                let replayed = self.groups.get(&group)?;
                Some((group, &replayed.live[replayed.at_address(*address)?]))
            });
            let Some((group, block)) = block else {
                unknown += 1;
                continue;
            };
            if block.number.is_some_and(|number| course.frees(number)) {
                continue;
            }
            let is_other = |(freed, other): &&(&PlannedFree, &ReplayedBlock)| {
                freed.group == group
                    && other.is_from_map() == block.is_from_map()
                    && other.address().is_some_and(|at| !gone.contains(&at))
                    && !swapped.iter().any(|(_, _, number)| *number == freed.number)
            };
            let (other, _) = older.iter().find(is_other)?;
            swapped.push((group, *address, other.number));
        }
        let is_at = |address: u64| older.iter().any(|(_, block)| block.address() == Some(address));
        let mut new: FxHashMap<BlockGroup, usize> = FxHashMap::default();
        for block in &addresses.allocated {
            let is_freed = |(address, group): (u64, BlockGroup)| {
                !is_at(address) && (address == block.address || self.unplaced.has(group))
            };
            if self.places.under(block).any(is_freed) {
                return None;
            }
            *new.entry(group_of(block)).or_default() += 1;
        }
        let alive = || course.made.iter().filter(|made| !course.frees(made.number));
        let has_all = |(group, new): (&BlockGroup, &usize)| {
            alive().filter(|made| made.group == *group).count() >= *new
        };
        let beyond = alive().count().checked_sub(addresses.allocated.len())?;
        let homeless = older.iter().filter(|(_, block)| block.address().is_none()).count();
        let told = addresses.freed.len() - unknown;
        let reused = (older.len() - homeless).checked_sub(told)?;
        let agrees =
            new.iter().all(has_all) && unknown <= homeless && beyond <= reused + homeless - unknown;
        agrees.then_some(swapped)
    }

    fn take_course(
        &mut self,
        course: &Course<'_>,
        swapped: &[SwappedBlocks],
        addresses: &FollowedAddresses,
    ) {
        self.is_addressed = true;
        for &(group, address, number) in swapped {
            self.swap_addresses(group, address, number);
        }
        for made in &course.made {
            let replayed = self.groups.entry(made.group).or_default();
            replayed.push(made.change, made.attribution.clone(), made.returned);
            replayed.last = Some(made.change);
            self.number_last(made.group, made.number);
            self.last = Some(made.change);
        }
        self.allocations = course.allocations;
        let mut reused = Vec::new();
        for freed in &course.freed {
            reused.extend(self.free_planned(freed, &addresses.freed));
        }
        for block in &addresses.allocated {
            self.give(course, block.address, group_of(block), |made, group| made == group);
            reused.retain(|(address, _)| *address != block.address);
        }
        for is_alike in [true, false] {
            reused.retain(|(address, group)| {
                let takes = |made: BlockGroup, of: BlockGroup| match is_alike {
                    true => made == of,
                    false => made.pool == of.pool && made.size <= of.size,
                };
                !self.give(course, *address, *group, takes)
            });
        }
        // What nothing is known of the address of counts as any other allocation.
        for made in &course.made {
            let Some(replayed) = self.groups.get_mut(&made.group) else { continue };
            let Some(at) = replayed.numbered(made.number) else { continue };
            if replayed.live[at].given.is_none() {
                replayed.count(made.attribution);
            }
        }
    }

    /// Frees a block; `taken_back` are addresses that were. Gives the address that it had if that was not taken back: another block has it.
    fn free_planned(
        &mut self,
        freed: &PlannedFree,
        taken_back: &[u64],
    ) -> Option<(u64, BlockGroup)> {
        let replayed = self.groups.get_mut(&freed.group)?;
        let at = replayed.numbered(freed.number)?;
        let address = replayed.live[at].address();
        let is_seen = address.is_some_and(|address| taken_back.contains(&address));
        replayed.doubt();
        replayed.remove(at, freed.site, freed.time, is_seen);
        self.places.remove(address?);
        address.filter(|_| !is_seen).map(|address| (address, freed.group))
    }

    /// Gives an address to the first block of the window that has none and that `takes` it.
    fn give(
        &mut self,
        course: &Course<'_>,
        address: u64,
        of: BlockGroup,
        takes: impl Fn(BlockGroup, BlockGroup) -> bool,
    ) -> bool {
        for made in course.made.iter().filter(|made| takes(made.group, of)) {
            let Some(replayed) = self.groups.get_mut(&made.group) else { continue };
            let Some(at) = replayed.numbered(made.number) else { continue };
            if replayed.live[at].given.is_none() {
                replayed.live[at].given = Some(GivenAddress { address, is_sure: false });
                self.places.insert(address, made.group);
                return true;
            }
        }
        false
    }

    /// Which of two blocks that are alike had which address was a guess.
    fn swap_addresses(&mut self, group: BlockGroup, address: u64, number: u64) {
        let Some(replayed) = self.groups.get_mut(&group) else { return };
        let (Some(at), Some(other)) = (replayed.at_address(address), replayed.numbered(number))
        else {
            return;
        };
        let Ok([one, other]) = replayed.live.get_disjoint_mut([at, other]) else { return };
        if one.is_from_map() {
            std::mem::swap(&mut one.from, &mut other.from);
            std::mem::swap(&mut one.is_gone, &mut other.is_gone);
        } else {
            std::mem::swap(&mut one.given, &mut other.given);
            for given in [&mut one.given, &mut other.given].into_iter().flatten() {
                given.is_sure = false;
            }
        }
    }
}

/// Of all changes of a window together.
fn sum(changes: &[WindowChange<'_>], of: fn(&[PoolChange<'_>]) -> u64) -> u64 {
    changes.iter().map(|change| of(&change.pools)).fold(0, u64::saturating_add)
}

/// Whether to go through a window block by block would take too long.
fn has_too_many_blocks(changes: &[WindowChange<'_>]) -> bool {
    sum(changes, allocated).saturating_add(sum(changes, freed)) > MAX_BLOCKS
}

/// How many blocks a change freed in both pools.
fn freed(change: &[PoolChange<'_>]) -> u64 {
    change.iter().map(|pool| pool.delta.frees.max(0) as u64).sum()
}
