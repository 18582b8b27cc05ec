//! The places of an iteration at which polls were.

use rustc_hash::FxHashMap;

use super::delta_log::LoggedDelta;
use super::period::{Phases, PolledTotals, Totals, add, allocations, sub};

/// Totals at each poll: one more than deltas.
pub(super) fn polled_totals(deltas: &[LoggedDelta]) -> Vec<PolledTotals> {
    let mut sums = [[0i64; 4]; 2];
    let mut polls = vec![PolledTotals { totals: [0; 4], live: [0; 4] }];
    for delta in deltas {
        sums = [add(&sums[0], &allocated(delta)), add(&sums[1], &freed(delta))];
        polls.push(PolledTotals { totals: sums[0], live: sub(&sums[0], &sums[1]) });
    }
    polls
}

pub(super) fn allocated(delta: &LoggedDelta) -> Totals {
    let [small, large] = delta.pools;
    [
        i64::from(small.allocations),
        small.requested_bytes as i64,
        i64::from(large.allocations),
        large.requested_bytes as i64,
    ]
}

fn freed(delta: &LoggedDelta) -> Totals {
    let [small, large] = delta.pools;
    [
        i64::from(small.frees),
        small.freed_requested_bytes as i64,
        i64::from(large.frees),
        large.freed_requested_bytes as i64,
    ]
}

/// Growth from one place to the next is possible: whole allocations.
fn is_growth(by: &Totals) -> bool {
    by.iter().all(|by| *by >= 0)
        && (by[0] > 0) == (by[1] > 0)
        && (by[2] > 0) == (by[3] > 0)
        && allocations(by) > 0
}

fn is_up_to(a: &Totals, b: &Totals) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

/// The places of an iteration at which polls were, in order.
pub(super) struct Places {
    period: Totals,
    pub(super) places: Vec<Totals>,
    pub(super) numbers: FxHashMap<Totals, usize>,
}

impl Places {
    pub(super) fn of(phases: &Phases) -> Places {
        let mut counts: FxHashMap<Totals, u32> = FxHashMap::default();
        phases.phases.iter().for_each(|phase| *counts.entry(*phase).or_default() += 1);
        let mut counts: Vec<(Totals, u32)> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(phase, count)| {
            (std::cmp::Reverse(*count), allocations(phase), *phase)
        });
        let mut places =
            Places { period: phases.period, places: Vec::new(), numbers: FxHashMap::default() };
        for (phase, _) in counts {
            if places.places.is_empty() {
                places.places.push(phase);
                continue;
            }
            let [before, behind] = places.around(&phase);
            if is_growth(&sub(&phase, &before)) && is_growth(&sub(&behind, &phase)) {
                places.places.insert(places.rank(&phase), phase);
            }
        }
        let numbered = places.places.iter().enumerate();
        places.numbers = numbered.map(|(number, place)| (*place, number)).collect();
        places
    }

    fn rank(&self, phase: &Totals) -> usize {
        let key = |of: &Totals| (allocations(of), *of);
        self.places.partition_point(|place| key(place) < key(phase))
    }

    /// The places next to a phase.
    fn around(&self, phase: &Totals) -> [Totals; 2] {
        let (rank, last) = (self.rank(phase), self.places.len() - 1);
        let before = rank.checked_sub(1).map(|before| self.places[before]);
        let before = before.unwrap_or_else(|| sub(&self.places[last], &self.period));
        let behind = self.places.get(rank).copied();
        [before, behind.unwrap_or_else(|| add(&self.places[0], &self.period))]
    }

    pub(super) fn fits(&self, phase: &Totals) -> bool {
        let [before, behind] = self.around(phase);
        is_up_to(&before, phase) && is_up_to(phase, &behind)
    }

    /// What is allocated from each place to the next.
    pub(super) fn steps(&self) -> Vec<Totals> {
        let last = self.places.len() - 1;
        let next = |number: usize| match number == last {
            true => add(&self.places[0], &self.period),
            false => self.places[number + 1],
        };
        (0..=last).map(|number| sub(&next(number), &self.places[number])).collect()
    }
}
