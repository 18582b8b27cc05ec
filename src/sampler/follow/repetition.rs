//! Whether the job does what it did before: then it is followed change by change for a part of the time only.
//!
//! Every read of memory that the job writes makes it wait a little: 1 to 2 µs for each block with its free (`benches/README.md`). Where a job makes
//! tens of thousands of blocks a second, and the bytes alive have gone through the same values for a second, polls rest between changes. What
//! happened meanwhile is told from the iterations that were followed (`analysis/followed/repeated_steps.rs`).
//! As soon as the bytes alive are others than before, every change is followed again.

use std::time::Duration;

/// So many blocks allocated and freed a second are followed at no cost that can be told.
const CHEAP_RATE: f64 = 10_000.0;
/// The least part of the time in which every change is followed.
const LEAST_FOLLOWED: f64 = 0.1;
/// For so long a job that repeats itself is followed without rest: what is told later has to be known from several iterations.
const LEARNS_FOR: Duration = Duration::from_secs(1);
/// After about this long another part of the iteration is followed. No two cycles are of one length: iterations may be.
const CYCLE: Duration = Duration::from_millis(500);
/// From the shortest to the longest cycle, in cycles.
const VARIES: (f64, f64) = (0.6, 1.4);
/// In a longer time between two polls nothing was followed: the poller was stopped, or had used up its budget.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// The golden ratio: its multiples fall evenly between whole numbers.
const GOLDEN: f64 = 0.618_034;
/// Of the last changes so many have to have left as many bytes alive as some change before.
const MOST: f64 = 0.95;
/// How many the last changes are.
const LAST: f64 = 128.0;
/// Numbers of bytes remembered; a power of two.
const REMEMBERED: usize = 1 << 17;

/// What is known of a job's repetition.
pub(super) struct Repetition {
    /// A part of the hash of what was alive, by the rest of the hash; 0 where there is none.
    levels: Box<[u32]>,
    /// Of the last changes, those after which as much was alive as once before.
    repeated: f64,
    /// Blocks allocated and freed since the cycle began.
    blocks: u64,
    cycle: Cycle,
    /// When it was asked last.
    asked: Duration,
    /// For how long it has repeated itself.
    learned: Duration,
}

/// A time in which every change is followed first, and then polls may rest.
struct Cycle {
    began: Duration,
    /// How long it has lasted, without the times in which nothing was polled.
    lasted: Duration,
    length: Duration,
    followed: Duration,
    /// Where its length lies between the shortest and the longest.
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

    /// Takes a change of so many blocks after which `live` bytes are alive in the pools of a device.
    pub(super) fn saw(&mut self, device: u32, live: [i64; 2], blocks: u64) {
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

    /// Whether polls may rest now.
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
    /// The cycle that begins now, after one with `rate` blocks a second.
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

    /// For how much of the ten seconds after it has learned polls may rest, where a job makes a change each `apart`.
    fn rested(apart: Duration, mut live: impl FnMut(i64) -> i64) -> f64 {
        let mut repetition = Repetition::new();
        let count = |time: Duration| (time.as_nanos() / apart.as_nanos()) as u32;
        let (first, last) = (count(Duration::from_secs(4)), count(Duration::from_secs(14)));
        let mut rests = (0..last).map(|nth| {
            repetition.saw(0, [0, live(i64::from(nth))], 1);
            repetition.rests(apart * nth)
        });
        assert!(!rests.by_ref().take(count(LEARNS_FOR) as usize).any(|rests| rests));
        let rests = rests.skip((first - count(LEARNS_FOR)) as usize);
        rests.filter(|rests| *rests).count() as f64 / f64::from(last - first)
    }

    #[test]
    fn polls_rest_the_more_the_more_blocks_a_job_makes() {
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
    fn when_the_job_does_something_else_every_change_is_followed_soon() {
        let mut repetition = Repetition::new();
        let apart = Duration::from_micros(10);
        let mut now = Duration::ZERO;
        let mut rests = false;
        for nth in 0..600_000 {
            now += apart;
            repetition.saw(0, [0, 512 * (nth % 1000)], 1);
            rests = repetition.rests(now);
            if rests {
                break;
            }
        }
        assert!(rests);
        let other = |nth: &i64| {
            repetition.saw(0, [7, 512 * nth], 1);
            repetition.rests(now)
        };
        assert!((0..100).take_while(other).count() < 10);
    }
}
