//! Folds a repeating program: which polls were at the same place of an iteration.
//!
//! A job that repeats itself allocates the same in each iteration. Its *period* is what the
//! allocator's totals grow by in one. A poll's *phase* is its totals since the iteration began, so
//! polls of many iterations lie in one order, and a burst of many allocations between two polls has
//! the polls of other iterations inside it.

use rustc_hash::{FxHashMap, FxHashSet};

/// Allocations and requested bytes of the small pool, then of the large one.
pub(super) type Totals = [i64; 4];

/// Periods that are compared: the most frequent growths between equal levels.
const PERIODS: usize = 40;
/// Allocations of an iteration.
const MAX_PERIOD: i64 = 1 << 18;
/// Cost of changing the iteration's begin, in polls whose level is unknown at their phase.
const CHANGE: u32 = 5;
/// Begins of the iteration that are kept in parallel.
const KEPT: usize = 8;
/// Places in the iteration at which a level is looked for.
const PLACES: usize = 6;
/// Polls after which a begin is decided.
const DECIDED_AFTER: usize = 60;

pub(super) fn allocations(of: &Totals) -> i64 {
    of[0] + of[2]
}

pub(super) fn add(a: &Totals, b: &Totals) -> Totals {
    std::array::from_fn(|n| a[n] + b[n])
}

pub(super) fn sub(a: &Totals, b: &Totals) -> Totals {
    std::array::from_fn(|n| a[n] - b[n])
}

fn modulo(of: &Totals, period: &Totals) -> Totals {
    let turns = allocations(of).div_euclid(allocations(period));
    std::array::from_fn(|n| of[n] - turns * period[n])
}

/// A poll's totals, and what was live then.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolledTotals {
    pub(super) totals: Totals,
    pub(super) live: Totals,
}

/// Where the polls of a recording were in its iterations.
#[derive(Debug)]
pub(super) struct Phases {
    pub(super) period: Totals,
    /// By poll: totals at the iteration's begin, modulo the period.
    pub(super) begins: Vec<Totals>,
    /// By poll: totals since the iteration's begin.
    pub(super) phases: Vec<Totals>,
}

impl Phases {
    /// `None`: no level recurs.
    pub(super) fn of(polls: &[PolledTotals]) -> Option<Phases> {
        let period = period(polls)?;
        let mut places = PhasesByLevel::default();
        align(polls, &period, &mut places, true);
        let begins = align(polls, &period, &mut places, false);
        let phase =
            |(poll, begin): (&PolledTotals, &Totals)| modulo(&sub(&poll.totals, begin), &period);
        let phases = polls.iter().zip(&begins).map(phase).collect();
        Some(Phases { period, begins, phases })
    }
}

/// The growth between equal levels that leaves the fewest different phases.
fn period(polls: &[PolledTotals]) -> Option<Totals> {
    let mut last: FxHashMap<Totals, Totals> = FxHashMap::default();
    let mut growths: FxHashMap<Totals, u32> = FxHashMap::default();
    for poll in polls {
        if let Some(before) = last.insert(poll.live, poll.totals) {
            let growth = sub(&poll.totals, &before);
            if (2..MAX_PERIOD).contains(&allocations(&growth)) {
                *growths.entry(growth).or_default() += 1;
            }
        }
    }
    let mut growths: Vec<(Totals, u32)> = growths.into_iter().filter(|it| it.1 > 1).collect();
    growths.sort_unstable_by_key(|(growth, count)| (std::cmp::Reverse(*count), *growth));
    growths.truncate(PERIODS);
    let phases = |period: &Totals| {
        let phases: FxHashSet<Totals> =
            polls.iter().map(|poll| modulo(&poll.totals, period)).collect();
        phases.len()
    };
    let periods = growths.iter().map(|(growth, _)| growth);
    periods.min_by_key(|period| (phases(period), allocations(period))).copied()
}

/// By level: the phases at which it was met, with their polls.
type PhasesByLevel = FxHashMap<Totals, Vec<(Totals, u32)>>;

/// A begin of the iteration from a poll on, and the one before it.
struct Since {
    poll: usize,
    begin: Totals,
    before: Option<usize>,
}

#[derive(Clone, Copy)]
struct Guess {
    cost: u32,
    begin: Totals,
    since: usize,
}

/// The iteration's begin at each poll, by a beam over begins: irregular events move it.
fn align(
    polls: &[PolledTotals],
    period: &Totals,
    places: &mut PhasesByLevel,
    learns: bool,
) -> Vec<Totals> {
    let zero = [0; 4];
    let mut history = vec![Since { poll: 0, begin: zero, before: None }];
    let mut guesses = vec![Guess { cost: 0, begin: zero, since: 0 }];
    let mut begins: Vec<Totals> = Vec::with_capacity(polls.len());
    for (number, poll) in polls.iter().enumerate() {
        let known = places.get(&poll.live);
        let mut next: Vec<Guess> = Vec::with_capacity(KEPT + PLACES);
        let best = guesses.iter().min_by_key(|guess| guess.cost).copied();
        let Some(best) = best else { break };
        let mut keep = |guess: Guess| match next.iter_mut().find(|it| it.begin == guess.begin) {
            Some(same) if same.cost <= guess.cost => {}
            Some(same) => *same = guess,
            None => next.push(guess),
        };
        for guess in &guesses {
            let phase = modulo(&sub(&poll.totals, &guess.begin), period);
            let is_known = known.is_some_and(|known| known.iter().any(|it| it.0 == phase));
            keep(Guess { cost: guess.cost + u32::from(!is_known), ..*guess });
        }
        let mut most: Vec<(Totals, u32)> = known.cloned().unwrap_or_default();
        most.sort_by_key(|it| std::cmp::Reverse(it.1));
        for (phase, _) in most.iter().take(PLACES) {
            let begin = modulo(&sub(&poll.totals, phase), period);
            let since = history.len();
            let cost = best.cost + CHANGE;
            let is_new = guesses.iter().all(|guess| guess.begin != begin || guess.cost > cost);
            if is_new {
                history.push(Since { poll: number, begin, before: Some(best.since) });
                keep(Guess { cost, begin, since });
            }
        }
        next.sort_by_key(|guess| guess.cost);
        next.truncate(KEPT);
        guesses = next;
        if number + 1 >= begins.len() + 2 * DECIDED_AFTER {
            let first = begins.len();
            decide(&mut history, &mut guesses, &mut begins, number - DECIDED_AFTER);
            if learns {
                learn(polls, period, places, &begins, first);
            }
        }
    }
    let first = begins.len();
    decide(&mut history, &mut guesses, &mut begins, polls.len());
    if learns {
        learn(polls, period, places, &begins, first);
    }
    begins
}

/// Notes the phases of the polls from `first` on.
fn learn(
    polls: &[PolledTotals],
    period: &Totals,
    places: &mut PhasesByLevel,
    begins: &[Totals],
    first: usize,
) {
    for (poll, begin) in polls.iter().zip(begins).skip(first) {
        let phase = modulo(&sub(&poll.totals, begin), period);
        let known = places.entry(poll.live).or_default();
        match known.iter_mut().find(|it| it.0 == phase) {
            Some(same) => same.1 += 1,
            None => known.push((phase, 1)),
        }
    }
}

/// Takes the best guess for the polls before `until`, and forgets how the others came about.
fn decide(history: &mut Vec<Since>, guesses: &mut [Guess], begins: &mut Vec<Totals>, until: usize) {
    let Some(best) = guesses.first() else { return };
    let mut path = Vec::new();
    let mut at = Some(best.since);
    while let Some(since) = at.map(|at| &history[at]) {
        path.push((since.poll, since.begin));
        if since.poll <= begins.len() {
            break;
        }
        at = since.before;
    }
    path.reverse();
    let mut part = 0;
    while begins.len() < until {
        while part + 1 < path.len() && path[part + 1].0 <= begins.len() {
            part += 1;
        }
        begins.push(path[part].1);
    }
    let mut kept: Vec<Since> = Vec::new();
    let mut moved: FxHashMap<usize, usize> = FxHashMap::default();
    for guess in guesses {
        let mut chain = Vec::new();
        let mut at = Some(guess.since);
        while let Some(number) = at {
            if moved.contains_key(&number) {
                break;
            }
            chain.push(number);
            at = if history[number].poll <= until { None } else { history[number].before };
        }
        for number in chain.into_iter().rev() {
            let Since { poll, begin, before } = history[number];
            let before = before.and_then(|before| moved.get(&before).copied());
            moved.insert(number, kept.len());
            kept.push(Since { poll, begin, before });
        }
        guess.since = moved[&guess.since];
    }
    *history = kept;
}
