//! The decoded sites of all deltas.

use std::ops::Range;

use super::delta_log::{DeltaLog, LoggedDelta};
use super::iteration::{FoldedIteration, Kinds, grows};
use super::labels::{Labels, seen_between};
use super::period::{Phases, PolledTotals};
use super::places::polled_totals;
use super::posteriors;
use super::rest::{Rest, rests};
use super::sites::Posteriors;
use super::visits::{Label, Weights};
use crate::analysis::attribution::{AllocationOrigin, WaitingPlaces};

/// A site that is at least this likely is *probable*.
const PROBABLE: f64 = 0.95;
/// One that is at least this likely is right although other threads ran.
const SURE: f64 = 0.99;

/// An allocation of a delta.
#[derive(Debug, Clone)]
pub(in crate::analysis::followed) struct DecodedPart {
    pub(in crate::analysis::followed) is_large: bool,
    /// Requested bytes, if they are known.
    pub(in crate::analysis::followed) requested: Option<u64>,
    /// Bytes, relative to the delta's other allocations.
    pub(in crate::analysis::followed) size: f64,
    /// Sites with probabilities, most likely first.
    pub(in crate::analysis::followed) sites: Vec<(AllocationOrigin, f64)>,
}

impl DecodedPart {
    /// The site, if it is probable.
    pub(in crate::analysis::followed) fn probable(&self) -> Option<AllocationOrigin> {
        match self.sites[..] {
            [(origin @ AllocationOrigin::Stack(..), chance), ..] if chance >= PROBABLE => {
                Some(origin)
            }
            _ => None,
        }
    }

    /// Whether hardly another site is possible.
    pub(in crate::analysis::followed) fn is_sure(&self) -> bool {
        self.probable().is_some() && self.sites.first().is_some_and(|site| site.1 >= SURE)
    }

    /// Its sites: one, if that is probable.
    pub(in crate::analysis::followed) fn shares(&self) -> Vec<(AllocationOrigin, f64)> {
        match self.probable() {
            Some(origin) => vec![(origin, 1.0)],
            None if self.sites.is_empty() => vec![(AllocationOrigin::NotSeen, 1.0)],
            None => self.sites.clone(),
        }
    }
}

/// A decoded allocation; those of the iteration stand for all its rounds.
#[derive(Debug)]
struct DecodedAllocation {
    is_large: bool,
    size: f64,
    is_known: bool,
    sites: Weights,
}

/// The sites of a log's deltas.
#[derive(Debug)]
pub(in crate::analysis::followed) struct DecodedSites {
    labels: Labels,
    allocations: Vec<DecodedAllocation>,
    /// By delta: its allocations, and whether it folded.
    deltas: Vec<(Vec<Range<u32>>, bool)>,
}

impl DecodedSites {
    pub(in crate::analysis::followed) fn of(log: &DeltaLog, waiting: &WaitingPlaces) -> Self {
        let mut labels = Labels::default();
        let seen = seen_between(log, waiting, &mut labels);
        let polls = polled_totals(&log.deltas);
        let mut kinds = Kinds::default();
        let phases = Phases::of(&polls);
        let iteration =
            phases.map(|phases| FoldedIteration::of(&phases, &polls, &seen, &mut kinds));
        let mut is_folded = vec![false; log.deltas.len()];
        for stretch in iteration.iter().flat_map(|iteration| &iteration.stretches) {
            is_folded[stretch.deltas.clone()].fill(true);
        }
        let rests = rests(&log.deltas, &seen, &is_folded, &mut kinds);
        let (of_iteration, of_rests) = posteriors(iteration.as_ref(), &rests);
        let deltas = is_folded.into_iter().map(|is_folded| (Vec::new(), is_folded)).collect();
        let mut found = DecodedSites { labels, allocations: Vec::new(), deltas };
        if let (Some(iteration), Some(sites)) = (&iteration, of_iteration) {
            found.add_iteration(iteration, sites, log, &polls);
        }
        for (rest, sites) in rests.iter().zip(of_rests) {
            found.add_rest(rest, sites, log);
        }
        found
    }

    fn add_iteration(
        &mut self,
        iteration: &FoldedIteration,
        sites: Posteriors,
        log: &DeltaLog,
        polls: &[PolledTotals],
    ) {
        let own = sites.into_iter().skip(iteration.own.start).take(iteration.own.len());
        let kinds = &iteration.wrapped.kinds[iteration.own.clone()];
        let known = kinds.iter().zip(&iteration.sizes).zip(own);
        self.allocations.extend(known.map(|((kind, &(is_large, size)), sites)| {
            DecodedAllocation { is_large, size, is_known: kind.is_some(), sites }
        }));
        for stretch in iteration.stretches.iter().filter(|stretch| grows(stretch, polls)) {
            let mut numbers = iteration.allocations(stretch).map(|number| number as u32);
            for number in stretch.deltas.clone() {
                let own: Vec<u32> =
                    numbers.by_ref().take(log.deltas[number].allocations()).collect();
                let runs = own.chunk_by(|a, b| a + 1 == *b);
                self.deltas[number].0 = runs.map(|run| run[0]..run[0] + run.len() as u32).collect();
            }
        }
    }

    fn add_rest(&mut self, rest: &Rest, sites: Posteriors, log: &DeltaLog) {
        let mut sites = sites.into_iter();
        for number in rest.deltas.clone() {
            let start = self.allocations.len() as u32;
            for (is_large, pool) in [false, true].into_iter().zip(&log.deltas[number].pools) {
                let is_known = pool.allocations == 1;
                let size = pool.requested_bytes as f64 / f64::from(pool.allocations.max(1));
                let own = sites.by_ref().take(pool.allocations as usize);
                self.allocations.extend(own.map(|sites| DecodedAllocation {
                    is_large,
                    size,
                    is_known,
                    sites,
                }));
            }
            let end = self.allocations.len() as u32;
            if start < end {
                self.deltas[number].0.push(start..end);
            }
        }
    }

    /// The allocations of a delta; none if nothing is known of them.
    pub(in crate::analysis::followed) fn parts(
        &self,
        number: u64,
        log: &DeltaLog,
    ) -> Vec<DecodedPart> {
        let Some(at) = log.index(number) else { return Vec::new() };
        let (Some(delta), Some((runs, is_folded))) = (log.deltas.get(at), self.deltas.get(at))
        else {
            return Vec::new();
        };
        let own =
            runs.iter().flat_map(|run| &self.allocations[run.start as usize..run.end as usize]);
        let count = |is_large| own.clone().filter(|of| of.is_large == is_large).count();
        let mut pools = [false, true].into_iter().zip(&delta.pools);
        // The fold may have others here: then each can be any of them.
        let fits = pools.all(|(is_large, pool)| count(is_large) == pool.allocations as usize);
        let part = |of: &DecodedAllocation| DecodedPart {
            is_large: of.is_large,
            requested: (fits && of.is_known).then_some(of.size as u64),
            size: if fits { of.size } else { 1.0 },
            sites: self.sites(of, *is_folded, delta, log),
        };
        own.clone().map(part).collect()
    }

    fn sites(
        &self,
        of: &DecodedAllocation,
        is_folded: bool,
        delta: &LoggedDelta,
        log: &DeltaLog,
    ) -> Vec<(AllocationOrigin, f64)> {
        let origin = |label: Label| match self.labels.origin(label, log, delta) {
            waiting if !is_folded && log.may_only_wait(waiting, delta) => AllocationOrigin::NotSeen,
            origin => origin,
        };
        let mut sites: Vec<(AllocationOrigin, f64)> = Vec::new();
        for &(label, chance) in &of.sites {
            let origin = origin(label);
            match sites.iter_mut().find(|site| site.0 == origin) {
                Some(site) => site.1 += chance,
                None => sites.push((origin, chance)),
            }
        }
        if let Some(stood) = log.stood(delta) {
            let own: f64 = sites.iter().filter(|it| stood.contains(&it.0)).map(|it| it.1).sum();
            if own > 0.0 {
                sites.retain(|it| stood.contains(&it.0));
                sites.iter_mut().for_each(|it| it.1 /= own);
            } else if !stood.is_empty() {
                let chance = 1.0 / stood.len() as f64;
                sites = stood.into_iter().map(|origin| (origin, chance)).collect();
            }
        }
        sites.sort_by(|a, b| b.1.total_cmp(&a.1));
        sites
    }
}

/// All deltas of a device in a recording, decoded: what a second reading of it needs.
#[derive(Debug)]
pub(crate) struct DecodedDeltas {
    log: DeltaLog,
    sites: DecodedSites,
}

impl DecodedDeltas {
    pub(in crate::analysis::followed) fn of(log: DeltaLog, waiting: &WaitingPlaces) -> Self {
        let sites = DecodedSites::of(&log, waiting);
        DecodedDeltas { log, sites }
    }

    pub(in crate::analysis::followed) fn parts(&self, number: u64) -> Vec<DecodedPart> {
        self.sites.parts(number, &self.log)
    }
}
