//! Which changes are kept: those since the last map, as far as there is room. What the others
//! allocated is in the totals.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};
use crate::analysis::followed::allocated_totals::AllocatedTotals;
use crate::analysis::followed::decoded_charges;
use crate::analysis::followed::decoder::DecodedDeltas;
use crate::analysis::followed::followed_step::FollowedStep;
use crate::analysis::followed::repeated_steps::live_before;
use crate::analysis::followed::until_map::UntilMap;
use crate::analysis::followed::{FollowedSteps, MOST_DECODED};
use crate::model::FollowedChange;

/// How far from its time a map is looked for among the changes.
const NEAR: usize = 64;
/// Changes kept between two maps; beyond, the oldest are forgotten.
const MAX_STEPS: usize = 1 << 18;
/// Parts of changes of several blocks that are kept between two maps; beyond, the oldest are
/// forgotten.
const MAX_PARTS: usize = 1 << 22;

impl FollowedSteps {
    /// Forgets the oldest changes where there are too many.
    pub(super) fn make_room(&mut self) {
        while self.steps.len() >= MAX_STEPS || (self.parts > MAX_PARTS && !self.steps.is_empty()) {
            self.drop_first(1);
        }
    }

    fn drop_first(&mut self, count: usize) {
        let count = count.min(self.steps.len());
        let mut totals = std::mem::take(&mut self.totals);
        for (step, number) in self.steps.range(..count).zip(self.first..) {
            self.add(step, number, &mut totals);
        }
        self.totals = totals;
        for step in self.steps.drain(..count) {
            self.parts = self.parts.saturating_sub(step.parts.map_or(0, |parts| parts.len()));
        }
        self.first += count as u64;
    }

    /// Adds what a delta allocated.
    fn add(&self, step: &FollowedStep, number: u64, totals: &mut AllocatedTotals) {
        let decoded = self.decoded.as_ref().filter(|_| !step.is_told);
        let decoded = decoded.map_or_else(Vec::new, |decoded| decoded.parts(number));
        if decoded.is_empty() {
            step.add_to(totals);
            return;
        }
        let amounts = step.pools().map(|pool| {
            let [count, bytes] = [pool.allocations, pool.allocated_bytes];
            (count.max(0) as u64, bytes.max(0) as u64)
        });
        totals.add_decoded(&decoded, amounts, step.charge.contested);
    }

    /// All that was allocated.
    pub(crate) fn allocated(&self) -> AllocatedTotals {
        let mut totals = self.totals.clone();
        for (step, number) in self.steps.iter().zip(self.first..) {
            self.add(step, number, &mut totals);
        }
        totals.leave_out(&self.places);
        totals
    }

    /// Decodes the last deltas of a recording that is not read a second time.
    pub(crate) fn decode_last(&mut self) {
        if self.decoded.is_some() || self.steps.is_empty() {
            return;
        }
        self.log.keep_last(MOST_DECODED);
        let end = self.first + self.steps.len() as u64;
        let begin = end.saturating_sub(self.log.len() as u64);
        let decoded = DecodedDeltas::of(std::mem::take(&mut self.log), &self.places);
        for (step, number) in self.steps.iter_mut().zip(self.first..).filter(|of| !of.0.is_told) {
            let parts = number.checked_sub(begin).map_or_else(Vec::new, |at| decoded.parts(at));
            if parts.is_empty() {
                continue;
            }
            let shares = decoded_charges::shares(&parts);
            step.charge = Arc::new(BlockAttribution { shares, ..*step.charge });
            if step.parts.is_none() && !step.open {
                let (pools, charge) = (step.pools(), &step.charge);
                step.parts = decoded_charges::one_by_one(&parts, &pools, charge, step.site);
                self.parts += step.parts.as_ref().map_or(0, Vec::len);
            }
        }
        self.log = decoded.into_log();
    }

    /// Decodes all deltas, for a second reading of the recording.
    pub(crate) fn decode(self) -> DecodedDeltas {
        match self.contention.is_usual() {
            true => DecodedDeltas::of_threads(self.log),
            false => DecodedDeltas::of(self.log, &self.places),
        }
    }

    /// Begins with the blocks of the last map, if they add up to what was alive before the first
    /// change.
    pub(crate) fn begin(
        change: &FollowedChange,
        blocks: impl Iterator<Item = (u64, BlockGroup)>,
        decoded: Option<Arc<DecodedDeltas>>,
    ) -> FollowedSteps {
        let mut steps = FollowedSteps { decoded, ..FollowedSteps::default() };
        steps.proof.begin(change, blocks);
        steps
    }

    /// Whether a block of the last map is still proven.
    pub(crate) fn is_proven(&self, at: u64) -> bool {
        self.proof.is_proven(at)
    }

    /// Who is proven to have made the blocks of a consistent map, by address (`proof.rs`).
    pub(crate) fn prove(
        &mut self,
        time: u64,
        blocks: impl Iterator<Item = (u64, BlockGroup)>,
    ) -> FxHashMap<u64, AllocationOrigin> {
        self.proof.snapshot(time, blocks)
    }

    /// Whether nothing was allocated since the last map.
    pub(crate) fn is_settled(&self) -> bool {
        self.steps.iter().all(|step| step.allocations() == 0)
    }

    /// Whether nothing was alive before the first change known.
    pub(crate) fn began_empty(&self) -> bool {
        self.steps
            .front()
            .is_some_and(|step| live_before(step.live, &[step.small, step.large]) == [0, 0])
    }

    /// The changes up to a map read at `time` whose blocks have `live` bytes in the small and in
    /// the large pool.
    pub(crate) fn until_map(&self, time: u64, live: [i64; 2]) -> UntilMap {
        let by_time = self.steps.partition_point(|step| step.to <= time);
        let fits = |count: &usize| {
            count.checked_sub(1).and_then(|last| self.steps.get(last)).map(|step| step.live)
                == Some(live)
        };
        let away = |count: &usize| count.abs_diff(by_time);
        let near = by_time.saturating_sub(NEAR)..=(by_time + NEAR).min(self.steps.len());
        let count = near.filter(fits).min_by_key(away).unwrap_or(by_time);
        UntilMap { steps: self.steps.range(..count).cloned().collect(), first: self.first }
    }

    /// Forgets the changes up to the map.
    pub(crate) fn forget(&mut self, until: &UntilMap) {
        self.drop_first(until.steps.len());
    }

    /// Forgets the changes before `time`.
    pub(crate) fn forget_before(&mut self, time: u64) {
        self.drop_first(self.steps.partition_point(|step| step.to <= time));
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.drop_first(self.steps.len());
        self.past.interrupt();
        self.states.clear();
        self.proof.clear();
    }

    /// Whether so many changes are kept that the next maps have to begin anew.
    pub(crate) fn is_long(&self) -> bool {
        self.steps.len() >= MAX_STEPS / 2 || self.parts >= MAX_PARTS / 2
    }
}
