//! When a job that allocates more and more will run out of memory.

use crate::analysis::owners::GrowthRise;

/// Seconds of observation before anything is said: a job that begins allocates more and more, too.
const SHORTEST: f64 = 10.0;
/// Quantiles of Student's t for a two-sided interval of 90 %, by degrees of freedom (1 to 5).
const STUDENT_T: [f64; 5] = [6.31, 2.92, 2.35, 2.13, 2.02];

/// When memory will be full if it grows as it did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeToFull {
    /// Bytes a second by which the lowest levels rise.
    pub rate: f64,
    /// Bytes that can still be allocated above the highest recent level.
    pub room: u64,
    /// Seconds from now.
    pub seconds: f64,
    /// The end of the 90 % interval that is sooner, in seconds.
    pub at_least: f64,
    /// The end that is later; `None`: perhaps never.
    pub at_most: Option<f64>,
}

impl TimeToFull {
    /// `levels`: allocated bytes at seconds, in time order; `None` if they do not keep rising.
    pub(crate) fn of(levels: &[(f64, u64)], room: u64) -> Option<TimeToFull> {
        let rise = GrowthRise::of(levels)?;
        let floors = GrowthRise::floors(levels);
        if rise.seconds < SHORTEST {
            return None;
        }
        let rates: Vec<f64> = floors
            .windows(2)
            .map(|pair| (pair[1].bytes - pair[0].bytes) as f64 / (pair[1].at - pair[0].at))
            .collect();
        let rate = rise.rate();
        let freedom = rates.len().checked_sub(1).filter(|n| *n > 0)?;
        let spread: f64 = rates.iter().map(|one| (one - rate).powi(2)).sum();
        let error = (spread / freedom as f64 / rates.len() as f64).sqrt();
        let within = STUDENT_T.get(freedom - 1).or(STUDENT_T.last())? * error;
        let room_left = room as f64;
        let slowest = rate - within;
        Some(TimeToFull {
            rate,
            room,
            seconds: room_left / rate,
            at_least: room_left / (rate + within),
            at_most: (slowest > 0.0).then(|| room_left / slowest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 1000;

    fn full(bytes: impl Iterator<Item = u64>) -> Option<TimeToFull> {
        let levels: Vec<(f64, u64)> =
            bytes.zip(0..).map(|(bytes, at)| (at.into(), bytes)).collect();
        TimeToFull::of(&levels, ROOM)
    }

    #[test]
    fn steady_growth_ends_when_the_room_is_used() {
        let time = full((0..60).map(|at| 500 + 2 * at)).unwrap();
        assert!((time.rate - 2.0).abs() < 1e-9, "{time:?}");
        assert!((time.seconds - 500.0).abs() < 1e-6, "{time:?}");
        assert!((time.at_least - 500.0).abs() < 1e-6, "{time:?}");
        assert!((time.at_most.unwrap() - 500.0).abs() < 1e-6, "{time:?}");
    }

    #[test]
    fn uneven_growth_has_a_wide_interval_that_holds_the_truth() {
        // 3 a second in the mean, in jumps.
        let time = full((0..240).map(|at| 100 + 90 * (at / 30))).unwrap();
        assert!(time.at_least < 333.0 && time.at_most.is_none_or(|most| most > 333.0), "{time:?}");
        assert!(time.at_least < 0.97 * time.seconds, "{time:?}");
    }

    #[test]
    fn nothing_is_said_of_a_sawtooth_or_of_a_short_time() {
        assert_eq!(full([5, 90, 40].repeat(20).into_iter()), None);
        assert_eq!(full((0..9).map(|at| 10 * at)), None);
        assert_eq!(full(std::iter::empty()), None);
    }
}
