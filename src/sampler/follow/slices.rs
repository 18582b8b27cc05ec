//! Shares the time between following and resting, so that polls cost the job no more than its
//! budget.
//!
//! Each read of memory that the job writes delays it: 1 to 2 µs for each delta. So polls follow a
//! busy job in slices of some tens of milliseconds and rest in between, from the first second.
//! Which part of a cycle is followed is drawn by lot: `harm.rs` compares the job's pace in both
//! parts. Blocks of rests get the sites of followed iterations
//! (`analysis/followed/repeated_steps.rs`).

use std::time::Duration;

use super::harm::{HarmMeter, Tally, USUAL};
use crate::model::JobCost;

/// The mean of the shorter part of a cycle, and how much it varies.
const SLICE: f64 = 0.03;
const VARIES: (f64, f64) = (0.6, 1.4);
/// So long a rest misses what is new.
const LONGEST_CYCLE: f64 = 0.5;
const LEAST_FOLLOWED: f64 = 0.02;
/// Of a job that polls may harm: the rest of the time shows whether they do.
const MOST_FOLLOWED: f64 = 0.92;
/// Below this part of the budget polls do no harm.
const HARMLESS: f64 = 0.125;
/// The job's pace is taken over this time: its phases are longer.
const MOMENT: f64 = 0.002;
/// Rates are means over this time.
const RECENT: f64 = 0.5;
/// What was spent too much, or was left, is made up for in this time.
const SETTLED_WITHIN: f64 = 2.0;
/// The budget saved up, as seconds of it.
const SAVED: f64 = 1.0;
/// Rests use at most this part of the budget.
const FOR_RESTS: f64 = 0.25;
const SHORTEST_PAUSE: Duration = Duration::from_micros(300);
/// Shorter than polls go on after a delta (`pace.rs`).
const LONGEST_PAUSE: Duration = Duration::from_micros(1500);
/// In a longer gap nothing was polled: memspy was stopped, and costs and pace of that time are not
/// known.
const GAP: Duration = Duration::from_millis(50);

pub(super) struct Slices {
    /// A share of the job's time; `None`: follow always.
    budget: Option<f64>,
    meter: HarmMeter,
    lot: Lot,
    asked: Option<Duration>,
    /// The running totals where the present part began.
    began: Tally,
    moment: Tally,
    /// The job's pace in the last whole moment, in blocks a second.
    pace: f64,
    cycle: Cycle,
    /// Parts of the present cycle: rested, followed.
    halves: [Tally; 2],
    recent: Recent,
    /// Seconds of the job that may be spent beyond the budget, or have been.
    credit: f64,
    pause: Duration,
}

/// The ends of a cycle's parts. The middle part is the followed one, or the only one that rests.
#[derive(Default)]
struct Cycle {
    ends: [f64; 3],
    part: usize,
    middle_rests: bool,
    /// Both kinds of parts come in it, in an order drawn by lot.
    is_pair: bool,
}

/// Means of the last time.
#[derive(Default)]
struct Recent {
    /// Blocks a second; `None`: not known yet.
    blocks: Option<f64>,
    /// Deltas for each block while polls follow.
    by_block: f64,
    /// Deltas a second while they rest.
    at_rest: f64,
}

/// `SplitMix64`.
struct Lot(u64);

impl Slices {
    pub(super) fn new(budget: Option<f64>) -> Slices {
        Slices {
            budget,
            meter: HarmMeter::default(),
            lot: Lot(u64::from(std::process::id())),
            asked: None,
            began: Tally::default(),
            moment: Tally::default(),
            pace: 0.0,
            cycle: Cycle::default(),
            halves: [Tally::default(); 2],
            recent: Recent { by_block: 1.0, ..Recent::default() },
            credit: 0.0,
            pause: SHORTEST_PAUSE,
        }
    }

    /// `blocks` and `deltas` are running totals.
    pub(super) fn rests(&mut self, now: Duration, blocks: u64, deltas: u64) -> bool {
        let seconds = now.as_secs_f64();
        let asked = self.asked.replace(now);
        let has_ended = seconds >= self.cycle.ends[self.cycle.part];
        let is_gap = asked.is_none_or(|asked| now.saturating_sub(asked) > GAP);
        if is_gap || has_ended || seconds - self.moment.seconds >= MOMENT {
            let (blocks, deltas) = (blocks as f64, deltas as f64);
            let now = Tally { seconds, blocks, deltas, ..Tally::default() };
            if is_gap {
                self.lot.0 ^= now.seconds.to_bits();
                (self.began, self.moment) = (now, now);
                self.begin_cycle();
                return self.cycle.rests();
            }
            self.end_moment(now);
            if has_ended {
                self.end_part(now);
            }
        }
        self.cycle.rests()
    }

    fn end_moment(&mut self, now: Tally) {
        let part = now.since(self.moment);
        if part.seconds < 0.5 * MOMENT {
            return;
        }
        self.moment = now;
        // What the job would do without the time lost.
        let lost = self.meter.of_one_delta() * part.deltas;
        self.pace = part.blocks / (part.seconds - lost).max(0.1 * part.seconds);
    }

    /// Between two polls of a rest.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn cost(&self) -> Option<JobCost> {
        self.meter.cost(self.budget)
    }

    fn end_part(&mut self, now: Tally) {
        let mut part = now.since(self.began);
        part.paced = self.pace * part.deltas;
        self.began = now;
        self.meter.pass(part, !self.cycle.rests());
        self.halves[usize::from(!self.cycle.rests())].add(part);
        while self.cycle.ends.get(self.cycle.part).is_some_and(|end| now.seconds >= *end) {
            self.cycle.part += 1;
        }
        if self.cycle.part >= self.cycle.ends.len() {
            let [rested, followed] = self.halves;
            if self.cycle.is_pair {
                self.meter.pair(followed, rested);
            }
            self.learn(rested, followed);
            self.begin_cycle();
        }
    }

    fn learn(&mut self, rested: Tally, followed: Tally) {
        let mean = |mean: &mut f64, new: f64, seconds: f64| {
            *mean += (new - *mean) * (seconds / RECENT).min(1.0);
        };
        let seconds = rested.seconds + followed.seconds;
        let rate = (rested.blocks + followed.blocks) / seconds;
        mean(self.recent.blocks.get_or_insert(rate), rate, seconds);
        if followed.blocks > 0.0 {
            let by_block = followed.deltas / followed.blocks;
            mean(&mut self.recent.by_block, by_block, 4.0 * followed.seconds);
        }
        if rested.seconds > 0.0 {
            mean(&mut self.recent.at_rest, rested.deltas / rested.seconds, seconds);
        }
        let Some(budget) = self.budget else { return };
        let one = self.meter.of_one_delta();
        let spent = one * (rested.deltas + followed.deltas);
        let most = SAVED * budget;
        self.credit = (self.credit + budget * seconds - spent).clamp(-2.0 * most, most);
        let pause = Duration::from_secs_f64(one / (FOR_RESTS * budget).max(1e-6));
        self.pause = pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }

    /// The share of the time to follow.
    fn share(&self) -> f64 {
        let Some(budget) = self.budget else { return 1.0 };
        // Nothing is known yet of the job: first its rate is counted.
        let Some(rate) = self.recent.blocks else { return 0.0 };
        let wanted = (budget + self.credit / SETTLED_WITHIN).max(FOR_RESTS * budget);
        let one = self.meter.of_one_delta();
        let deltas = wanted / one;
        let (followed, rested) = (rate * self.recent.by_block, self.recent.at_rest);
        if followed <= deltas && followed * USUAL <= wanted {
            let measures = followed * one >= HARMLESS * budget && self.meter.wants_pairs();
            return if measures { MOST_FOLLOWED } else { 1.0 };
        }
        ((deltas - rested) / (followed - rested).max(1.0)).clamp(LEAST_FOLLOWED, MOST_FOLLOWED)
    }

    fn begin_cycle(&mut self) {
        let share = self.share();
        let slice = SLICE * (VARIES.0 + (VARIES.1 - VARIES.0) * self.lot.draw());
        let is_pair = share > 0.0 && share < 1.0;
        // The shorter kind of part is one slice.
        let shorter = if is_pair { share.min(1.0 - share) } else { 1.0 };
        let length = (slice / shorter).min(LONGEST_CYCLE);
        let (slice, starts) = (length * shorter, length * self.lot.draw());
        let from = self.began.seconds;
        // A slice that would end after the cycle begins again with it, so that each moment is as
        // likely as others.
        let over = starts + slice - length;
        let (first, last, wraps) = match over > 0.0 {
            true => (over, starts, true),
            false => (starts, starts + slice, false),
        };
        let middle_rests = if is_pair { (share > 0.5) != wraps } else { share == 0.0 };
        let ends = if is_pair { [first, last, length] } else { [0.0, length, length] };
        let part = if is_pair { 0 } else { 1 };
        let ends = ends.map(|end| from + end);
        self.cycle = Cycle { ends, part, middle_rests, is_pair };
        self.halves = [Tally::default(); 2];
    }
}

impl Cycle {
    fn rests(&self) -> bool {
        (self.part == 1) == self.middle_rests
    }
}

impl Lot {
    /// From 0 to 1.
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
