//! All that was allocated while the allocator was followed, by whom.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, WaitingPlaces};
use crate::analysis::followed::decoder::DecodedShare;
use crate::analysis::followed::repeated_steps::PoolDeltas;

/// A site that is at least this likely is *probable*.
const PROBABLE: f64 = 0.95;

/// Sums of changes, each charged as a block of a map is: rules 1 to 3 and 7.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllocatedTotals {
    /// Bytes by whom they are charged to; they add up to all that was allocated.
    pub(crate) by_origin: FxHashMap<AllocationOrigin, u64>,
    /// Allocations.
    pub(crate) allocations: u64,
    /// Bytes that one stack only came into question for.
    pub(crate) one_stack: u64,
    /// Bytes of which it is proven who allocated them, by whom.
    pub(crate) certain: FxHashMap<AllocationOrigin, u64>,
    /// Allocations of which that is proven.
    pub(crate) certain_allocations: u64,
}

impl AllocatedTotals {
    /// Adds what a change, or a part of one, allocated.
    pub(super) fn add(&mut self, pools: &PoolDeltas, charge: &BlockAttribution) {
        let sum = |of: [i64; 2]| of.into_iter().map(|amount| amount.max(0) as u64).sum::<u64>();
        let allocations = sum(pools.map(|pool| pool.allocations));
        self.allocations += allocations;
        self.certain_allocations += if charge.certain { allocations } else { 0 };
        let bytes = sum(pools.map(|pool| pool.allocated_bytes));
        if bytes == 0 {
            return;
        }
        let is_one_stack = matches!(charge.shares[..], [(AllocationOrigin::Stack(..), _)]);
        // As in `BlockAttribution::evidence`: proven, or of one stack and one thread.
        if is_one_stack && (charge.certain || !charge.contested) {
            self.one_stack += bytes;
        }
        if charge.contested && !charge.certain {
            *self.by_origin.entry(AllocationOrigin::NotSeen).or_default() += bytes;
            return;
        }
        charge.split(bytes, |origin, bytes| {
            *self.by_origin.entry(origin).or_default() += bytes;
            if charge.certain {
                *self.certain.entry(origin).or_default() += bytes;
            }
        });
    }

    /// Adds what a decoded allocation allocated: one site, where it is as good as sure.
    pub(super) fn add_decoded(&mut self, share: &DecodedShare) {
        self.allocations += share.allocations;
        let mut sites = share.sites.clone();
        if let Some(&(origin @ AllocationOrigin::Stack(..), part)) = sites.first()
            && part >= PROBABLE
        {
            self.one_stack += share.bytes;
            sites = vec![(origin, 1.0)];
        } else if share.contested || sites.is_empty() {
            sites = vec![(AllocationOrigin::NotSeen, 1.0)];
        }
        let sum: f64 = sites.iter().map(|site| site.1).sum();
        let mut left = share.bytes;
        for (nth, (origin, part)) in sites.iter().enumerate() {
            let bytes = (share.bytes as f64 * part / sum) as u64;
            let bytes = if nth + 1 == sites.len() { left } else { bytes.min(left) };
            left -= bytes;
            if bytes > 0 {
                *self.by_origin.entry(*origin).or_default() += bytes;
            }
        }
    }

    /// Leaves out the places of which was found out later that threads only wait there: nobody was seen to allocate these bytes.
    pub(super) fn leave_out(&mut self, places: &WaitingPlaces) {
        let waits = |origin: &AllocationOrigin| {
            let AllocationOrigin::Stack(_, stack) = origin else { return false };
            !self.certain.contains_key(origin) && places.has(*stack)
        };
        let wrong: Vec<AllocationOrigin> = self.by_origin.keys().copied().filter(waits).collect();
        for origin in wrong {
            let bytes = self.by_origin.remove(&origin).unwrap_or(0);
            *self.by_origin.entry(AllocationOrigin::NotSeen).or_default() += bytes;
        }
        let all: u64 = self.by_origin.values().sum();
        self.one_stack = self.one_stack.min(all - self.not_seen());
    }

    /// Bytes of which no thread was seen that can have allocated them.
    pub(crate) fn not_seen(&self) -> u64 {
        let unseen = |origin: &AllocationOrigin| {
            matches!(origin, AllocationOrigin::NotSeen | AllocationOrigin::Below(..))
        };
        self.by_origin.iter().filter(|(origin, _)| unseen(origin)).map(|(_, bytes)| bytes).sum()
    }
}
