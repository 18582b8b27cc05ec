//! Decodes a followed recording: the sites of all allocations, with probabilities.
//!
//! The program's path over its allocation sites is hidden; polls see parts of it. Most jobs repeat
//! iterations, so the polls of all iterations are [folded](period) into one: a burst of many
//! allocations between two polls has polls of other iterations inside it. Between each two
//! allocations of the folded iteration stands what all polls saw there ([`visits`]). Where the job
//! does not repeat itself, its allocations stand in their own order. A hidden Markov model over
//! sites finds the most likely path; its counts come from the rounds before ([`sites`]).

mod delta_log;
mod iteration;
mod labels;
mod period;
mod places;
mod rest;
mod sites;
mod states;
mod visits;

pub(super) use delta_log::DeltaLog;

use crate::analysis::attribution::{AllocationOrigin, WaitingPlaces};
use delta_log::LoggedDelta;
use iteration::{FoldedIteration, Kinds, grows};
use labels::Labels;
use period::Phases;
use places::polled_totals;
use rest::{Rest, rests};
use sites::{Posteriors, SiteCounts};
use visits::{ContextTable, Label, Sequence, Weights};

/// Rounds of decoding and counting.
const ROUNDS: usize = 3;

/// An allocation, decoded.
#[derive(Debug, Clone)]
pub(crate) struct DecodedPart {
    pub(in crate::analysis::followed) is_large: bool,
    /// Requested bytes, if the fold tells.
    pub(in crate::analysis::followed) requested: Option<u64>,
    /// Relative to the other allocations of the delta.
    pub(in crate::analysis::followed) size: f64,
    /// Sites with probabilities, most likely first.
    pub(in crate::analysis::followed) sites: Vec<(AllocationOrigin, f64)>,
}

/// All allocations of a recording, by delta.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    deltas: Vec<Vec<DecodedPart>>,
    bursts: rustc_hash::FxHashMap<u64, Vec<BurstStep>>,
}

/// A part of a burst.
#[derive(Debug, Clone)]
pub(crate) struct BurstStep {
    pub(in crate::analysis::followed) pools: [crate::model::CounterDelta; 2],
    pub(in crate::analysis::followed) parts: Vec<DecodedPart>,
    /// Where the program was.
    pub(in crate::analysis::followed) around: Vec<AllocationOrigin>,
}

impl Decoded {
    /// Of a delta: empty if nothing is known.
    pub(in crate::analysis::followed) fn parts(&self, number: u64) -> &[DecodedPart] {
        self.deltas.get(number as usize).map_or(&[], |parts| parts)
    }

    /// The steps of a burst, if they are known.
    pub(in crate::analysis::followed) fn burst(&self, number: u64) -> Option<&[BurstStep]> {
        self.bursts.get(&number).map(|steps| &steps[..])
    }

    /// Decodes all deltas.
    pub(in crate::analysis::followed) fn of(log: &DeltaLog, waiting: &WaitingPlaces) -> Decoded {
        let mut labels = Labels::default();
        let seen = labels::seen_between(log, waiting, &mut labels);
        let polls = polled_totals(&log.deltas);
        let mut kinds = Kinds::default();
        let phases = Phases::of(&polls);
        let iteration =
            phases.as_ref().map(|phases| FoldedIteration::of(phases, &polls, &seen, &mut kinds));
        let mut is_folded = vec![false; log.deltas.len()];
        for stretch in iteration.iter().flat_map(|iteration| &iteration.stretches) {
            is_folded[stretch.deltas.clone()].fill(true);
        }
        let rests = rests(&log.deltas, &seen, &is_folded, &mut kinds);
        let (of_iteration, of_rests) = posteriors(iteration.as_ref(), &rests);
        let mut found = Decoded { deltas: vec![Vec::new(); log.deltas.len()], ..Decoded::default() };
        let mut bursts = rustc_hash::FxHashMap::default();
        if let (Some(phases), Some(iteration), Some(of_sites)) = (&phases, &iteration, &of_iteration) {
            let own_sites = &of_sites[iteration.own.clone()];
            let own_kinds = &iteration.wrapped.kinds[iteration.own.clone()];
            let places = &iteration.places;
            let states = states::States::of(phases, places, &polls, &iteration.first);
            for (number, delta) in log.deltas.iter().enumerate() {
                let count: u64 = delta.pools.iter().map(|pool| u64::from(pool.allocations) + u64::from(pool.frees)).sum();
                if count < 2 { continue; }
                let Some(steps) = states.between(phases, places, &polls, number, delta) else { continue };
                let origin = |label| labels.origin(label, log, delta);
                let steps = steps.into_iter().map(|step| {
                    let around = [iteration.seen_at[step.places[0]][1], iteration.seen_at[step.places[1]][0]];
                    let around = around.into_iter().flatten().map(origin).collect();
                    let part = |number: usize| {
                        let number = number % iteration.sizes.len();
                        let (is_large, size) = iteration.sizes[number];
                        Part { is_large, size, is_known: own_kinds[number].is_some(), sites: &own_sites[number] }
                    };
                    let parts: Vec<_> = step.allocations.map(part).collect();
                    let parts = parts.iter().map(|part| decoded_part(part, origin)).collect();
                    BurstStep { pools: step.pools, parts, around }
                });
                bursts.insert(number as u64, steps.collect());
            }
        }
        let mut charge = |number: usize, parts: &[Part<'_>], is_folded: bool| {
            let delta = &log.deltas[number];
            let origin = |label| match labels.origin(label, log, delta) {
                waiting if !is_folded && log.may_only_wait(waiting, delta) => {
                    AllocationOrigin::NotSeen
                }
                origin => origin,
            };
            found.deltas[number] = divide(delta, parts, origin);
        };
        if let (Some(iteration), Some(found)) = (&iteration, &of_iteration) {
            let found = &found[iteration.own.clone()];
            let own_kinds = &iteration.wrapped.kinds[iteration.own.clone()];
            for stretch in iteration.stretches.iter().filter(|stretch| grows(stretch, &polls)) {
                let mut numbers = iteration.allocations(stretch);
                for delta in stretch.deltas.clone() {
                    let pools = &log.deltas[delta].pools;
                    let count = pools.iter().map(|pool| pool.allocations as usize).sum();
                    let own = numbers.by_ref().take(count);
                    let part = |number: usize| {
                        let (is_large, size) = iteration.sizes[number];
                        let is_known = own_kinds[number].is_some();
                        Part { is_large, size, is_known, sites: &found[number] }
                    };
                    charge(delta, &own.map(part).collect::<Vec<_>>(), true);
                }
            }
        }
        for (rest, found) in rests.iter().zip(&of_rests) {
            let mut found = found.iter();
            for delta in rest.deltas.clone() {
                let mut parts = Vec::new();
                for (is_large, pool) in [false, true].into_iter().zip(&log.deltas[delta].pools) {
                    let is_known = pool.allocations == 1;
                    let size = if is_known { pool.requested_bytes as f64 } else { 1.0 };
                    let own = found.by_ref().take(pool.allocations as usize);
                    parts.extend(own.map(|sites| Part { is_large, size, is_known, sites }));
                }
                charge(delta, &parts, false);
            }
        }
        found.bursts = bursts;
        found
    }
}

/// The sites of the iteration's allocations, and of all others.
fn posteriors(
    iteration: Option<&FoldedIteration>,
    rests: &[Rest],
) -> (Option<Posteriors>, Vec<Posteriors>) {
    let mut table = ContextTable::default();
    if let Some(FoldedIteration { wrapped, own, .. }) = iteration {
        table.learn(wrapped, own.clone());
    }
    let whole = |sequence: &Sequence| 0..sequence.kinds.len();
    rests.iter().for_each(|rest| table.learn(&rest.sequence, whole(&rest.sequence)));
    let mut counts = SiteCounts::default();
    let mut of_iteration: Option<Posteriors> = None;
    let mut of_rests: Vec<Option<Posteriors>> = vec![None; rests.len()];
    let by_sites = visits::flag("SITES");
    let mut iteration_seen = iteration.map(|iteration| table.sightings(&iteration.wrapped, None));
    let mut rests_seen: Vec<_> = rests.iter().map(|rest| table.sightings(&rest.sequence, None)).collect();
    for round in 0..ROUNDS {
        if by_sites && round > 0 {
            let mut table = ContextTable::default();
            if let (Some(FoldedIteration { wrapped, own, .. }), Some(found)) = (iteration, &of_iteration) {
                table.learn(wrapped, own.clone());
                table.learn_sites(wrapped, found, own.clone());
            }
            for (rest, found) in rests.iter().zip(&of_rests) {
                table.learn(&rest.sequence, whole(&rest.sequence));
                if let Some(found) = found { table.learn_sites(&rest.sequence, found, whole(&rest.sequence)); }
            }
            iteration_seen = iteration.map(|iteration| table.sightings(&iteration.wrapped, of_iteration.as_ref()));
            rests_seen = rests.iter().zip(&of_rests).map(|(rest, found)| table.sightings(&rest.sequence, found.as_ref())).collect();
        }
        let mut next = SiteCounts::default();
        if let (Some(iteration), Some(seen)) = (iteration, &iteration_seen) {
            let FoldedIteration { wrapped, own, times, .. } = iteration;
            let found = counts.decode(&wrapped.kinds, seen, of_iteration.as_ref());
            next.add(&wrapped.kinds[own.clone()], &found[own.clone()], *times);
            of_iteration = Some(found);
        }
        for ((rest, seen), was) in rests.iter().zip(&rests_seen).zip(&mut of_rests) {
            let found = counts.decode(&rest.sequence.kinds, seen, was.as_ref());
            next.add(&rest.sequence.kinds, &found, 1.0);
            *was = Some(found);
        }
        counts = next;
    }
    (of_iteration, of_rests.into_iter().map(Option::unwrap_or_default).collect())
}

/// An allocation of a delta.
#[derive(Clone, Copy)]
struct Part<'a> {
    is_large: bool,
    /// Relative to the others; requested bytes where they are known.
    size: f64,
    is_known: bool,
    sites: &'a Weights,
}

fn decoded_part(part: &Part<'_>, origin: impl Fn(Label) -> AllocationOrigin) -> DecodedPart {
    let mut sites: Vec<(AllocationOrigin, f64)> = Vec::new();
    for &(label, chance) in part.sites {
        let origin = origin(label);
        match sites.iter_mut().find(|site| site.0 == origin) {
            Some(site) => site.1 += chance,
            None => sites.push((origin, chance)),
        }
    }
    sites.sort_by(|a, b| b.1.total_cmp(&a.1));
    let requested = part.is_known.then_some(part.size as u64);
    DecodedPart { is_large: part.is_large, requested, size: part.size, sites }
}

/// The allocations of a delta.
fn divide(
    delta: &LoggedDelta,
    parts: &[Part<'_>],
    origin: impl Fn(Label) -> AllocationOrigin,
) -> Vec<DecodedPart> {
    let count = |is_large| parts.iter().filter(|part| part.is_large == is_large).count();
    let mut pools = [false, true].into_iter().zip(&delta.pools);
    if pools.all(|(is_large, pool)| count(is_large) == pool.allocations as usize) {
        return parts.iter().map(|part| decoded_part(part, &origin)).collect();
    }
    // The fold has others here: each can be any of them.
    let any = |part: &Part<'_>| decoded_part(&Part { size: 1.0, is_known: false, ..*part }, &origin);
    parts.iter().map(any).collect()
}
