//! What explains a delta: allocations of threads that have its counts and bytes together.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::PlacedAllocation;
use super::beam::{Explanation, NextAllocation, ThreadSearch, ThreadState, mix};
use super::stays::{ContestedDelta, StaySpan};
use crate::analysis::followed::pool_change::MAX_SMALL_BLOCK;

/// Threads that can have part in a burst, the likeliest.
const MOST_THREADS: usize = 4;
/// Ways that are kept in which one thread makes so many allocations.
const MOST_CHAINS: usize = 8;
/// The same for several threads, before they have all of its bytes, and then.
const MOST_WAYS: usize = 400;
const MOST_EXPLANATIONS: usize = 15;

/// Allocations in the small and in the large pool, and their bytes.
type Amounts = ([u32; 2], [u64; 2]);

fn sum(a: &Amounts, b: &Amounts) -> Amounts {
    ([0, 1].map(|pool| a.0[pool] + b.0[pool]), [0, 1].map(|pool| a.1[pool] + b.1[pool]))
}

/// Allocations that one thread can make, one after the other.
struct ThreadChain {
    amounts: Amounts,
    explanation: Rc<Explanation>,
}

/// The explanations of a delta, for all hypotheses.
pub(super) struct Explanations<'a> {
    delta: &'a ContestedDelta,
    search: &'a ThreadSearch<'a>,
    /// The spans of the likeliest threads.
    spans: Vec<&'a StaySpan>,
    /// By thread and state.
    chains: FxHashMap<(usize, u64), Rc<Vec<ThreadChain>>>,
    /// By all states.
    joined: FxHashMap<u64, Vec<Rc<Explanation>>>,
}

impl<'a> Explanations<'a> {
    pub(super) fn new(delta: &'a ContestedDelta, search: &'a ThreadSearch<'a>) -> Self {
        let mut spans: Vec<&StaySpan> = delta.spans.iter().collect();
        if delta.count() > 1 {
            spans.sort_by(|a, b| search.weight(b).total_cmp(&search.weight(a)));
            spans.truncate(MOST_THREADS);
        }
        let (chains, joined) = (FxHashMap::default(), FxHashMap::default());
        Explanations { delta, search, spans, chains, joined }
    }

    /// What explains the delta, if the threads are there.
    pub(super) fn of(&mut self, states: &[Rc<ThreadState>]) -> Vec<Rc<Explanation>> {
        let Explanations { delta, search, spans, chains, joined } = self;
        if delta.count() > search.longest {
            return Vec::new();
        }
        let chains: Vec<Rc<Vec<ThreadChain>>> = spans
            .iter()
            .map(|span| {
                let state = &states[span.thread];
                let known = chains.entry((span.thread, state.key));
                known.or_insert_with(|| Rc::new(chains_of(search, delta, span, state))).clone()
            })
            .collect();
        if delta.count() == 1 {
            let alone = chains.iter().flat_map(|chains| &chains[1..]);
            return alone.map(|chain| Rc::clone(&chain.explanation)).collect();
        }
        let key = spans.iter().fold(0, |key, span| mix(key, states[span.thread].key));
        joined.entry(key).or_insert_with(|| join(delta, &chains)).clone()
    }
}

/// What a thread can have part in a delta with: nothing, one allocation, two...
fn chains_of(
    search: &ThreadSearch<'_>,
    delta: &ContestedDelta,
    span: &StaySpan,
    state: &Rc<ThreadState>,
) -> Vec<ThreadChain> {
    let nothing = ThreadChain { amounts: Amounts::default(), explanation: Rc::default() };
    let mut all = vec![nothing];
    let mut begin = 0;
    for _ in 0..delta.count() {
        let end = all.len();
        let mut longer = Vec::new();
        for (at, chain) in all.iter().enumerate().skip(begin) {
            let last = chain.explanation.states.first().map_or(state, |(_, state)| state);
            for next in search.next(span, last) {
                for (size, fit) in fitting_sizes(search, delta, chain, (last, next.slot)) {
                    longer.push((chain.explanation.log + next.log + fit.ln(), at, next, size));
                }
            }
        }
        longer.sort_by(|a, b| b.0.total_cmp(&a.0));
        if delta.count() > 1 {
            longer.truncate(MOST_CHAINS);
        }
        for (log, at, next, size) in longer {
            let chain = &all[at];
            let NextAllocation { slot, stay, .. } = next;
            let one = PlacedAllocation { thread: span.thread, stay, slot, size };
            let mut own = Amounts::default();
            let large = usize::from(one.is_large());
            (own.0[large], own.1[large]) = (1, size);
            let amounts = sum(&chain.amounts, &own);
            let last = chain.explanation.states.first().map_or(state, |(_, state)| state);
            let states = vec![(span.thread, Rc::new(last.after(&next, size)))];
            let made = [&chain.explanation.made[..], &[one]].concat();
            let explanation = Rc::new(Explanation { log, made, states });
            all.push(ThreadChain { amounts, explanation });
        }
        begin = end;
    }
    all
}

/// Sizes that the next allocation of a chain can have, and how well they fit. The only one of a
/// pool is known.
fn fitting_sizes(
    search: &ThreadSearch<'_>,
    delta: &ContestedDelta,
    chain: &ThreadChain,
    (state, slot): (&ThreadState, super::tables::Slot),
) -> Vec<(u64, f64)> {
    let mut found = Vec::with_capacity(1);
    for pool in 0..2 {
        if delta.counts[pool] == 1 && chain.amounts.0[pool] == 0 {
            let size = delta.sums[pool];
            found.push((size, search.tables.fit(state, slot, size)));
        }
    }
    if delta.counts.iter().any(|count| *count > 1) {
        for (size, chance) in search.tables.expected(state, slot).0 {
            let pool = usize::from(size > MAX_SMALL_BLOCK);
            let fits = delta.counts[pool] > 1
                && chain.amounts.0[pool] < delta.counts[pool]
                && chain.amounts.1[pool] + size <= delta.sums[pool];
            if fits {
                found.push((size, search.tables.fit_of_expected(size, chance)));
            }
        }
    }
    found
}

/// Chains of all threads that have the delta's counts and bytes together.
fn join(delta: &ContestedDelta, chains: &[Rc<Vec<ThreadChain>>]) -> Vec<Rc<Explanation>> {
    let whole = (delta.counts, delta.sums);
    let mut ways = vec![(0.0, Amounts::default(), [0; MOST_THREADS])];
    for (at, of_thread) in chains.iter().enumerate() {
        let is_last = at + 1 == chains.len();
        let fits = |amounts: &Amounts| match is_last {
            true => *amounts == whole,
            false => (0..2).all(|pool| {
                amounts.0[pool] <= delta.counts[pool] && amounts.1[pool] <= delta.sums[pool]
            }),
        };
        let mut longer = Vec::new();
        for (log, before, numbers) in &ways {
            let room = delta.count() - before.0.iter().sum::<u32>() as usize;
            let short = of_thread.iter().take_while(|of| of.explanation.made.len() <= room);
            for (number, chain) in short.enumerate() {
                let amounts = sum(before, &chain.amounts);
                if fits(&amounts) {
                    let mut numbers = *numbers;
                    numbers[at] = number;
                    longer.push((log + chain.explanation.log, amounts, numbers));
                }
            }
        }
        longer.sort_by(|a, b| b.0.total_cmp(&a.0));
        longer.truncate(if is_last { MOST_EXPLANATIONS } else { MOST_WAYS });
        ways = longer;
    }
    let explanation = |(log, _, numbers): (f64, Amounts, [usize; MOST_THREADS])| {
        let mut whole = Explanation { log, ..Explanation::default() };
        for (of_thread, number) in chains.iter().zip(numbers) {
            let part = &of_thread[number].explanation;
            whole.made.extend_from_slice(&part.made);
            whole.states.extend(part.states.iter().cloned());
        }
        Rc::new(whole)
    };
    ways.into_iter().map(explanation).collect()
}
