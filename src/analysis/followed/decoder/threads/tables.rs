//! What is learned of sites: how many allocations a stay makes there, and how large they are.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::SiteNumber;
use super::beam::{LatticeEdge, ThreadLattice, ThreadState};
use super::stays::{ContestedDelta, ThreadStays};

/// Which allocation: its site, and the how-manieth of a stay, from 1 on.
pub(super) type Slot = (SiteNumber, u8);

/// How likely a thread allocates once more in a stay, before anything is learned; and at most.
const FIRST_CHANCE: f64 = 0.3;
const MOST_CHANCE: f64 = 0.995;
/// Stays with as many allocations as the mean says that are added to those counted.
const USUAL_STAYS: f64 = 1.0;
/// Allocations of a slot from which rules are learned.
const LEARNED: usize = 3_000;
/// Less likely explanations teach nothing.
const LEAST_CHANCE: f64 = 0.02;
/// Rules of a slot; a rule holds for this share of its allocations, and for so many, at least.
const MOST_RULES: usize = 4;
const LEAST_SHARE: f64 = 0.04;
const LEAST_TIMES: f64 = 3.0;
/// No rule is surer.
const SUREST: f64 = 0.985;
/// Allocations of all slots that are added to those of a slot, to know which sizes are usual.
const OF_ALL: f64 = 5.0;

/// A size is so many times, as a fraction, what the thread last allocated at a slot.
type SizeRule = (Slot, u64, u64);

/// How many allocations have sizes of half a power of two.
#[derive(Debug, Default)]
struct SizeBins(FxHashMap<u8, f64>, f64);

fn bin(size: u64) -> u8 {
    (2.0 * (size.max(1) as f64).log2()) as u8
}

impl SizeBins {
    fn add(&mut self, size: u64, chance: f64) {
        *self.0.entry(bin(size)).or_default() += chance;
        self.1 += chance;
    }

    fn count(&self, size: u64) -> f64 {
        self.0.get(&bin(size)).copied().unwrap_or(0.0)
    }
}

/// Counts of decoded allocations.
#[derive(Debug, Default)]
pub(super) struct ThreadTables {
    /// By site: how likely a stay with 0, 1, 2... allocations makes one more.
    chances: FxHashMap<SiteNumber, Vec<f64>>,
    rules: FxHashMap<Slot, Vec<(SizeRule, f64)>>,
    bins: FxHashMap<Slot, SizeBins>,
    all: SizeBins,
}

impl ThreadTables {
    /// How likely a stay at a site that made so many allocations makes one more.
    pub(super) fn chance(&self, site: SiteNumber, made: usize) -> f64 {
        let chances = self.chances.get(&site);
        let chance = chances.and_then(|of| of.get(made).or(of.last()));
        chance.copied().unwrap_or(FIRST_CHANCE)
    }

    /// Sizes that the rules expect, with chances, and the chance of another size.
    pub(super) fn expected(&self, state: &ThreadState, slot: Slot) -> (Vec<(u64, f64)>, f64) {
        let rules = self.rules.get(&slot).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<(u64, f64)> = Vec::with_capacity(rules.len());
        let mut rest = 1.0;
        for &((slot, times, of), chance) in rules {
            let size = state.size(slot).map(|size| size as f64 * times as f64 / of as f64);
            let Some(size) = size.map(|size| size.round() as u64) else { continue };
            if size > 0 && found.iter().all(|it| it.0 != size) {
                found.push((size, rest * chance));
                rest *= 1.0 - chance;
            }
        }
        (found, rest)
    }

    /// How usual a size is, among all allocations.
    fn share(&self, size: u64) -> f64 {
        (self.all.count(size) + 0.5) / (self.all.1 + 20.0)
    }

    /// How often a size that no rule expects comes at a slot, beside all other slots.
    fn unusual(&self, slot: Slot, size: u64) -> f64 {
        let all = self.share(size);
        let own = self.bins.get(&slot);
        own.map_or(1.0, |own| (own.count(size) + OF_ALL * all) / (own.1 + OF_ALL) / all)
    }

    /// How well a size that rules expect with this chance fits, beside any size.
    pub(super) fn fit_of_expected(&self, size: u64, chance: f64) -> f64 {
        // Sizes of one bin are the less likely the more there are.
        let sizes = (size as f64 * 0.41 / 512.0).max(1.0);
        chance * sizes / self.share(size)
    }

    /// How well a size fits a slot, beside any size.
    pub(super) fn fit(&self, state: &ThreadState, slot: Slot, size: u64) -> f64 {
        let (expected, rest) = self.expected(state, slot);
        let as_expected = expected.iter().find(|it| it.0 == size);
        let of_rules = as_expected.map_or(0.0, |it| self.fit_of_expected(size, it.1));
        of_rules + rest * self.unusual(slot, size)
    }

    /// Counts what a lattice says of single allocations.
    pub(super) fn learn(
        lattice: &ThreadLattice,
        deltas: &[ContestedDelta],
        threads: &[ThreadStays],
    ) -> ThreadTables {
        let mut tables = ThreadTables::default();
        let mut holding: FxHashMap<Slot, Vec<HoldingRules>> = FxHashMap::default();
        let mut counts = StayCounts::default();
        lattice.edges(|number, edge| {
            if edge.chance < LEAST_CHANCE {
                return;
            }
            counts.add(&edge, &deltas[number], threads);
            for one in &edge.explanation.made {
                tables.bins.entry(one.slot).or_default().add(one.size, edge.chance);
                tables.all.add(one.size, edge.chance);
                let of_slot = holding.entry(one.slot).or_default();
                if of_slot.len() < LEARNED {
                    let rule = |&(slot, size): &(Slot, u64)| {
                        let common = common_divisor(one.size, size);
                        (slot, one.size / common, size / common)
                    };
                    let rules = edge.from.states[one.thread].sizes().iter().map(rule).collect();
                    of_slot.push((edge.chance, rules));
                }
            }
        });
        tables.rules = holding.into_iter().map(|(slot, of)| (slot, best_rules(of))).collect();
        tables.chances = counts.chances();
        tables
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

/// How likely an allocation was at a slot, and the rules that hold for its size then.
type HoldingRules = (f64, Vec<SizeRule>);

/// The rules that hold most often, each where those before it do not.
fn best_rules(mut left: Vec<HoldingRules>) -> Vec<(SizeRule, f64)> {
    let weight = |of: &[HoldingRules]| of.iter().map(|it| it.0).sum::<f64>();
    let least = (LEAST_SHARE * weight(&left)).max(LEAST_TIMES);
    let mut found = Vec::new();
    while found.len() < MOST_RULES {
        let mut counts: FxHashMap<SizeRule, f64> = FxHashMap::default();
        for (chance, rules) in &left {
            rules.iter().for_each(|rule| *counts.entry(*rule).or_default() += chance);
        }
        let equals = |rule: &SizeRule| rule.1 == rule.2;
        let order = |a: &(SizeRule, f64), b: &(SizeRule, f64)| {
            let simple = equals(&a.0).cmp(&equals(&b.0));
            a.1.total_cmp(&b.1).then(simple).then(Reverse(a.0).cmp(&Reverse(b.0)))
        };
        let Some((rule, times)) = counts.into_iter().max_by(order) else { break };
        if times < least {
            break;
        }
        found.push((rule, (times / (weight(&left) + 1.0)).min(SUREST)));
        left.retain(|holding| !holding.1.contains(&rule));
    }
    found
}

/// By site and number of allocations: how often a stay made one more, and how often it ended.
#[derive(Default)]
struct StayCounts(FxHashMap<SiteNumber, Vec<[f64; 2]>>);

impl StayCounts {
    fn count(&mut self, site: SiteNumber, made: usize, has_ended: bool, chance: f64) {
        let of_site = self.0.entry(site).or_default();
        if of_site.len() <= made {
            of_site.resize(made + 1, [0.0; 2]);
        }
        of_site[made][usize::from(has_ended)] += chance;
    }

    fn add(&mut self, edge: &LatticeEdge<'_>, of: &ContestedDelta, threads: &[ThreadStays]) {
        let (one, Some(to)) = (edge.explanation.made.first(), edge.to) else { return };
        for span in &of.spans {
            let [from, to] = [edge.from, to].map(|it| &it.states[span.thread]);
            let sites = &threads[span.thread];
            for stay in from.stay..to.stay {
                let made = if stay == from.stay { from.made } else { Some(0) };
                // A burst that is not explained may have been anywhere.
                if let Some(made) = made.filter(|_| to.made.is_some()) {
                    self.count(sites.site(stay), made, true, edge.chance);
                }
            }
            if let Some(one) = one.filter(|it| it.thread == span.thread)
                && let Some(made) = to.made.and_then(|made| made.checked_sub(1))
            {
                self.count(one.slot.0, made, false, edge.chance);
            }
        }
    }

    fn chances(self) -> FxHashMap<SiteNumber, Vec<f64>> {
        let chances = |(site, counts): (SiteNumber, Vec<[f64; 2]>)| {
            let sum = |side: usize| counts.iter().map(|it| it[side]).sum::<f64>();
            let usual = sum(0) / (sum(0) + sum(1)).max(1.0);
            let chance = |[more, ended]: &[f64; 2]| {
                ((more + USUAL_STAYS * usual) / (more + ended + USUAL_STAYS)).min(MOST_CHANCE)
            };
            (site, counts.iter().map(chance).collect())
        };
        self.0.into_iter().map(chances).collect()
    }
}
