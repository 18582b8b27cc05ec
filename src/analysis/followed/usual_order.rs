//! What several allocations of one change most likely were, by who usually makes the next block behind the last one.
//!
//! A loop over the parameters of a model allocates the same number of blocks by the same lines for each of them: where a poll came late, what it
//! missed went on as before. That is likely, never certain.

use std::sync::Arc;

use super::allocation_places::{ReachSums, place_behind};
use super::followed_step::PastStep;
use super::free_sites::FreeSite;
use super::kind_origins::KindOrigins;
use super::pool_change::even_kind;
use super::repeated_steps::{PastPart, PoolDeltas, set_frees};
use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};
use crate::model::Pool;

/// With more allocations in one change the order is lost.
const MOST: i64 = 8;

/// The allocations of a change of several in their order, where each is clear; `last` is the block before them, and who made it. What was freed
/// comes with the last of them.
pub(super) fn usual_order(
    pools: &PoolDeltas,
    mut last: (BlockGroup, AllocationOrigin),
    charge: &BlockAttribution,
    site: FreeSite,
    origins: &KindOrigins,
) -> Option<Vec<PastPart<PastStep>>> {
    let mut left = [None; 2];
    for (left, (pool, delta)) in
        left.iter_mut().zip([Pool::Small, Pool::Large].into_iter().zip(pools))
    {
        if delta.allocations > 0 {
            let kind = even_kind(pool, delta)
                .filter(|kind| delta.allocations == 1 || origins.knows(*kind))?;
            *left = Some((kind, delta.allocations));
        }
    }
    let count = left.iter().flatten().fold(0_i64, |sum, (_, count)| sum.saturating_add(*count));
    if !(2..=MOST).contains(&count) {
        return None;
    }
    let mut parts = Vec::new();
    for _ in 0..count {
        let open =
            left.iter_mut().enumerate().filter_map(|(pool, left)| Some((pool, left.as_mut()?)));
        let next = open.filter(|(_, (_, count))| *count > 0).filter_map(|(pool, left)| {
            let (maker, votes) = origins.usual(place_behind(left.0, last), charge)?;
            Some((votes, pool, left, maker))
        });
        let (_, pool, left, maker) = next.max_by_key(|(votes, ..)| *votes)?;
        left.1 -= 1;
        last = (left.0, maker);
        let charge = charge.attributed_to(maker);
        let mut part = PoolDeltas::default();
        part[pool].allocations = 1;
        part[pool].allocated_bytes = left.0.size as i64;
        part[pool].requested_bytes = left.0.requested as i64;
        parts.push((part, PastStep { places: ReachSums::default(), charge, site }));
    }
    let (last, _) = parts.last_mut()?;
    set_frees(last, pools);
    Some(parts.into_iter().map(Arc::new).collect())
}
