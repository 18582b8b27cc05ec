//! What polls saw between allocations.

use rustc_hash::FxHashMap;

/// A possible allocation site: a number of [`super::Labels`].
pub(super) type Label = u32;
/// Labels and their weights.
pub(super) type Weights = Vec<(Label, f64)>;

/// Labels kept at one place, so that a job of very many sites costs no more.
const MOST_LABELS: usize = 32;
/// Weight of what only a later poll of a gap saw.
const FAR: f64 = 0.5;

pub(super) fn weight(of: &[(Label, f64)], label: Label) -> f64 {
    of.iter().find(|it| it.0 == label).map_or(0.0, |it| it.1)
}

/// Adds to a label. The lightest of too many labels are forgotten.
pub(super) fn add(to: &mut Weights, label: Label, by: f64) {
    if let Some(it) = to.iter_mut().find(|it| it.0 == label) {
        it.1 += by;
        return;
    }
    if to.len() >= 2 * MOST_LABELS {
        to.sort_by(|a, b| b.1.total_cmp(&a.1));
        to.truncate(MOST_LABELS);
    }
    to.push((label, by));
}

/// What was seen at one place between two allocations, over all visits: as seen from the
/// allocation before it, and from the one behind it.
#[derive(Debug, Clone, Default)]
pub(super) struct Gap {
    pub(super) visits: f64,
    pub(super) before: Weights,
    pub(super) behind: Weights,
}

impl Gap {
    /// Takes the polls of one visit. Returns what the first of them saw, and the last.
    pub(super) fn visit(&mut self, polls: &[Weights]) -> Option<(Weights, Weights)> {
        if polls.is_empty() {
            return None;
        }
        self.visits += 1.0;
        let first = nearest(polls.iter());
        let last = nearest(polls.iter().rev());
        first.iter().for_each(|&(label, by)| add(&mut self.before, label, by));
        last.iter().for_each(|&(label, by)| add(&mut self.behind, label, by));
        Some((first, last))
    }
}

fn nearest<'a>(polls: impl Iterator<Item = &'a Weights>) -> Weights {
    let mut got = Weights::new();
    for (nth, poll) in polls.enumerate() {
        for &(label, by) in poll {
            let by = if nth == 0 { by } else { by * FAR };
            match got.iter_mut().find(|it| it.0 == label) {
                Some(it) => it.1 = it.1.max(by),
                None => got.push((label, by)),
            }
        }
    }
    got
}

/// What was seen right before and right after an allocation, over its visits.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    pub(super) visits: f64,
    pub(super) seen: Weights,
}

impl Around {
    pub(super) fn visit(&mut self, before: &Weights, after: &Weights) {
        self.visits += 1.0;
        for &(label, by) in before {
            let after = weight(after, label);
            if after > 0.0 {
                add(&mut self.seen, label, by.min(after));
            }
        }
    }
}

/// What was seen before an allocation, after it, and on both sides of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Sightings {
    pub(super) visits: [f64; 3],
    pub(super) seen: [Weights; 3],
}

impl Sightings {
    pub(super) fn add(&mut self, before: &Gap, after: &Gap, around: &Around) {
        let sides = [
            (before.visits, &before.behind),
            (after.visits, &after.before),
            (around.visits, &around.seen),
        ];
        for (side, (visits, seen)) in sides.into_iter().enumerate() {
            if visits > 0.0 {
                self.visits[side] += visits;
                seen.iter().for_each(|&(label, by)| add(&mut self.seen[side], label, by));
            }
        }
    }

    /// Adds those of a narrower context, to which these are worth at most `most` visits.
    fn narrow(&mut self, to: &Sightings, most: f64) {
        for side in 0..3 {
            if to.visits[side] == 0.0 {
                continue;
            }
            let own = self.visits[side];
            let factor = if own > most { most / own } else { 1.0 };
            self.visits[side] = own * factor + to.visits[side];
            self.seen[side].iter_mut().for_each(|it| it.1 *= factor);
            to.seen[side].iter().for_each(|&(label, by)| add(&mut self.seen[side], label, by));
        }
    }
}

/// What an allocation is known by: its pool and requested bytes, if it was alone between two polls.
pub(super) type Kind = Option<u32>;

/// Allocations in order, with what polls saw between them: one more gap than allocations.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    pub(super) kinds: Vec<Kind>,
    pub(super) gaps: Vec<Gap>,
    pub(super) around: Vec<Around>,
}

/// Kinds on each side of an allocation that make a context.
const REACHES: [usize; 5] = [1, 2, 4, 8, 16];
/// Visits that a wider context is worth to a narrower one.
const WORTH: f64 = 2.0;

/// Contexts of an allocation, widest reach last, until a kind in them is unknown.
fn contexts(kinds: &[Kind]) -> Vec<Vec<u64>> {
    let at = |place: isize| match usize::try_from(place).ok().and_then(|n| kinds.get(n)) {
        Some(Some(kind)) => Some(u64::from(*kind) + 1),
        Some(None) => None,
        None => Some(0),
    };
    let of = |place: usize| {
        let mut found = Vec::new();
        for reach in REACHES {
            let (first, last) = (place as isize - reach as isize, (place + reach) as isize);
            let mut hash = reach as u64;
            for kind in (first..=last).map(at) {
                let Some(kind) = kind else { return found };
                hash = (hash.rotate_left(5) ^ kind).wrapping_mul(0x517c_c1b7_2722_0a95);
            }
            found.push(hash);
        }
        found
    };
    (0..kinds.len()).map(of).collect()
}

/// What was seen at all places with one context.
#[derive(Debug, Default)]
pub(super) struct ContextTable(FxHashMap<u64, Sightings>);

impl ContextTable {
    /// `own`: the part to learn from; the rest is context.
    pub(super) fn learn(&mut self, of: &Sequence, own: std::ops::Range<usize>) {
        let contexts = contexts(&of.kinds);
        for place in own {
            for context in &contexts[place] {
                let sightings = self.0.entry(*context).or_default();
                sightings.add(&of.gaps[place], &of.gaps[place + 1], &of.around[place]);
            }
        }
    }

    /// Of each allocation its own sightings, with those of its contexts behind them.
    pub(super) fn sightings(&self, of: &Sequence) -> Vec<Sightings> {
        let all = contexts(&of.kinds).into_iter().enumerate();
        all.map(|(place, contexts)| {
            let mut sum = Sightings::default();
            for known in contexts.iter().filter_map(|context| self.0.get(context)) {
                sum.narrow(known, WORTH);
            }
            let mut own = Sightings::default();
            own.add(&of.gaps[place], &of.gaps[place + 1], &of.around[place]);
            sum.narrow(&own, WORTH);
            sum
        })
        .collect()
    }
}
