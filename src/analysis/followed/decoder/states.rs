//! What a burst of the iteration freed, and in which order.
//!
//! A *state* is a place of the iteration and what was live there. Polls of other iterations met the
//! states that a burst went through, so its allocations and frees are those between each two.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::delta_log::LoggedDelta;
use super::period::{Phases, PolledTotals, Totals, add, allocations, sub};
use super::places::{Places, allocated};
use crate::analysis::followed::pool_change::MIN_BLOCK;
use crate::model::CounterDelta;

/// States between two polls at most.
const MOST_STEPS: usize = 1 << 12;
/// Visits that make a state: one may be torn.
const VISITS: u32 = 2;

/// Both pools of a delta.
type PoolDeltas = [CounterDelta; 2];

#[derive(Debug, Clone, Copy)]
struct State {
    place: usize,
    live: Totals,
    /// Bytes of live blocks, small and large.
    sizes: [i64; 2],
}

/// What happens from one state to the next.
#[derive(Debug, Clone)]
pub(in crate::analysis::followed) struct DecodedStep {
    pub(in crate::analysis::followed) pools: PoolDeltas,
    /// The places before and after.
    pub(super) places: [usize; 2],
    /// The numbers of its allocations in the iteration.
    pub(super) allocations: Range<usize>,
}

/// The states of an iteration in order, and the steps between them.
#[derive(Debug, Default)]
pub(super) struct States {
    numbers: FxHashMap<(usize, Totals), usize>,
    /// From each state to the next; `None` if it is not known.
    steps: Vec<Option<DecodedStep>>,
}

impl States {
    pub(super) fn of(
        phases: &Phases,
        places: &Places,
        polls: &[PolledTotals],
        first: &[usize],
    ) -> States {
        let mut visits: FxHashMap<(usize, Totals, [i64; 2]), u32> = FxHashMap::default();
        for (poll, phase) in polls.iter().zip(&phases.phases) {
            if let Some(place) = places.numbers.get(phase) {
                *visits.entry((*place, poll.live, poll.sizes)).or_default() += 1;
            }
        }
        let mut visits: Vec<_> = visits.into_iter().filter(|it| it.1 >= VISITS).collect();
        visits.sort_unstable_by_key(|(state, count)| (std::cmp::Reverse(*count), *state));
        let mut states: Vec<State> = Vec::new();
        let order = |of: &State| {
            (of.place, std::cmp::Reverse(allocations(&of.live)), std::cmp::Reverse(of.live))
        };
        for ((place, live, sizes), _) in visits {
            let state = State { place, live, sizes };
            let rank = states.partition_point(|it| order(it) < order(&state));
            if states.get(rank).is_some_and(|it| order(it) == order(&state)) {
                continue;
            }
            let count = states.len();
            let fits = count == 0 || {
                let before = states[(rank + count - 1) % count];
                let behind = states[rank % count];
                frees(&before, &state, places, rank == 0).is_some()
                    && frees(&state, &behind, places, rank == count).is_some()
            };
            if fits {
                states.insert(rank, state);
            }
        }
        let numbered = states.iter().enumerate();
        let numbers = numbered.map(|(number, state)| ((state.place, state.live), number)).collect();
        let steps = (0..states.len()).map(|number| {
            let next = (number + 1) % states.len();
            step(&states[number], &states[next], places, next <= number, first)
        });
        States { numbers, steps: steps.collect() }
    }

    /// What happened between two polls at the same iteration's begin, if it is known to the byte.
    pub(super) fn between(
        &self,
        phases: &Phases,
        places: &Places,
        polls: &[PolledTotals],
        number: usize,
        delta: &LoggedDelta,
    ) -> Option<Vec<DecodedStep>> {
        if phases.begins[number] != phases.begins[number + 1] {
            return None;
        }
        let state = |poll: usize| {
            let place = places.numbers.get(&phases.phases[poll])?;
            self.numbers.get(&(*place, polls[poll].live)).copied()
        };
        let (mut at, end) = (state(number)?, state(number + 1)?);
        let whole = allocations(&allocated(delta));
        let (mut sum, mut made) = (PoolDeltas::default(), 0);
        let mut found = Vec::new();
        while found.is_empty() || at != end || made < whole {
            let step = self.steps[at].as_ref()?;
            made += (step.pools[0].allocations + step.pools[1].allocations).max(0);
            if made > whole || found.len() == MOST_STEPS {
                return None;
            }
            for (sum, by) in sum.iter_mut().zip(&step.pools) {
                sum.allocations += by.allocations;
                sum.frees += by.frees;
                sum.allocated_bytes += by.allocated_bytes;
                sum.freed_bytes += by.freed_bytes;
            }
            found.push(step.clone());
            at = (at + 1) % self.steps.len();
        }
        let is_whole = sum.iter().zip(&delta.pools).all(|(sum, pool)| {
            sum.allocations == i64::from(pool.allocations)
                && sum.frees == i64::from(pool.frees)
                && sum.allocated_bytes == pool.allocated_bytes as i64
                && sum.freed_bytes == pool.freed_bytes as i64
        });
        is_whole.then_some(found)
    }
}

/// What is allocated from one state to the next, and what is freed, if that is possible.
fn frees(from: &State, to: &State, places: &Places, turns: bool) -> Option<(Totals, Totals)> {
    let mut made = sub(&places.places[to.place], &places.places[from.place]);
    if turns {
        made = add(&made, &places.period);
    }
    let freed = sub(&made, &sub(&to.live, &from.live));
    freed.iter().all(|by| *by >= 0).then_some((made, freed))
}

fn step(
    from: &State,
    to: &State,
    places: &Places,
    turns: bool,
    first: &[usize],
) -> Option<DecodedStep> {
    let (made, freed) = frees(from, to, places, turns)?;
    let mut pools = PoolDeltas::default();
    for (pool, delta) in pools.iter_mut().enumerate() {
        let (count, requested) = (made[2 * pool], made[2 * pool + 1]);
        let (frees, freed_requested) = (freed[2 * pool], freed[2 * pool + 1]);
        let grew = to.sizes[pool] - from.sizes[pool];
        let sizes = match count {
            0 => 0,
            _ if frees == 0 => grew,
            1 => (requested.max(1) as u64).next_multiple_of(MIN_BLOCK) as i64,
            _ => return None,
        };
        *delta = CounterDelta {
            allocations: count,
            frees,
            allocated_bytes: sizes,
            freed_bytes: sizes - grew,
            requested_bytes: requested,
            freed_requested_bytes: freed_requested,
        };
        if sizes < 0 || sizes < grew {
            return None;
        }
    }
    let start = first[from.place];
    let allocations = start..start + allocations(&made) as usize;
    Some(DecodedStep { pools, places: [from.place, to.place], allocations })
}
