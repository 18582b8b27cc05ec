//! Which changes are kept: those since the last map, as far as there is room. What the others allocated is in the totals.

use crate::analysis::followed::FollowedSteps;
use crate::analysis::followed::allocated_totals::AllocatedTotals;
use crate::analysis::followed::decoder::decode;
use crate::analysis::followed::repeated_steps::live_before;
use crate::analysis::followed::until_map::UntilMap;

/// How far from its time a map is looked for among the changes.
const NEAR: usize = 64;
/// Changes kept between two maps; beyond, the oldest are forgotten.
const MAX_STEPS: usize = 1 << 18;
/// Parts of changes of several blocks that are kept between two maps; beyond, the oldest are forgotten.
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
        for (step, number) in self.steps.drain(..count).zip(self.first..) {
            if self.log.is_charged(number) {
                step.add_to(&mut self.totals, &self.allocation_sources);
            }
            self.parts = self.parts.saturating_sub(step.parts.map_or(0, |parts| parts.len()));
        }
        self.first += count as u64;
    }

    /// All that was allocated.
    pub(crate) fn allocated(&self) -> AllocatedTotals {
        let mut totals = self.totals.clone();
        for (step, number) in self.steps.iter().zip(self.first..) {
            if self.log.is_charged(number) {
                step.add_to(&mut totals, &self.allocation_sources);
            }
        }
        let waiting = &self.allocation_sources.places;
        decode(&self.log, waiting, |share| totals.add_decoded(&share));
        totals.leave_out(waiting);
        totals
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

    /// The changes up to a map read at `time` whose blocks have `live` bytes in the small and in the large pool (rule 4).
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
        self.sums.clear();
        self.sequence.clear();
        self.past.interrupt();
        self.states.clear();
    }

    /// Whether so many changes are kept that the next maps have to begin anew.
    pub(crate) fn is_long(&self) -> bool {
        self.steps.len() >= MAX_STEPS / 2 || self.parts >= MAX_PARTS / 2
    }
}
