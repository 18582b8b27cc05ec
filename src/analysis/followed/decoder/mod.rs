//! Decodes a followed recording: the sites of all allocations, with probabilities.
//!
//! The program's path over its allocation sites is hidden; polls see parts of it. Most jobs repeat
//! iterations, so the polls of all iterations are [folded](period) into one: a burst of many
//! allocations between two polls has polls of other iterations inside it. Between each two
//! allocations of the folded iteration stands what all polls saw there ([`visits`]). Where the job
//! does not repeat itself, its allocations stand in their own order. A hidden Markov model over
//! sites finds the most likely path; its counts come from the rounds before ([`sites`]). How sure it
//! must be is measured in each recording ([`held_out`]).

mod decoded;
mod delta_log;
mod held_out;
mod iteration;
mod labels;
mod period;
mod places;
mod rest;
mod sites;
mod visits;

pub(crate) use decoded::DecodedDeltas;
pub(super) use decoded::DecodedPart;
pub(super) use delta_log::DeltaLog;

use held_out::{Answers, HeldOut};
use iteration::FoldedIteration;
use rest::Rest;
use sites::{Posteriors, SiteCounts};
use visits::ContextTable;

/// Rounds of decoding and counting.
const ROUNDS: usize = 3;

/// The sites of the iteration's allocations, and of all others; from which probability on they are
/// probable.
struct Decoded {
    of_iteration: Option<Posteriors>,
    of_rests: Vec<Posteriors>,
    probable_from: [f64; 2],
}

fn decode(iteration: Option<&FoldedIteration>, rests: &[Rest]) -> Decoded {
    let held_out =
        (iteration.map(held_out::of_iteration), rests.iter().map(held_out::of_rest).collect());
    let (of_iteration, of_rests) = posteriors(iteration, rests, &held_out);
    let mut answers = [Answers::default(), Answers::default()];
    if let (Some(iteration), Some(held_out), Some(found)) = (iteration, &held_out.0, &of_iteration)
    {
        let mut found = found.clone();
        found.truncate(iteration.own.end);
        answers[0].add(&held_out[iteration.own.clone()], &found.split_off(iteration.own.start));
    }
    for (held_out, found) in held_out.1.iter().zip(&of_rests) {
        answers[1].add(held_out, found);
    }
    let probable_from = answers.map(|answers| answers.probable_from());
    let none = (None, vec![HeldOut::new(); rests.len()]);
    let (of_iteration, of_rests) = posteriors(iteration, rests, &none);
    Decoded { of_iteration, of_rests, probable_from }
}

/// `held_out`: what was seen at these allocations is left out.
fn posteriors(
    iteration: Option<&FoldedIteration>,
    rests: &[Rest],
    held_out: &(Option<HeldOut>, Vec<HeldOut>),
) -> (Option<Posteriors>, Vec<Posteriors>) {
    let mut table = ContextTable::default();
    let of_iteration = held_out.0.as_deref().unwrap_or_default();
    if let Some(FoldedIteration { wrapped, own, .. }) = iteration {
        table.learn(wrapped, own.clone(), of_iteration);
    }
    for (rest, held_out) in rests.iter().zip(&held_out.1) {
        table.learn(&rest.sequence, 0..rest.sequence.kinds.len(), held_out);
    }
    let iteration_seen =
        iteration.map(|iteration| table.sightings(&iteration.wrapped, of_iteration));
    let with_held_out = rests.iter().zip(&held_out.1);
    let rests_seen: Vec<_> =
        with_held_out.map(|(rest, out)| table.sightings(&rest.sequence, out)).collect();
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
