//! Who allocates what, and after whom: count tables, and the most likely sites of a sequence.

use rustc_hash::FxHashMap;

use super::visits::{Kind, Label, Sightings, Weights, add, weight};

/// Candidates of an allocation.
const CANDIDATES: usize = 10;
/// Sites of a kind that are candidates without being seen.
const OF_KIND: usize = 5;
/// Sightings of a site before the first, seen and in all.
const PRIOR: (f64, f64) = (0.15, 0.65);
/// How likely a site is that its sightings exclude.
const FLOOR: f64 = 0.03;
/// Visits count by their root, and at most this often: they are not independent.
const MOST: f64 = 3.0;
/// How likely a stack on both sides of an allocation is that did not make it.
const STAYED: f64 = 0.02;
/// The same, if it is certain to have allocated before and after.
const CAME_ROUND: f64 = 0.5;
/// Probabilities below this are left out.
const LEAST: f64 = 1e-3;
pub(super) const NOT_SEEN: Label = 0;

/// Counts of decoded allocations.
#[derive(Debug, Default)]
pub(super) struct SiteCounts {
    sites: FxHashMap<Label, f64>,
    kinds: FxHashMap<u32, f64>,
    all: f64,
    of_site: FxHashMap<Label, FxHashMap<u32, f64>>,
    of_kind: FxHashMap<u32, Weights>,
    /// By the site before: sites, and their sum.
    next: FxHashMap<Label, (FxHashMap<Label, f64>, f64)>,
}

/// The sites of each allocation, with probabilities.
pub(super) type Posteriors = Vec<Weights>;

impl SiteCounts {
    /// Adds a decoded sequence that occurred `times`.
    pub(super) fn add(&mut self, kinds: &[Kind], sites: &[Weights], times: f64) {
        for (place, (kind, sites_here)) in kinds.iter().zip(sites).enumerate() {
            for &(site, part) in sites_here.iter().filter(|it| it.1 >= 0.01) {
                let part = part * times;
                *self.sites.entry(site).or_default() += part;
                if let Some(kind) = *kind {
                    *self.of_site.entry(site).or_default().entry(kind).or_default() += part;
                    *self.kinds.entry(kind).or_default() += part;
                    add(self.of_kind.entry(kind).or_default(), site, part);
                    self.all += part;
                }
                let before = place.checked_sub(1).map(|before| &sites[before]);
                for &(site_before, part_before) in before.into_iter().flatten() {
                    if part_before > 0.01 {
                        let next = self.next.entry(site_before).or_default();
                        *next.0.entry(site).or_default() += part * part_before;
                        next.1 += part * part_before;
                    }
                }
            }
        }
    }

    /// P(kind | site), Witten-Bell.
    fn kind(&self, site: Label, kind: Kind) -> f64 {
        let Some(kind) = kind else { return 1.0 };
        let all = (self.kinds.get(&kind).copied().unwrap_or(0.0) + 0.5) / (self.all + 1.0);
        let Some(kinds) = self.of_site.get(&site) else { return all };
        let different = kinds.len() as f64;
        let seen = kinds.get(&kind).copied().unwrap_or(0.0);
        (seen + different * all) / (self.sites[&site] + different)
    }

    /// P(site | site before), Witten-Bell.
    fn next(&self, before: Label, site: Label) -> f64 {
        let any = 1.0 / (self.sites.len() as f64 + 1.0);
        let Some((next, sum)) = self.next.get(&before) else { return any };
        let different = next.len() as f64;
        let seen = next.get(&site).copied().unwrap_or(0.0);
        (seen + different * any) / (sum + different)
    }

    /// The probabilities of each allocation's sites. `was`: those of the round before.
    pub(super) fn decode(
        &self,
        kinds: &[Kind],
        sightings: &[Sightings],
        was: Option<&Posteriors>,
    ) -> Posteriors {
        let candidates = self.candidates(kinds, sightings);
        let seen: Vec<Vec<f64>> = (0..kinds.len())
            .map(|place| self.likelihoods(place, kinds, &sightings[place], &candidates[place], was))
            .collect();
        let mut forward: Vec<Vec<f64>> = Vec::with_capacity(kinds.len());
        for place in 0..kinds.len() {
            let mut here = seen[place].clone();
            if let Some(before) = place.checked_sub(1) {
                let mut sums = vec![0.0; here.len()];
                for (site_before, part) in candidates[before].iter().zip(&forward[before]) {
                    if *part > 1e-12 {
                        for (sum, site) in sums.iter_mut().zip(&candidates[place]) {
                            *sum += part * self.next(*site_before, *site).sqrt();
                        }
                    }
                }
                here.iter_mut().zip(sums).for_each(|(here, sum)| *here *= sum);
            }
            normalize(&mut here);
            forward.push(here);
        }
        let mut found = vec![Weights::new(); kinds.len()];
        let mut backward = candidates.last().map_or_else(Vec::new, |last| vec![1.0; last.len()]);
        for place in (0..kinds.len()).rev() {
            let mut parts: Vec<f64> =
                forward[place].iter().zip(&backward).map(|(a, b)| a * b).collect();
            normalize(&mut parts);
            let both = candidates[place].iter().copied().zip(parts);
            found[place] = both.filter(|it| it.1 > LEAST).collect();
            let Some(before) = place.checked_sub(1) else { break };
            let here: Vec<f64> = seen[place].iter().zip(&backward).map(|(a, b)| a * b).collect();
            backward = candidates[before]
                .iter()
                .map(|site_before| {
                    let next = candidates[place].iter().zip(&here);
                    next.map(|(site, here)| self.next(*site_before, *site).sqrt() * here).sum()
                })
                .collect();
            normalize(&mut backward);
        }
        found
    }

    /// What was seen nearest before and after each allocation, and the sites of its kind.
    fn candidates(&self, kinds: &[Kind], sightings: &[Sightings]) -> Vec<Vec<Label>> {
        let known = [0, 1].map(|side| {
            (0..kinds.len()).filter(|&at| sightings[at].visits[side] > 0.0).collect::<Vec<_>>()
        });
        let mut found = Vec::with_capacity(kinds.len());
        for (place, kind) in kinds.iter().enumerate() {
            let mut scores = Weights::new();
            let before = known[0].partition_point(|&at| at <= place).checked_sub(1);
            let after = known[1].partition_point(|&at| at < place);
            let near = [
                (0, before, 1.0),
                (0, before.and_then(|before| before.checked_sub(1)), 0.3),
                (1, Some(after), 1.0),
                (1, Some(after + 1), 0.3),
            ];
            for (side, at, worth) in near {
                let Some(&at) = at.and_then(|at| known[side].get(at)) else { continue };
                for &(label, by) in &sightings[at].seen[side] {
                    add(&mut scores, label, worth * by / sightings[at].visits[side]);
                }
            }
            if let Some(sites) = kind.and_then(|kind| self.of_kind.get(&kind)) {
                let sum: f64 = sites.iter().map(|it| it.1).sum();
                let mut sites = sites.clone();
                sites.sort_by(|a, b| b.1.total_cmp(&a.1));
                for (site, by) in sites.into_iter().take(OF_KIND) {
                    add(&mut scores, site, 0.5 * by / sum);
                }
            }
            if scores.is_empty() {
                scores.push((NOT_SEEN, 1.0));
            }
            scores.sort_by(|a, b| b.1.total_cmp(&a.1));
            found.push(scores.into_iter().take(CANDIDATES).map(|it| it.0).collect());
        }
        found
    }

    /// P(what was seen around it, its kind | site), for each candidate.
    fn likelihoods(
        &self,
        place: usize,
        kinds: &[Kind],
        sightings: &Sightings,
        candidates: &[Label],
        was: Option<&Posteriors>,
    ) -> Vec<f64> {
        let visits = sightings.visits[2];
        // A stack on both sides that did not make it must have come round between its neighbours.
        let stayed: Weights = match visits > 0.0 {
            false => Weights::new(),
            true => {
                let one = |&(label, by): &(Label, f64)| {
                    let neighbours = was.filter(|was| place > 0 && place + 1 < was.len());
                    let around = neighbours.map_or(0.0, |was| {
                        weight(&was[place - 1], label) * weight(&was[place + 1], label)
                    });
                    let chance: f64 = STAYED + (1.0 - STAYED) * CAME_ROUND * around;
                    (label, chance.powf(by / visits * visits.sqrt().min(MOST)))
                };
                sightings.seen[2].iter().map(one).collect()
            }
        };
        let all: f64 = stayed.iter().map(|it| it.1).product();
        let of = |site: &Label| {
            let own = stayed.iter().find(|it| it.0 == *site).map_or(1.0, |it| it.1);
            let sides = (0..3)
                .map(|side| seen(sightings.visits[side], weight(&sightings.seen[side], *site)));
            self.kind(*site, kinds[place]).sqrt() * all / own * sides.product::<f64>()
        };
        candidates.iter().map(of).collect()
    }
}

/// How likely it is that a site was seen in `times` of `visits`, if it is the right one.
fn seen(visits: f64, times: f64) -> f64 {
    if visits == 0.0 {
        return 1.0;
    }
    let share = (times + PRIOR.0) / (visits + PRIOR.1);
    FLOOR + (1.0 - FLOOR) * share.powf(visits.sqrt().min(MOST))
}

fn normalize(parts: &mut [f64]) {
    let sum: f64 = parts.iter().sum();
    let sum = if sum > 0.0 { sum } else { 1e-300 };
    parts.iter_mut().for_each(|part| *part /= sum);
}
