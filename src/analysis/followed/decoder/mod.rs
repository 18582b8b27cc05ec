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

/// What a delta's allocations are attributed to.
pub(super) struct DecodedShare {
    /// Sites with probabilities, most likely first.
    pub(super) sites: Vec<(AllocationOrigin, f64)>,
    pub(super) bytes: u64,
    pub(super) allocations: u64,
    /// Several threads can have made the delta.
    pub(super) contested: bool,
}

/// Calls `take` with the shares of all deltas that are not charged elsewhere.
pub(super) fn decode(log: &DeltaLog, waiting: &WaitingPlaces, mut take: impl FnMut(DecodedShare)) {
    let mut labels = Labels::default();
    let seen = labels::seen_between(log, waiting, &mut labels);
    let polls = polled_totals(&log.deltas);
    let mut kinds = Kinds::default();
    let phases = Phases::of(&polls);
    let iteration = phases.map(|phases| FoldedIteration::of(&phases, &polls, &seen, &mut kinds));
    let mut is_folded = vec![false; log.deltas.len()];
    for stretch in iteration.iter().flat_map(|iteration| &iteration.stretches) {
        is_folded[stretch.deltas.clone()].fill(true);
    }
    let rests = rests(&log.deltas, &seen, &is_folded, &mut kinds);
    let (of_iteration, of_rests) = posteriors(iteration.as_ref(), &rests);
    let mut charge = |delta: &LoggedDelta, parts: &[Part<'_>], is_folded: bool| {
        let origin = |label| match labels.origin(label, log, delta) {
            waiting if !is_folded && log.may_only_wait(waiting, delta) => AllocationOrigin::NotSeen,
            origin => origin,
        };
        divide(delta, parts, origin, &mut take);
    };
    if let (Some(iteration), Some(found)) = (&iteration, &of_iteration) {
        let found = &found[iteration.own.clone()];
        for stretch in iteration.stretches.iter().filter(|stretch| grows(stretch, &polls)) {
            let mut numbers = iteration.allocations(stretch);
            for delta in &log.deltas[stretch.deltas.clone()] {
                let count = delta.pools.iter().map(|pool| pool.allocations as usize).sum();
                let own = numbers.by_ref().take(count);
                let part = |number: usize| {
                    let (is_large, size) = iteration.sizes[number];
                    Part { is_large, size, sites: &found[number] }
                };
                charge(delta, &own.map(part).collect::<Vec<_>>(), true);
            }
        }
    }
    for (rest, found) in rests.iter().zip(&of_rests) {
        let mut found = found.iter();
        for delta in &log.deltas[rest.deltas.clone()] {
            let mut parts = Vec::new();
            for (is_large, pool) in [false, true].into_iter().zip(&delta.pools) {
                let own = found.by_ref().take(pool.allocations as usize);
                parts.extend(own.map(|sites| Part { is_large, size: 1.0, sites }));
            }
            charge(delta, &parts, false);
        }
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
    let iteration_seen = iteration.map(|iteration| table.sightings(&iteration.wrapped));
    let rests_seen: Vec<_> = rests.iter().map(|rest| table.sightings(&rest.sequence)).collect();
    let mut counts = SiteCounts::default();
    let mut of_iteration: Option<Posteriors> = None;
    let mut of_rests: Vec<Option<Posteriors>> = vec![None; rests.len()];
    for _ in 0..ROUNDS {
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
    /// Relative to the others.
    size: f64,
    sites: &'a Weights,
}

/// Divides a delta's bytes among its allocations.
fn divide(
    delta: &LoggedDelta,
    parts: &[Part<'_>],
    origin: impl Fn(Label) -> AllocationOrigin,
    take: &mut impl FnMut(DecodedShare),
) {
    if delta.is_charged {
        return;
    }
    for (is_large, pool) in [false, true].into_iter().zip(&delta.pools) {
        let mut own: Vec<Part<'_>> =
            parts.iter().filter(|part| part.is_large == is_large).copied().collect();
        if own.len() != pool.allocations as usize {
            // The fold has others here: each can be any of them.
            own = parts.iter().map(|part| Part { size: 1.0, ..*part }).collect();
        }
        let sum: f64 = own.iter().map(|part| part.size).sum();
        let mut left = pool.allocated_bytes;
        let mut allocations = u64::from(pool.allocations);
        for (nth, part) in own.iter().enumerate() {
            let is_last = nth + 1 == own.len();
            let bytes = (pool.allocated_bytes as f64 * part.size / sum.max(1.0)) as u64;
            let bytes = if is_last { left } else { bytes.min(left) };
            let count = if is_last { allocations } else { allocations.min(1) };
            (left, allocations) = (left - bytes, allocations - count);
            let sites = part.sites.iter().map(|&(label, chance)| (origin(label), chance));
            let mut sites: Vec<(AllocationOrigin, f64)> = sites.collect();
            sites.sort_by(|a, b| b.1.total_cmp(&a.1));
            take(DecodedShare { sites, bytes, allocations: count, contested: delta.contested });
        }
    }
}
