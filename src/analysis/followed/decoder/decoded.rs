//! The decoded sites of all deltas.

use super::delta_log::{DeltaLog, LoggedDelta};
use super::iteration::{FoldedIteration, Kinds, grows};
use super::labels::{Labels, seen_between};
use super::period::{Phases, PolledTotals};
use super::places::polled_totals;
use super::posteriors;
use super::rest::{Rest, rests};
use super::sites::Posteriors;
use super::threads;
use super::visits::{Label, Weights};
use crate::analysis::attribution::{AllocationOrigin, WaitingPlaces};

/// A site that is at least this likely is *probable*. The decoder is rather too careful: in the
/// scored set, 98 % of what is this likely or more was right.
pub(super) const PROBABLE: f64 = 0.9;
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
struct DecodedSites {
    labels: Labels,
    /// The iteration's come first.
    allocations: Vec<DecodedAllocation>,
    /// How many the iteration has.
    iteration: u32,
    deltas: Vec<DeltaSites>,
}

/// The allocations of a delta: so many from this one on. Those of the iteration go on with its
/// first.
#[derive(Debug, Clone, Copy, Default)]
struct DeltaSites {
    first: u32,
    count: u32,
    is_folded: bool,
}

impl DecodedSites {
    fn of(log: &DeltaLog, waiting: &WaitingPlaces) -> Self {
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
        let unknown = |is_folded| DeltaSites { is_folded, ..DeltaSites::default() };
        let deltas = is_folded.into_iter().map(unknown).collect();
        let mut found = DecodedSites { labels, allocations: Vec::new(), iteration: 0, deltas };
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
        self.iteration = self.allocations.len() as u32;
        for stretch in iteration.stretches.iter().filter(|stretch| grows(stretch, polls)) {
            let mut first = iteration.first(stretch) as u32;
            for number in stretch.deltas.clone() {
                let count = log.deltas[number].allocations();
                let of = &mut self.deltas[number];
                (of.first, of.count) = (first, u32::try_from(count).unwrap_or(u32::MAX));
                first = ((first as usize + count) % self.iteration.max(1) as usize) as u32;
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
            let of = &mut self.deltas[number];
            (of.first, of.count) = (start, self.allocations.len() as u32 - start);
        }
    }

    /// Numbers of a delta's allocations, and how often each comes.
    fn numbers(&self, of: DeltaSites) -> Vec<(u32, u32)> {
        let DeltaSites { first, count, is_folded } = of;
        match is_folded.then_some(self.iteration).filter(|all| *all > 0) {
            None => (first..first + count).map(|number| (number, 1)).collect(),
            Some(all) => {
                let (rounds, rest) = (count / all, count % all);
                let different = count.min(all);
                let times = |nth| rounds + u32::from(nth < rest);
                (0..different).map(|nth| ((first + nth) % all, times(nth))).collect()
            }
        }
    }

    /// The allocations of a delta; none if nothing is known of them.
    fn parts(&self, number: u64, log: &DeltaLog) -> Vec<DecodedPart> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let (Some(delta), Some(of)) = (log.deltas.get(at), self.deltas.get(at)) else {
            return Vec::new();
        };
        let own: Vec<(&DecodedAllocation, u32)> = self
            .numbers(*of)
            .into_iter()
            .filter_map(|(number, times)| Some((self.allocations.get(number as usize)?, times)))
            .collect();
        let count = |is_large| {
            let of_pool = own.iter().filter(|(of, _)| of.is_large == is_large);
            of_pool.map(|(_, times)| *times).fold(0, u32::saturating_add)
        };
        let mut pools = [false, true].into_iter().zip(&delta.pools);
        // The fold may have others here: then each can be any of them.
        let fits = pools.all(|(is_large, pool)| count(is_large) == pool.allocations);
        let part = |&(allocation, times): &(&DecodedAllocation, u32)| DecodedPart {
            is_large: allocation.is_large,
            requested: (fits && allocation.is_known && times == 1)
                .then_some(allocation.size as u64),
            size: if fits { allocation.size * f64::from(times) } else { f64::from(times) },
            sites: self.sites(allocation, of.is_folded, delta, log),
        };
        own.iter().map(part).collect()
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

/// What was decoded of a log's deltas.
#[derive(Debug)]
enum Decoded {
    /// Of one thread.
    Path(DecodedSites),
    /// Of several: by delta.
    Threads(Vec<Vec<DecodedPart>>),
}

/// All deltas of a device in a recording, decoded: what a second reading of it needs.
#[derive(Debug)]
pub(crate) struct DecodedDeltas {
    log: DeltaLog,
    decoded: Decoded,
}

impl DecodedDeltas {
    pub(in crate::analysis::followed) fn of(log: DeltaLog, waiting: &WaitingPlaces) -> Self {
        let decoded = Decoded::Path(DecodedSites::of(&log, waiting));
        DecodedDeltas { log, decoded }
    }

    /// Decodes a log in which several threads allocate.
    pub(in crate::analysis::followed) fn of_threads(log: DeltaLog) -> Self {
        let decoded = Decoded::Threads(threads::decode(&log));
        DecodedDeltas { log, decoded }
    }

    /// Whether it says which of several threads allocated.
    pub(in crate::analysis::followed) fn are_of_threads(&self) -> bool {
        matches!(self.decoded, Decoded::Threads(_))
    }

    pub(in crate::analysis::followed) fn into_log(self) -> DeltaLog {
        self.log
    }

    pub(in crate::analysis::followed) fn parts(&self, number: u64) -> Vec<DecodedPart> {
        match &self.decoded {
            Decoded::Path(sites) => sites.parts(number, &self.log),
            Decoded::Threads(parts) => {
                let at = usize::try_from(number).unwrap_or(usize::MAX);
                parts.get(at).cloned().unwrap_or_default()
            }
        }
    }
}
