//! Rests polls for a part of the time while the job repeats itself.
//!
//! Reading memory that the job writes delays it: 1 to 2 µs for a block and its free
//! (`benches/README.md`). Polls rest while it allocates tens of thousands of blocks a second and
//! its allocated bytes repeat. Blocks in between get the sites of followed iterations
//! (`analysis/followed/repeated_steps.rs`).

use std::time::Duration;

/// Up to this many allocations and frees a second cost the job nothing measurable.
const CHEAP_RATE: f64 = 10_000.0;
const LEAST_FOLLOWED: f64 = 0.1;
/// Followed this long without rest: attribution needs several iterations.
const LEARNS_FOR: Duration = Duration::from_secs(1);
/// The mean cycle. Lengths differ, so that each follows another part of the iteration.
const CYCLE: Duration = Duration::from_millis(500);
const VARIES: (f64, f64) = (0.6, 1.4);
/// In a longer gap nothing was followed: the poller was stopped or out of budget.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// The golden ratio: its multiples spread evenly modulo 1.
const GOLDEN: f64 = 0.618_034;
/// This part of the last deltas must end at a known level of allocated bytes.
const MOST: f64 = 0.95;
const LAST: f64 = 128.0;
/// Known levels; a power of two.
const REMEMBERED: usize = 1 << 17;

pub(super) struct Repetition {
    /// A part of each level's hash, indexed by the rest; 0 is empty.
    levels: Box<[u32]>,
    /// How many of the last deltas ended at a known level.
    repeated: f64,
    blocks: u64,
    cycle: Cycle,
    asked: Duration,
    learned: Duration,
}

/// Polls may rest after its first part.
struct Cycle {
    began: Duration,
    lasted: Duration,
    length: Duration,
    followed: Duration,
    /// The length, between the shortest (0) and the longest (1).
    phase: f64,
}

impl Repetition {
    pub(super) fn new() -> Repetition {
        let (began, lasted) = (Duration::ZERO, Duration::ZERO);
        let cycle = Cycle { began, lasted, length: CYCLE, followed: CYCLE, phase: GOLDEN };
        let levels = vec![0; REMEMBERED].into_boxed_slice();
        let (asked, learned) = (Duration::ZERO, Duration::ZERO);
        Repetition { levels, repeated: 0.0, blocks: 0, cycle, asked, learned }
    }

    pub(super) fn observe(&mut self, device: u32, live: [i64; 2], blocks: u64) {
        self.blocks = self.blocks.saturating_add(blocks);
        let hash = live.into_iter().fold(u64::from(device) + 1, |hash, bytes| {
            // The finalizer of MurmurHash3.
            let mixed = (hash ^ bytes as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
            let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            mixed ^ mixed >> 33
        });
        let tag = (hash >> 32) as u32 | 1;
        let known = &mut self.levels[hash as usize % REMEMBERED];
        let is_known = std::mem::replace(known, tag) == tag;
        self.repeated += (f64::from(u8::from(is_known)) - self.repeated) / LAST;
    }

    pub(super) fn rests(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.asked).min(LONGEST_PAUSE);
        self.asked = now;
        self.cycle.lasted += passed;
        let repeats = self.repeated > MOST;
        self.learned = if repeats { self.learned + passed } else { Duration::ZERO };
        if self.cycle.lasted >= self.cycle.length {
            let since = now.saturating_sub(self.cycle.began);
            let rate = std::mem::take(&mut self.blocks) as f64 / since.as_secs_f64();
            self.cycle = self.cycle.next(now, rate);
            return false;
        }
        self.learned >= LEARNS_FOR && self.cycle.lasted >= self.cycle.followed
    }
}

impl Cycle {
    fn next(&self, now: Duration, rate: f64) -> Cycle {
        let phase = (self.phase + GOLDEN).fract();
        let length = CYCLE.mul_f64(VARIES.0 + (VARIES.1 - VARIES.0) * phase);
        let part = (CHEAP_RATE / rate.max(1.0)).clamp(LEAST_FOLLOWED, 1.0);
        Cycle { began: now, lasted: Duration::ZERO, length, followed: length.mul_f64(part), phase }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rested(apart: Duration, mut live: impl FnMut(i64) -> i64) -> f64 {
        let mut repetition = Repetition::new();
        let count = |time: Duration| (time.as_nanos() / apart.as_nanos()) as u32;
        let (first, last) = (count(Duration::from_secs(4)), count(Duration::from_secs(14)));
        let mut rests = (0..last).map(|nth| {
            repetition.observe(0, [0, live(i64::from(nth))], 1);
            repetition.rests(apart * nth)
        });
        assert!(!rests.by_ref().take(count(LEARNS_FOR) as usize).any(|rests| rests));
        let rests = rests.skip((first - count(LEARNS_FOR)) as usize);
        rests.filter(|rests| *rests).count() as f64 / f64::from(last - first)
    }

    #[test]
    fn polls_rest_longer_if_a_job_allocates_more() {
        let loop_of = |nth| 512 * (nth % 1000);
        let rested = [10, 50, 90, 200].map(|us| rested(Duration::from_micros(us), loop_of));
        assert!((0.82..0.9).contains(&rested[0]), "{rested:?}: a tenth is followed");
        assert!((0.4..0.5).contains(&rested[1]), "{rested:?}: half of it is");
        assert!((0.03..0.12).contains(&rested[2]), "{rested:?}");
        assert_eq!(rested[3], 0.0, "following it costs nothing");
    }

    #[test]
    fn polls_do_not_rest_while_something_new_happens() {
        let apart = Duration::from_micros(10);
        assert_eq!(rested(apart, |nth| 512 * nth), 0.0, "it grows");
        let differs = |nth: i64| if nth / 50 % 2 == 0 { 512 * (nth % 1000) } else { 512 * nth };
        assert_eq!(rested(apart, differs), 0.0, "one half of each iteration does");
    }

    #[test]
    fn new_behaviour_makes_polls_follow_every_delta_again() {
        let mut repetition = Repetition::new();
        let apart = Duration::from_micros(10);
        let mut now = Duration::ZERO;
        let mut rests = false;
        for nth in 0..600_000 {
            now += apart;
            repetition.observe(0, [0, 512 * (nth % 1000)], 1);
            rests = repetition.rests(now);
            if rests {
                break;
            }
        }
        assert!(rests);
        let other = |nth: &i64| {
            repetition.observe(0, [7, 512 * nth], 1);
            repetition.rests(now)
        };
        assert!((0..100).take_while(other).count() < 10);
    }
}
