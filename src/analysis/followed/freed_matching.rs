//! Which block each part of a window of changes freed, by what the tables of addresses tell and by what it freed in an earlier iteration.

use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::addressed_changes::group_of;
use crate::analysis::followed::freed_allocations::{
    FreedBlocks, MAX_CHANGES, NumberedBlocks, WindowPart,
};
use crate::model::{FollowedAddresses, Pool};

/// A block that a part of a window freed.
#[derive(Debug)]
pub(super) struct MatchedFree {
    past: u64,
    /// How many blocks were allocated up to that part.
    allocations: u64,
    /// Its pool and its size.
    pub(super) of: (Pool, u64),
    /// Which allocation it was, in an earlier iteration and now.
    before: Option<u64>,
    pub(super) number: Option<u64>,
    /// Whether `number` is known from an earlier iteration.
    is_known: bool,
}

impl MatchedFree {
    /// How many allocations ago the block was allocated.
    fn ago(&self) -> Option<u64> {
        self.allocations.checked_sub(self.number? + 1)
    }

    /// What each part freed, where all of that is told and was not known before.
    pub(super) fn told(frees: &[MatchedFree]) -> Vec<(u64, FreedBlocks)> {
        let parts = frees.chunk_by(|free, next| free.past == next.past);
        let is_new = |part: &&[MatchedFree]| part.iter().any(|free| !free.is_known);
        let told = |part: &[MatchedFree]| {
            let freed: Option<Vec<u64>> = part.iter().map(MatchedFree::ago).collect();
            Some((part.first()?.past, freed?.into()))
        };
        parts.filter(is_new).filter_map(told).collect()
    }
}

/// Which blocks were freed in a window, by what the tables tell.
pub(super) struct Matching {
    pub(super) frees: Vec<MatchedFree>,
    /// Blocks whose addresses were taken back.
    gone: Vec<(u64, BlockGroup)>,
    /// Addresses taken back of which nothing is known.
    pub(super) unknown: usize,
    /// Blocks that the tables do not tell of: they came and went in the window, or have the address of one that was freed.
    hidden: i64,
    /// What was allocated in the window, in order, with how many of the kind have an address.
    made: Vec<(u64, BlockGroup, usize)>,
    /// Whether all that was freed was freed after all that was allocated.
    frees_come_last: bool,
    /// Addresses of blocks that were freed and that the tables have still.
    pub(super) reused: Vec<(u64, BlockGroup)>,
    /// Blocks that came and went.
    pub(super) own: Vec<u64>,
}

impl Matching {
    /// `known` says what a past change freed, as far as that is known. What was freed is taken out of `alive`.
    pub(super) fn find(
        window: &[WindowPart],
        addresses: &FollowedAddresses,
        alive: &mut NumberedBlocks,
        known: impl Fn(u64) -> Option<FreedBlocks>,
    ) -> Matching {
        let mut matching = Matching::new(window, addresses, alive);
        for part in window {
            matching.add_frees(part, known(part.past));
        }
        matching.as_before(alive);
        matching.by_size();
        matching.came_and_went();
        matching
    }

    fn new(
        window: &[WindowPart],
        addresses: &FollowedAddresses,
        alive: &mut NumberedBlocks,
    ) -> Matching {
        let gone: Vec<_> = addresses.freed.iter().filter_map(|at| alive.remove(*at)).collect();
        let unknown = addresses.freed.len() - gone.len();
        let allocated = window.iter().map(WindowPart::allocated).fold(0, i64::saturating_add);
        let told =
            |kind| addresses.allocated.iter().filter(|block| group_of(block) == kind).count();
        let made = window.iter().filter_map(WindowPart::only_allocated);
        let last = window.iter().rposition(|part| part.allocated() > 0);
        let first = window.iter().position(|part| part.freed() > 0);
        Matching {
            frees: Vec::new(),
            gone,
            unknown,
            hidden: allocated.saturating_sub(addresses.allocated.len() as i64),
            made: made.map(|(number, kind)| (number, kind, told(kind))).collect(),
            frees_come_last: last.zip(first).is_none_or(|(last, first)| first > last),
            reused: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Adds what one part freed; `known` is what it freed in an earlier iteration.
    fn add_frees(&mut self, part: &WindowPart, known: Option<FreedBlocks>) {
        let (past, allocations) = (part.past, part.allocations);
        let known = known.filter(|known| known.len() as i64 == part.freed());
        let mut before = known.iter().flat_map(|known| known.iter());
        for (pool, delta) in [Pool::Small, Pool::Large].into_iter().zip(&part.pools) {
            // Of several blocks together the sizes are not known: they may be alike.
            let size = delta.freed_bytes.checked_div(delta.frees).unwrap_or(0).max(0) as u64;
            let room = MAX_CHANGES.saturating_sub(self.frees.len()) as i64;
            for _ in 0..delta.frees.min(room) {
                let before = before.next().and_then(|ago| allocations.checked_sub(ago + 1));
                let of = (pool, size);
                let (number, is_known) = (None, false);
                self.frees.push(MatchedFree { past, allocations, of, before, number, is_known });
            }
        }
    }

    /// What the same changes freed before, they freed now, if the tables do not say otherwise.
    fn as_before(&mut self, alive: &mut NumberedBlocks) {
        for free in &mut self.frees {
            let Some(number) = free.before else { continue };
            let fits = |group: BlockGroup| (group.pool, group.size) == free.of;
            if let Some(at) = self.gone.iter().position(|(n, group)| *n == number && fits(*group)) {
                self.gone.swap_remove(at);
            } else if self.hidden > 0
                && let Some((_, kind, _)) = self.made.iter().find(|(made, ..)| *made == number)
                && fits(*kind)
            {
                self.hidden -= 1;
                self.own.push(number);
            } else if self.hidden > 0
                && let Some((address, group)) = alive.get(number)
                && fits(group)
            {
                self.hidden -= 1;
                alive.remove(address);
                self.reused.push((address, group));
            } else {
                continue;
            }
            (free.number, free.is_known) = (Some(number), true);
        }
    }

    /// Blocks that are freed one after the other: which came first plays no part.
    fn by_size(&mut self) {
        for free in self.frees.iter_mut().filter(|free| free.number.is_none()) {
            let fits = |(number, group): &(u64, BlockGroup)| {
                (group.pool, group.size) == free.of && *number < free.allocations
            };
            if let Some(at) = self.gone.iter().position(fits) {
                free.number = Some(self.gone.swap_remove(at).0);
            }
        }
    }

    /// The only block of which the tables tell nothing, where all frees come behind it.
    fn came_and_went(&mut self) {
        let mut missing =
            self.made.iter().filter(|(number, _, told)| *told == 0 && !self.own.contains(number));
        let (Some((number, kind, _)), None) = (missing.next(), missing.next()) else { return };
        if self.hidden != 1 || !self.frees_come_last {
            return;
        }
        let fits =
            |free: &&mut MatchedFree| free.number.is_none() && free.of == (kind.pool, kind.size);
        if let Some(free) = self.frees.iter_mut().find(fits) {
            free.number = Some(*number);
            self.own.push(*number);
            self.hidden = 0;
        }
    }
}
