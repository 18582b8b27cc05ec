//! The largest number that fits, in as few runs as possible.

use anyhow::Result;

/// A run with one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FitProbe {
    /// It fits and needs this many bytes.
    Fits(u64),
    TooLarge,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FitResult {
    /// `None`: not even the lowest fits.
    pub(super) largest: Option<u64>,
    /// The numbers tried.
    pub(super) tried: Vec<u64>,
}

/// Later guesses go this part of the number away from the first one, then half as far, or twice.
const FIRST_STEP: u64 = 64;
/// A guess goes this many times beyond what fits.
const MAX_GROWTH: u64 = 8;

/// Searches from `low` to `high`: bytes grow about linearly, so a few runs tell where to look, and
/// later ones close in on it. `room`: the bytes of the card.
pub(super) fn largest_that_fits(
    low: u64,
    high: u64,
    room: u64,
    mut run: impl FnMut(u64) -> Result<FitProbe>,
) -> Result<FitResult> {
    let mut tried = vec![low];
    let FitProbe::Fits(bytes) = run(low)? else {
        return Ok(FitResult { largest: None, tried });
    };
    let (mut points, mut fits, mut above) = (vec![(low, bytes)], low, high + 1);
    let (mut step, mut fitted) = (0, None);
    while fits + 1 < above {
        let middle = fits + (above - fits) / 2;
        let guess = match (above > high, fitted) {
            (true, _) => match estimate(&points, room) {
                Some(guess) => guess.min(fits.saturating_mul(MAX_GROWTH)),
                // Close, so that even a small card gives two points.
                None => fits.saturating_mul(4),
            },
            (false, Some(true)) => middle.min(fits + step),
            (false, _) => middle.max(above.saturating_sub(step)),
        };
        let at = guess.clamp(fits + 1, above - 1);
        tried.push(at);
        let probe = run(at)?;
        match probe {
            FitProbe::Fits(bytes) => {
                points.push((at, bytes));
                fits = at;
            }
            FitProbe::TooLarge => above = at,
        }
        let does_fit = matches!(probe, FitProbe::Fits(_));
        let usual = if step > 0 { step / 2 } else { at / FIRST_STEP };
        step = if step > 0 && fitted == Some(does_fit) { step * 2 } else { usual.max(1) };
        fitted = Some(does_fit);
    }
    Ok(FitResult { largest: Some(fits), tried })
}

/// Where a line through the two largest points meets the card's memory; `None`: they are level.
fn estimate(points: &[(u64, u64)], room: u64) -> Option<u64> {
    let (&(before, least), &(at, most)) =
        (points.get(points.len().checked_sub(2)?)?, points.last()?);
    let slope = most.saturating_sub(least) as f64 / at.saturating_sub(before).max(1) as f64;
    // As long as something else is the peak, it says nothing.
    if (most - least.min(most)) * 50 < most {
        return None;
    }
    Some(at.saturating_add((room.saturating_sub(most) as f64 / slope) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(low: u64, high: u64, room: u64, bytes: impl Fn(u64) -> u64) -> FitResult {
        let run = |at| {
            Ok(match bytes(at) {
                needed if needed <= room => FitProbe::Fits(needed),
                _ => FitProbe::TooLarge,
            })
        };
        largest_that_fits(low, high, room, run).unwrap()
    }

    #[test]
    fn the_largest_is_found_wherever_it_is() {
        for room in [10, 25, 26, 27, 28, 90, 1000, 5000] {
            let found = search(1, 512, room, |at| 20 + 7 * at);
            let right = (1..=512).rev().find(|at| 20 + 7 * at <= room);
            assert_eq!(found.largest, right, "{room}");
        }
        let steps = |at: u64| 20 + (7 * at).div_ceil(64) * 64;
        let uneven = |at: u64| 20 + 7 * at + (at % 3) * 2;
        let curved = |at: u64| 20 + at * at;
        let level_first = |at: u64| (7 * at).max(560);
        let found = search(1, 32768, 2000, level_first);
        assert_eq!(found.largest, Some(285));
        assert!(found.tried.len() < 20, "{:?}", found.tried);
        for room in [100, 500, 1111, 3000, 100_000] {
            for bytes in [&steps as &dyn Fn(u64) -> u64, &curved] {
                let right = (1..=512).rev().find(|at| bytes(*at) <= room);
                assert_eq!(search(1, 512, room, bytes).largest, right, "{room}");
            }
            assert!(search(1, 512, room, uneven).largest.is_some_and(|at| uneven(at) <= room));
        }
    }

    #[test]
    fn a_line_needs_few_runs() {
        let found = search(1, 512, 3000, |at| 20 + 7 * at);
        assert!(found.tried.len() <= 7, "{:?}", found.tried);
        let curved = search(1, 512, 100_000, |at| 20 + at * at);
        assert!(curved.tried.len() <= 16, "{:?}", curved.tried);
        assert_eq!(search(8, 8, 100, |at| at).tried, [8]);
    }
}
