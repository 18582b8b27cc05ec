//! One followed change, with who is charged for what it allocated, by what is known of it so far.

use std::sync::Arc;

use super::allocated_totals::AllocatedTotals;
use super::allocation_places::ReachSums;
use super::buffer_alignment::MadeBuffer;
use super::change_origins::allocated_kind;
use super::free_sites::FreeSite;
use super::kind_origins::{KindOrigins, Sighting};
use super::pool_change::{MAX_SMALL_BLOCK, MIN_BLOCK};
use super::repeated_steps::{PastPart, PoolDeltas, allocates, set_frees};
use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};
use crate::model::{CounterDelta, FollowedAddresses};

/// One change, with who is charged for what it allocated.
#[derive(Debug, Clone)]
pub(super) struct FollowedStep {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) small: CounterDelta,
    pub(super) large: CounterDelta,
    pub(super) live: [i64; 2],
    /// Whether the amounts are only lower limits.
    pub(super) open: bool,
    /// Whether two polls, which were near, saw the only thread of those charged at one stack.
    pub(super) stayed: bool,
    /// The block that it allocated, if it was one, whatever it freed.
    pub(super) allocated: Option<BlockGroup>,
    pub(super) places: ReachSums,
    pub(super) sighting: Sighting,
    /// What it most likely was, where it was several blocks.
    pub(super) parts: Option<Vec<PastPart<PastStep>>>,
    pub(super) charge: Arc<BlockAttribution>,
    pub(super) site: FreeSite,
    /// In which changes, by number, the frame that allocated in it can have dropped its variables when it returned.
    pub(super) returned: Option<(u64, u64)>,
    /// The addresses that were read after it.
    pub(super) addresses: Option<Arc<FollowedAddresses>>,
}

impl FollowedStep {
    /// How many blocks it allocated in both pools.
    pub(super) fn allocations(&self) -> i64 {
        self.small.allocations.saturating_add(self.large.allocations)
    }

    /// Whom it is charged to by what is known by now (rule 7).
    pub(super) fn charge_by(&self, origins: &KindOrigins) -> Arc<BlockAttribution> {
        let kind = self.allocated;
        let likely =
            kind.and_then(|kind| origins.likely(kind, &self.places, &self.charge, self.sighting));
        likely.unwrap_or_else(|| self.charge.clone())
    }

    pub(super) fn charged(&self, origins: &KindOrigins) -> ChargedStep {
        ChargedStep { charge: self.charge_by(origins), parts: self.parts_by(origins) }
    }

    /// The same of what it most likely was, where it was several blocks.
    pub(super) fn parts_by(&self, origins: &KindOrigins) -> Option<Vec<ChargedPart>> {
        let of_part = |part: &PastPart<PastStep>| {
            let (pools, past) = &**part;
            let kind = allocated_kind(&pools[0], &pools[1]);
            let likely = kind.and_then(|kind| {
                origins.likely(kind, &past.places, &past.charge, Sighting::default())
            });
            let shares = likely.as_ref().unwrap_or(&past.charge).shares.clone();
            // What is known of it was seen then.
            let span = past.charge.span;
            let part = BlockAttribution { shares, span, certain: false, ..*self.charge };
            (*pools, Arc::new(part), past.site)
        };
        Some(self.parts.as_ref()?.iter().map(of_part).collect())
    }

    /// Lines of a loop, or of generated code, made what it allocated, one block each.
    pub(super) fn made_by_lines(&mut self, buffers: &[MadeBuffer]) {
        let charged =
            |shares| Arc::new(BlockAttribution { shares, certain: false, ..*self.charge });
        self.stayed = false;
        if let [(origin, _)] = *buffers {
            (self.charge, self.parts) = (charged(vec![(origin, 1)]), None);
            // The text says more than where the program was seen around it.
            self.sighting = Sighting::default();
            return;
        }
        let part = |&(origin, bytes): &MadeBuffer| {
            let charge = charged(vec![(origin, 1)]);
            (one_block(bytes), PastStep { places: ReachSums::default(), charge, site: self.site })
        };
        let mut parts: Vec<_> = buffers.iter().map(part).collect();
        let sum =
            |pool: usize| parts.iter().map(|(pools, _)| pools[pool].allocated_bytes).sum::<i64>();
        let whole = [self.small, self.large];
        // A block can be larger than what was asked for; then it is not known which.
        let fits = (0..2).all(|pool| sum(pool) == whole[pool].allocated_bytes);
        if let Some((last, _)) = parts.last_mut() {
            set_frees(last, &whole);
        }
        let shares = buffers.iter().map(|&(origin, bytes)| (origin, bytes.max(1))).collect();
        let parts = fits.then(|| parts.into_iter().map(Arc::new).collect());
        (self.charge, self.parts) = (charged(shares), parts);
    }

    /// Adds what it allocated.
    pub(super) fn add_to(&self, totals: &mut AllocatedTotals, origins: &KindOrigins) {
        match self.parts_by(origins) {
            Some(parts) => {
                parts.iter().for_each(|(pools, charge, ..)| totals.add(pools, charge));
            }
            // Whoever else allocates, it was not elsewhere.
            None if self.stayed => {
                let charge = BlockAttribution { contested: false, ..(*self.charge).clone() };
                totals.add(&[self.small, self.large], &charge);
            }
            None => totals.add(&[self.small, self.large], &self.charge_by(origins)),
        }
    }
}

/// Whom a change is charged to by what is known by now.
pub(super) struct ChargedStep {
    pub(super) charge: Arc<BlockAttribution>,
    pub(super) parts: Option<Vec<ChargedPart>>,
}

/// A part of a change, whom it is charged to, and where the program was.
pub(super) type ChargedPart = (PoolDeltas, Arc<BlockAttribution>, FreeSite);

/// What is taken of an earlier change for one that is like it.
#[derive(Debug, Clone)]
pub(super) struct PastStep {
    pub(super) places: ReachSums,
    pub(super) charge: Arc<BlockAttribution>,
    pub(super) site: FreeSite,
}

/// The blocks that the parts of a change allocated, in order, and who made each; `None` for one of which it is not known.
pub(super) fn made_by_parts(
    parts: &[PastPart<PastStep>],
) -> impl Iterator<Item = Option<(BlockGroup, AllocationOrigin)>> {
    parts.iter().filter(|part| allocates(&part.0)).map(|part| made_by(part))
}

/// The block that a part of a change allocated, and who made it, where that is most likely one stack.
pub(super) fn made_by(
    (pools, past): &(PoolDeltas, PastStep),
) -> Option<(BlockGroup, AllocationOrigin)> {
    Some((allocated_kind(&pools[0], &pools[1])?, past.charge.only_stack()?))
}

/// The change in which one block of so many bytes is allocated.
fn one_block(requested: u64) -> PoolDeltas {
    let mut pools = PoolDeltas::default();
    let pool = &mut pools[usize::from(requested > MAX_SMALL_BLOCK)];
    pool.allocations = 1;
    pool.requested_bytes = requested as i64;
    pool.allocated_bytes = requested.next_multiple_of(MIN_BLOCK) as i64;
    pools
}
