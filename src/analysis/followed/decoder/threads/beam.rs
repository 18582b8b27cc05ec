//! What all threads may have done up to a delta, and the search for the likeliest of it.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::bursts::Explanations;
use super::stays::{ContestedDelta, Passages, StaySpan, ThreadStays};
use super::tables::{Slot, ThreadTables};
use super::{PlacedAllocation, SiteNumber};

/// The first allocations of a stay have a number each; all later ones share the last.
const MOST_SLOTS: u8 = 6;
/// Allocations of a stay that are counted.
const MOST_COUNTED: usize = 12;
/// Sizes remembered of a thread.
const MOST_SIZES: usize = 8;
/// Hypotheses kept.
const BEAM: usize = 12;
/// Less likely ones than the best by this are dropped, as a logarithm.
const FAR_BEHIND: f64 = 12.0;
/// How likely a thread made a delta that is not listed or was elsewhere, beside those listed;
/// and where polls say that this is possible.
const ELSEWHERE: [f64; 2] = [0.004, 0.03];
/// No chance is lower.
const LEAST: f64 = 1e-9;
/// The least chance that a stay makes no further allocation.
const LEAST_END: f64 = 1e-4;

/// Where a thread is, in a hypothesis.
#[derive(Debug, Clone, Default)]
pub(super) struct ThreadState {
    pub(super) stay: usize,
    /// Allocations in this stay; `None` if not known.
    pub(super) made: Option<usize>,
    /// Its last allocation, if known.
    pub(super) slot: Option<Slot>,
    /// The last size at each slot, the latest at the end.
    sizes: [(Slot, u64); MOST_SIZES],
    /// How many of them are known.
    known: usize,
    /// States with one key are alike.
    pub(super) key: u64,
}

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let product = (a ^ b.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ (product >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl ThreadState {
    pub(super) fn size(&self, slot: Slot) -> Option<u64> {
        self.sizes().iter().find(|it| it.0 == slot).map(|it| it.1)
    }

    pub(super) fn sizes(&self) -> &[(Slot, u64)] {
        &self.sizes[..self.known]
    }

    fn put(&mut self, slot: Slot, size: u64) {
        let all = self.sizes().len();
        let old = self.sizes().iter().position(|it| it.0 == slot);
        // If it is new, it takes the place of the oldest.
        let old = old.or((all == MOST_SIZES).then_some(0)).unwrap_or(all);
        self.known = all.max(old + 1);
        self.sizes[old..self.known].rotate_left(1);
        self.sizes[self.known - 1] = (slot, size);
        self.slot = Some(slot);
    }

    fn with_key(mut self) -> ThreadState {
        let number = |slot: Slot| (u64::from(slot.0) << 8) + u64::from(slot.1) + 1;
        let place = mix(self.stay as u64, self.made.map_or(0, |made| made as u64 + 1));
        let place = mix(place, self.slot.map_or(0, number));
        let sizes = self.sizes().iter().map(|&(slot, size)| mix(number(slot), size));
        self.key = sizes.fold(place, |sum, size| sum ^ size);
        self
    }

    pub(super) fn after(&self, next: &NextAllocation, size: u64) -> ThreadState {
        let mut new = self.clone();
        (new.stay, new.made) = (next.stay, next.made);
        new.put(next.slot, size);
        new.with_key()
    }

    /// It is somewhere in its stays up to this one.
    fn lost(&self, stay: usize) -> ThreadState {
        let stay = self.stay.max(stay);
        ThreadState { stay, made: None, slot: None, ..self.clone() }.with_key()
    }
}

/// An allocation that a thread can make next.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextAllocation {
    pub(super) slot: Slot,
    pub(super) stay: usize,
    /// Allocations of the stay after it.
    made: Option<usize>,
    pub(super) log: f64,
}

/// What explains a delta: allocations, and where that leaves their threads.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    pub(super) log: f64,
    pub(super) made: Vec<PlacedAllocation>,
    pub(super) states: Vec<(usize, Rc<ThreadState>)>,
}

/// What a search knows.
pub(super) struct ThreadSearch<'a> {
    pub(super) tables: &'a ThreadTables,
    passages: &'a Passages,
    threads: &'a [ThreadStays],
    /// By thread: the logarithm of the chance that stays up to each allocate nothing.
    idle: Vec<Vec<f64>>,
    /// Longer bursts are not explained.
    pub(super) longest: usize,
}

impl<'a> ThreadSearch<'a> {
    pub(super) fn new(
        tables: &'a ThreadTables,
        passages: &'a Passages,
        threads: &'a [ThreadStays],
        longest: usize,
    ) -> ThreadSearch<'a> {
        let idle = |stays: &ThreadStays| {
            let sums = stays.sites().scan(0.0, |sum, site| {
                *sum += (1.0 - tables.chance(site, 0) + LEAST_END).ln();
                Some(*sum)
            });
            std::iter::once(0.0).chain(sums).collect()
        };
        let idle = threads.iter().map(idle).collect();
        ThreadSearch { tables, passages, threads, idle, longest }
    }

    /// The logarithm of the chance that a thread made no more before it came to this stay.
    fn leaving(&self, thread: usize, state: &ThreadState, stay: usize) -> f64 {
        if stay <= state.stay {
            return 0.0;
        }
        let site = self.threads[thread].site(state.stay);
        let end = |made| (1.0 - self.tables.chance(site, made) + LEAST_END).ln();
        let idle = &self.idle[thread];
        state.made.map_or(0.0, end) + idle[stay] - idle[state.stay + 1]
    }

    /// Moves a thread on to a delta. Gives the logarithm of the chance of that, too.
    fn moved(&self, span: &StaySpan, state: &Rc<ThreadState>) -> (Rc<ThreadState>, f64) {
        if state.stay >= span.first {
            return (Rc::clone(state), 0.0);
        }
        let log = self.leaving(span.thread, state, span.first);
        let new = ThreadState { stay: span.first, made: Some(0), ..(**state).clone() };
        (Rc::new(new.with_key()), log)
    }

    /// How likely the thread of a span made a delta, whatever it did before.
    pub(super) fn weight(&self, span: &StaySpan) -> f64 {
        let sites = (span.first..=span.last).map(|stay| self.threads[span.thread].site(stay));
        span.weight() * sites.map(|site| self.tables.chance(site, 0)).sum::<f64>()
    }

    /// What a thread can allocate next, within its stays around a delta.
    pub(super) fn next(&self, span: &StaySpan, state: &ThreadState) -> Vec<NextAllocation> {
        let stays = &self.threads[span.thread];
        let weight = span.weight();
        let nth = |site: SiteNumber, stay: usize| match state.slot {
            Some((last, nth)) if last == site && stay == state.stay => (nth + 1).min(MOST_SLOTS),
            _ => 1,
        };
        let mut found = Vec::with_capacity(2 * (span.last + 1 - span.first));
        for stay in span.first.max(state.stay)..=span.last {
            let (made, left) = match stay == state.stay {
                true => (state.made, 0.0),
                false => (Some(0), self.leaving(span.thread, state, stay)),
            };
            let site = stays.site(stay);
            let chance = self.tables.chance(site, made.unwrap_or(0));
            let log = left + (weight * chance + LEAST).ln();
            let made = made.map(|made| (made + 1).min(MOST_COUNTED));
            found.push(NextAllocation { slot: (site, nth(site, stay)), stay, made, log });
            // Sites that no poll saw, before this stay allocated.
            let is_new = stay > span.first && (stay > state.stay || state.made == Some(0));
            let before = is_new.then(|| self.passages.between(stays.site(stay - 1), site));
            for &(site, share) in before.into_iter().flatten() {
                let slot = (site, nth(site, stay));
                let chance = self.tables.chance(site, usize::from(slot.1 - 1));
                let log = left + (weight * share * chance + LEAST).ln();
                found.push(NextAllocation { slot, stay, made: Some(0), log });
            }
        }
        found
    }
}

/// Where all threads are, and how likely that is.
#[derive(Debug, Clone)]
pub(super) struct Hypothesis {
    log: f64,
    pub(super) states: Vec<Rc<ThreadState>>,
    key: u64,
}

impl Hypothesis {
    /// The key with other states of some threads.
    fn key_with(&self, new: &[(usize, Rc<ThreadState>)]) -> u64 {
        let key = |thread: usize, state: &ThreadState| mix(thread as u64 + 1, state.key);
        let change = new.iter().map(|(of, state)| key(*of, &self.states[*of]) ^ key(*of, state));
        change.fold(self.key, |sum, change| sum ^ change)
    }

    fn put(&mut self, new: &[(usize, Rc<ThreadState>)]) {
        self.key = self.key_with(new);
        new.iter().for_each(|(thread, state)| self.states[*thread] = Rc::clone(state));
    }
}

/// A hypothesis that goes on with an explanation.
struct Continuation {
    from: usize,
    log: f64,
    key: u64,
    explanation: Rc<Explanation>,
}

/// A hypothesis, and from which ones before the delta it comes by which explanations.
#[derive(Debug)]
struct LatticeNode {
    hypothesis: Hypothesis,
    edges: Vec<(usize, f64, Rc<Explanation>)>,
}

/// The hypotheses after a delta.
#[derive(Debug)]
struct LatticeStep {
    nodes: Vec<LatticeNode>,
    /// What was too unlikely to go on with: from which hypotheses, and how likely.
    dropped: Vec<(usize, f64, Rc<Explanation>)>,
}

/// One way in which a hypothesis follows from another.
pub(super) struct LatticeEdge<'a> {
    pub(super) from: &'a Hypothesis,
    /// `None` if it was dropped.
    pub(super) to: Option<&'a Hypothesis>,
    pub(super) explanation: &'a Rc<Explanation>,
    /// Its probability, by all deltas of the lattice.
    pub(super) chance: f64,
}

/// The likeliest hypotheses after each delta, and how they follow from each other.
#[derive(Debug)]
pub(super) struct ThreadLattice {
    /// First the one before all deltas.
    steps: Vec<LatticeStep>,
}

impl ThreadLattice {
    pub(super) fn new(threads: usize) -> ThreadLattice {
        let start = Rc::new(ThreadState::default().with_key());
        let states = vec![start; threads];
        let hypothesis = Hypothesis { log: 0.0, states, key: 0 };
        let nodes = vec![LatticeNode { hypothesis, edges: Vec::new() }];
        ThreadLattice { steps: vec![LatticeStep { nodes, dropped: Vec::new() }] }
    }

    /// How many deltas it has.
    pub(super) fn len(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }

    /// Takes the next delta.
    pub(super) fn push(&mut self, delta: &ContestedDelta, search: &ThreadSearch<'_>) {
        let last = self.steps.last().into_iter().flat_map(|step| &step.nodes);
        let mut hypotheses: Vec<Hypothesis> = last.map(|node| node.hypothesis.clone()).collect();
        let mut moved = FxHashMap::default();
        for hypothesis in &mut hypotheses {
            for span in &delta.spans {
                let state = &hypothesis.states[span.thread];
                let known = moved.entry((span.thread, state.key));
                let (new, log): &(Rc<ThreadState>, f64) =
                    known.or_insert_with(|| search.moved(span, state));
                hypothesis.log += log;
                hypothesis.put(&[(span.thread, Rc::clone(new))]);
            }
        }
        let all: f64 = delta.spans.iter().map(|span| search.weight(span)).sum();
        let elsewhere = ELSEWHERE[usize::from(delta.others_possible)] * all + LEAST;
        let log = delta.count() as f64 * elsewhere.ln();
        let unknown = Rc::new(Explanation { log, ..Explanation::default() });
        let mut explanations = Explanations::new(delta, search);
        let mut next = Vec::new();
        for (from, hypothesis) in hypotheses.iter().enumerate() {
            let mut go_on = |explanation: Rc<Explanation>| {
                let key = hypothesis.key_with(&explanation.states);
                let log = hypothesis.log + explanation.log;
                next.push(Continuation { from, log, key, explanation });
            };
            explanations.of(&hypothesis.states).into_iter().for_each(&mut go_on);
            if delta.count() == 1 {
                go_on(Rc::clone(&unknown));
            } else {
                // It is not known who moved.
                let lost = delta.spans.iter().map(|span| {
                    let state = hypothesis.states[span.thread].lost(span.last);
                    (span.thread, Rc::new(state))
                });
                go_on(Rc::new(Explanation { log, made: Vec::new(), states: lost.collect() }));
            }
        }
        self.keep_best(&hypotheses, next);
    }

    /// Joins hypotheses that are alike and keeps the likeliest.
    fn keep_best(&mut self, before: &[Hypothesis], all: Vec<Continuation>) {
        let mut numbers: FxHashMap<u64, usize> = FxHashMap::default();
        // Of each group: its first continuation, and how likely all of it are.
        let mut groups: Vec<(usize, f64)> = Vec::new();
        let mut group_of = Vec::with_capacity(all.len());
        for (at, one) in all.iter().enumerate() {
            let group = *numbers.entry(one.key).or_insert(groups.len());
            group_of.push(group);
            match groups.get_mut(group) {
                Some((_, log)) => {
                    let [less, more] = [log.min(one.log), log.max(one.log)];
                    *log = more + (less - more).exp().ln_1p();
                }
                None => groups.push((at, one.log)),
            }
        }
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by(|a, b| groups[*b].1.total_cmp(&groups[*a].1));
        order.truncate(BEAM);
        let best = order.first().map_or(0.0, |group| groups[*group].1);
        order.retain(|group| groups[*group].1 > best - FAR_BEHIND);
        let sum: f64 = groups.iter().map(|group| (group.1 - best).exp()).sum();
        let node = |group: &usize| {
            let (first, log) = groups[*group];
            let Continuation { from, explanation, .. } = &all[first];
            let mut hypothesis = before[*from].clone();
            hypothesis.put(&explanation.states);
            hypothesis.log = log - best;
            LatticeNode { hypothesis, edges: Vec::new() }
        };
        let mut nodes: Vec<LatticeNode> = order.iter().map(node).collect();
        let mut dropped = Vec::new();
        for (one, group) in all.into_iter().zip(group_of) {
            match order.iter().position(|kept| *kept == group) {
                _ if one.log < best - FAR_BEHIND => {}
                Some(at) => nodes[at].edges.push((one.from, one.log - best, one.explanation)),
                None => dropped.push((one.from, (one.log - best).exp() / sum, one.explanation)),
            }
        }
        self.steps.push(LatticeStep { nodes, dropped });
    }

    /// Gives all ways in which hypotheses follow from each other, from the last delta to the first,
    /// with the delta's number in the lattice. What was dropped stays as likely as it was then.
    pub(super) fn edges(&self, mut take: impl FnMut(usize, LatticeEdge<'_>)) {
        let Some(last) = self.steps.last() else { return };
        let mut here: Vec<f64> = last.nodes.iter().map(|node| node.hypothesis.log.exp()).collect();
        for (number, pair) in self.steps.windows(2).enumerate().rev() {
            let [source, step] = pair else { continue };
            let kept = 1.0 - step.dropped.iter().map(|of| of.1).sum::<f64>();
            let factor = kept / here.iter().sum::<f64>();
            let mut before = vec![0.0; source.nodes.len()];
            let mut give = |from: usize, to, chance: f64, explanation| {
                before[from] += chance;
                let from = &source.nodes[from].hypothesis;
                take(number, LatticeEdge { from, to, explanation, chance });
            };
            for (node, weight) in step.nodes.iter().zip(&here) {
                let to = &node.hypothesis;
                for (from, log, explanation) in &node.edges {
                    give(*from, Some(to), weight * factor * (log - to.log).exp(), explanation);
                }
            }
            for (from, chance, explanation) in &step.dropped {
                give(*from, None, *chance, explanation);
            }
            here = before;
        }
    }

    /// Forgets the first deltas.
    pub(super) fn drop_first(&mut self, count: usize) {
        self.steps.drain(..count.min(self.len()));
    }
}
