//! Who allocates which kinds of blocks between two maps: a block that both maps have at one address is most likely the same one if whoever
//! allocated it allocates none of its kind in between.
//!
//! Else it would have had to be freed, and somebody else to be given just its address for just its size. An optimizer's state is made
//! once and stays, what a forward pass saves is made anew in each step, often at the same addresses.

use rustc_hash::FxHashSet;

use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, CANDIDATES_WITHIN,
};
use crate::analysis::followed::change_origins::allocated_kind;
use crate::analysis::followed::repeated_steps::PoolDeltas;

/// Origins between two maps.
#[derive(Debug, Default)]
pub(super) struct RemadeKinds {
    kinds: FxHashSet<(BlockGroup, AllocationOrigin)>,
    /// Who allocates blocks of which the kind is not known.
    any: FxHashSet<AllocationOrigin>,
}

impl RemadeKinds {
    /// Takes a change.
    pub(super) fn add(&mut self, pools: &PoolDeltas, charge: &BlockAttribution) {
        if pools.iter().all(|pool| pool.allocations <= 0) {
            return;
        }
        let kind = allocated_kind(&pools[0], &pools[1]);
        for (origin, _) in &charge.shares {
            match kind {
                Some(kind) => drop(self.kinds.insert((kind, *origin))),
                None => drop(self.any.insert(*origin)),
            }
        }
    }

    /// Whether whoever allocated a block has allocated another of its kind; `None` if it is not known who did.
    pub(super) fn has_another(
        &self,
        group: BlockGroup,
        attribution: &BlockAttribution,
    ) -> Option<bool> {
        let [(origin, _)] = attribution.shares[..] else { return None };
        let is_near = attribution.span.is_none_or(|span| span <= CANDIDATES_WITHIN);
        let is_known = !matches!(
            origin,
            AllocationOrigin::Before | AllocationOrigin::NotSeen | AllocationOrigin::NoStack
        );
        (is_near && is_known)
            .then(|| self.any.contains(&origin) || self.kinds.contains(&(group, origin)))
    }
}
