//! One followed change, with who is charged for what it allocated, by what is known of it so far.

use std::sync::Arc;

use super::allocated_totals::AllocatedTotals;
use super::buffer_alignment::MadeBuffer;
use super::free_sites::FreeSite;
use super::pool_change::MAX_SMALL_BLOCK;
use super::repeated_steps::{PastPart, PoolDeltas, set_frees};
use crate::analysis::attribution::{BlockAttribution, BlockGroup};
use crate::model::{CounterDelta, FollowedAddresses, MIN_BLOCK};

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
    /// Whether it is known otherwise than from the decoder who made it.
    pub(super) is_told: bool,
    /// The block that it allocated, if it was one, whatever it freed.
    pub(super) allocated: Option<BlockGroup>,
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

    pub(super) fn pools(&self) -> PoolDeltas {
        [self.small, self.large]
    }

    /// Whom its parts are charged to.
    pub(super) fn charged_parts(&self) -> Option<Vec<ChargedPart>> {
        let of_part = |part: &PastPart<PastStep>| {
            let (pools, past) = &**part;
            // What is known of it was seen then.
            let (shares, span) = (past.charge.shares.clone(), past.charge.span);
            let part = BlockAttribution { shares, span, certain: false, ..*self.charge };
            (*pools, Arc::new(part), past.site)
        };
        Some(self.parts.as_ref()?.iter().map(of_part).collect())
    }

    /// Lines of a loop, or of generated code, made what it allocated, one block each.
    pub(super) fn made_by_lines(&mut self, buffers: &[MadeBuffer]) {
        let charged =
            |shares| Arc::new(BlockAttribution { shares, certain: false, ..*self.charge });
        self.is_told = true;
        if let [(origin, _)] = *buffers {
            (self.charge, self.parts) = (charged(vec![(origin, 1)]), None);
            return;
        }
        let part = |&(origin, bytes): &MadeBuffer| {
            let charge = charged(vec![(origin, 1)]);
            (one_block(bytes, bytes > MAX_SMALL_BLOCK), PastStep { charge, site: self.site })
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
    pub(super) fn add_to(&self, totals: &mut AllocatedTotals) {
        match self.charged_parts() {
            Some(parts) => {
                parts.iter().for_each(|(pools, charge, ..)| totals.add(pools, charge));
            }
            None => totals.add(&self.pools(), &self.charge),
        }
    }
}

/// A part of a change, whom it is charged to, and where the program was.
pub(super) type ChargedPart = (PoolDeltas, Arc<BlockAttribution>, FreeSite);

/// What is taken of an earlier change for one that is like it.
#[derive(Debug, Clone)]
pub(super) struct PastStep {
    pub(super) charge: Arc<BlockAttribution>,
    pub(super) site: FreeSite,
}

/// The change in which one block of so many bytes is allocated.
pub(super) fn one_block(requested: u64, is_large: bool) -> PoolDeltas {
    let mut pools = PoolDeltas::default();
    let pool = &mut pools[usize::from(is_large)];
    pool.allocations = 1;
    pool.requested_bytes = requested as i64;
    pool.allocated_bytes = requested.next_multiple_of(MIN_BLOCK) as i64;
    pools
}
