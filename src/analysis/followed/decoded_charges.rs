//! Whom a decoded delta's blocks are charged to.

use std::sync::Arc;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::followed::decoder::DecodedPart;
use crate::analysis::followed::followed_step::{PastStep, one_block};
use crate::analysis::followed::free_sites::FreeSite;
use crate::analysis::followed::repeated_steps::{PastPart, PoolDeltas, set_frees};
use crate::model::StackTable;

/// Allocations of a delta that are replayed one by one.
const MOST_PARTS: usize = 1 << 12;
/// What a probability of 1 weighs among shares.
const WHOLE: f64 = 1e6;

/// The sites of a delta, by their bytes.
pub(super) fn shares(parts: &[DecodedPart]) -> Vec<(AllocationOrigin, u64)> {
    let mut sums: Vec<(AllocationOrigin, f64)> = Vec::new();
    for part in parts {
        for (origin, chance) in part.shares() {
            let by = chance * part.size.max(1.0);
            match sums.iter_mut().find(|sum| sum.0 == origin) {
                Some(sum) => sum.1 += by,
                None => sums.push((origin, by)),
            }
        }
    }
    let all: f64 = sums.iter().map(|sum| sum.1).sum();
    let weight = |by: f64| ((by / all * WHOLE) as u64).max(1);
    sums.into_iter().map(|(origin, by)| (origin, weight(by))).collect()
}

/// Keeps the sites below the call that the delta's thread stayed in. `false`: the most likely one
/// of an allocation is elsewhere.
pub(super) fn narrow(
    parts: &mut [DecodedPart],
    call: AllocationOrigin,
    stacks: &StackTable,
) -> bool {
    let AllocationOrigin::Below(_, call) = call else { return false };
    let is_below = |site: &(AllocationOrigin, f64)| match site.0 {
        AllocationOrigin::Stack(_, site) => stacks.callers(site).any(|at| at == call),
        _ => false,
    };
    let agrees = |part: &DecodedPart| part.sites.first().is_some_and(is_below);
    if parts.is_empty() || !parts.iter().all(agrees) {
        return false;
    }
    for part in parts.iter_mut().filter(|part| part.probable().is_none()) {
        part.sites.retain(is_below);
        let all: f64 = part.sites.iter().map(|site| site.1).sum();
        part.sites.iter_mut().for_each(|site| site.1 /= all);
    }
    true
}

/// The allocations of a delta one by one, if all their sizes are known. Its frees come last.
pub(super) fn one_by_one(
    parts: &[DecodedPart],
    whole: &PoolDeltas,
    charge: &BlockAttribution,
    site: FreeSite,
) -> Option<Vec<PastPart<PastStep>>> {
    if !(2..=MOST_PARTS).contains(&parts.len()) {
        return None;
    }
    let one = |part: &DecodedPart| {
        let shares = shares(std::slice::from_ref(part));
        let charge = Arc::new(BlockAttribution { shares, certain: false, ..*charge });
        Some((one_block(part.requested?, part.is_large), PastStep { charge, site }))
    };
    let mut found: Vec<(PoolDeltas, PastStep)> = parts.iter().map(one).collect::<Option<_>>()?;
    let sum = |pool: usize| found.iter().map(|(pools, _)| pools[pool].allocated_bytes).sum::<i64>();
    // A block can be larger than what was requested: then it is not known which.
    if (0..2).any(|pool| sum(pool) != whole[pool].allocated_bytes) {
        return None;
    }
    set_frees(&mut found.last_mut()?.0, whole);
    Some(found.into_iter().map(Arc::new).collect())
}
