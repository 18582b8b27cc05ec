//! Measures what polls cost the job: its pace while polls follow, beside its pace while they rest.
//!
//! A pair is one cycle of `slices.rs`: a part that was followed and a part that rested, in random
//! order. Of each part `T` seconds, `B` blocks, `D` deltas and the job's pace `p` at its end are
//! known. If each delta costs `c` seconds, the job is `c·D` seconds behind at the part's end, which
//! are `c·D·p` blocks. So on average `B + c·D·p` is the same per second in both parts:
//! `Br·Tf - Bf·Tr = c · (Df·pf·Tr - Dr·pr·Tf)`. Each pair compares neighbours only, so that neither
//! the job's phases nor changing shares of the time are mistaken for a cost; divided by the pair's
//! own blocks, a pair counts by its time.

use crate::model::{JobCost, MeasuredCost};

/// Seconds that a delta costs the job, as measured on an H200 (`benches/README.md`), and how far
/// another machine may be from that (standard deviation).
pub(super) const USUAL: f64 = 1.4e-6;
const USUAL_VARIES: f64 = 0.7e-6;
/// Whatever is measured.
const RANGE: (f64, f64) = (0.2e-6, 20e-6);
const MIN_PAIRS: f64 = 8.0;
/// A second of rests, in a job's first twelve if it costs less than its budget.
const ENOUGH_PAIRS: f64 = 32.0;
/// The width of an interval that more pairs do not make useful.
const HOPELESS: f64 = 0.12;
/// 95 % of the normal distribution lie below.
const NORMAL: f64 = 1.644_85;

/// What happened in some part of the time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) seconds: f64,
    pub(super) blocks: f64,
    pub(super) deltas: f64,
    /// `deltas` times the job's pace (blocks a second) at the end.
    pub(super) paced: f64,
}

/// Sums over pairs.
#[derive(Debug, Default)]
pub(super) struct HarmMeter {
    pairs: f64,
    /// Seconds that followed parts lost beside the others, and the deltas that they have more.
    lost: f64,
    lost_squared: f64,
    deltas: f64,
    deltas_squared: f64,
    products: f64,
    /// Seconds of followed parts.
    followed: f64,
    whole: Tally,
    /// Seconds of them that were followed.
    followed_whole: f64,
}

struct DeltaCost {
    seconds: f64,
    error: f64,
}

impl Tally {
    pub(super) fn add(&mut self, more: Tally) {
        self.seconds += more.seconds;
        self.blocks += more.blocks;
        self.deltas += more.deltas;
        self.paced += more.paced;
    }

    pub(super) fn since(self, earlier: Tally) -> Tally {
        Tally {
            seconds: self.seconds - earlier.seconds,
            blocks: self.blocks - earlier.blocks,
            deltas: self.deltas - earlier.deltas,
            paced: self.paced - earlier.paced,
        }
    }
}

impl HarmMeter {
    /// Any part of the recording.
    pub(super) fn pass(&mut self, part: Tally, is_followed: bool) {
        self.whole.add(part);
        self.followed_whole += if is_followed { part.seconds } else { 0.0 };
    }

    /// Two neighbouring parts whose order was drawn by lot.
    pub(super) fn pair(&mut self, followed: Tally, rested: Tally) {
        let blocks = followed.blocks + rested.blocks;
        if followed.seconds <= 0.0 || rested.seconds <= 0.0 || blocks <= 0.0 {
            return;
        }
        let more = |of: fn(&Tally) -> f64| {
            (of(&followed) * rested.seconds - of(&rested) * followed.seconds) / blocks
        };
        let lost = -more(|part| part.blocks);
        let deltas = more(|part| part.paced);
        self.pairs += 1.0;
        self.lost += lost;
        self.lost_squared += lost * lost;
        self.deltas += deltas;
        self.deltas_squared += deltas * deltas;
        self.products += lost * deltas;
        self.followed += followed.seconds * rested.blocks / blocks;
    }

    /// Whether a job that costs less than its budget should rest to be measured.
    pub(super) fn wants_pairs(&self) -> bool {
        let Some(one) = self.measured() else { return self.pairs < MIN_PAIRS };
        let width = 2.0 * self.spread(&one) * self.rate();
        self.pairs < ENOUGH_PAIRS && width < HOPELESS
    }

    fn measured(&self) -> Option<DeltaCost> {
        if self.pairs < MIN_PAIRS || self.deltas <= 0.0 {
            return None;
        }
        let seconds = self.lost / self.deltas;
        let error = (self.residuals(seconds) * self.pairs / (self.pairs - 1.0)).sqrt();
        Some(DeltaCost { seconds, error: error / self.deltas })
    }

    /// The sum of the squares of what `seconds` does not explain.
    fn residuals(&self, seconds: f64) -> f64 {
        let explained = 2.0 * self.products - seconds * self.deltas_squared;
        (self.lost_squared - seconds * explained).max(0.0)
    }

    /// Seconds that each delta costs the job: the usual figure, replaced by this job's as far as it
    /// is known.
    pub(super) fn of_one_delta(&self) -> f64 {
        let weight = |error: f64| 1.0 / (error * error).max(1e-18);
        let Some(here) = self.measured() else { return USUAL };
        // Few pairs may agree by chance.
        let error = here.error * student(self.pairs - 1.0) / NORMAL;
        let (usual, own) = (weight(USUAL_VARIES), weight(error));
        ((USUAL * usual + here.seconds * own) / (usual + own)).clamp(RANGE.0, RANGE.1)
    }

    /// Half of the interval that holds the truth nine times of ten.
    fn spread(&self, one: &DeltaCost) -> f64 {
        student(self.pairs - 1.0) * one.error
    }

    /// Deltas a second.
    fn rate(&self) -> f64 {
        self.whole.deltas / self.whole.seconds
    }

    /// The cost of the recording so far; `budget` is a share of the job's time.
    pub(super) fn cost(&self, budget: Option<f64>) -> Option<JobCost> {
        if self.whole.seconds <= 0.0 {
            return None;
        }
        let rate = self.rate();
        let measured = self.measured().map(|one| {
            let spread = self.spread(&one);
            let slice = self.followed / self.pairs;
            let variation = (self.residuals(one.seconds) / self.pairs).sqrt() / slice;
            MeasuredCost {
                share: parts(rate * one.seconds),
                least: parts(rate * (one.seconds - spread)),
                // Polls speed no job up.
                most: parts(rate * (one.seconds.max(0.0) + spread)),
                variation: parts(variation),
            }
        });
        let calculated = Some(parts(rate * self.of_one_delta()));
        let followed = Some(parts(self.followed_whole / self.whole.seconds));
        Some(JobCost { calculated, measured, budget: budget.map(parts), followed })
    }
}

/// In millionths; below 0 nothing is lost.
fn parts(share: f64) -> u32 {
    (share * 1e6).round() as u32
}

/// 95 % of Student's distribution lie below, so that 90 % lie between this and its negative.
fn student(freedom: f64) -> f64 {
    let (cube, fifth) = (NORMAL.powi(3), NORMAL.powi(5));
    let first = (cube + NORMAL) / (4.0 * freedom);
    NORMAL + first + (5.0 * fifth + 16.0 * cube + 3.0 * NORMAL) / (96.0 * freedom * freedom)
}

#[cfg(test)]
#[path = "harm_tests.rs"]
mod tests;
