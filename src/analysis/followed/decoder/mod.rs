//! Decodes a followed recording: the sites of all allocations, with probabilities.
//!
//! The program's path over its allocation sites is hidden; polls see parts of it. Most jobs repeat
//! iterations, so the polls of all iterations are [folded](period) into one: a burst of many
//! allocations between two polls has polls of other iterations inside it. Between each two
//! allocations of the folded iteration stands what all polls saw there ([`visits`]). Where the job
//! does not repeat itself, its allocations stand in their own order. A hidden Markov model over
//! sites finds the most likely path; its counts come from the rounds before ([`sites`]).
//!
//! That is one path: of one thread. Where several allocate, [`threads`] decodes.

mod decoded;
mod delta_log;
mod iteration;
mod labels;
mod period;
mod places;
mod rest;
mod sites;
mod threads;
mod visits;

pub(crate) use decoded::DecodedDeltas;
pub(super) use decoded::DecodedPart;
pub(super) use delta_log::DeltaLog;

use iteration::FoldedIteration;
use rest::Rest;
use sites::{Posteriors, SiteCounts};
use visits::{ContextTable, Sequence};

/// Rounds of decoding and counting.
const ROUNDS: usize = 3;

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
