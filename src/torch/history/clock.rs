//! The events' clock: the processor's counter.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::target::{Addr, Field, Memory, time_stamp_counter};

/// Pairs in an `ApproximateClockToUnixTimeConverter` (c10/util/ApproximateClock.h, torch 2.1 to
/// 2.15).
const REPLICATES: usize = 1001;
/// Nanoseconds since the epoch, and the counter.
const PAIR: usize = 16;
/// Between pairs and devices: a flag and a ring buffer since 2.5.
const MAX_GAP: usize = 0x100;
/// 2015, before PyTorch existed.
const MIN_UNIX_NANOS: i64 = 1_420_070_400_000_000_000;
const MAX_MEASURING: i64 = 60_000_000_000;

/// PyTorch's calibration, and a new one.
#[derive(Debug)]
pub(super) struct TraceClock {
    start: Vec<(i64, i64)>,
    end: Vec<(i64, i64)>,
}

impl TraceClock {
    pub(super) fn find(memory: &dyn Memory, vector: Addr) -> Option<TraceClock> {
        let len = REPLICATES * PAIR + MAX_GAP;
        let bytes = memory.vec(vector - len as u64, len).ok()?;
        let end = measure()?;
        let start = (0..=MAX_GAP).step_by(8).find_map(|gap| {
            let from = MAX_GAP - gap;
            pairs(bytes.get(from..from + REPLICATES * PAIR)?, end.first()?.0)
        })?;
        Some(TraceClock { start, end })
    }

    pub(super) fn can_be(&self, time: i64) -> bool {
        let (Some(start), Some(end)) = (self.start.first(), self.end.last()) else { return false };
        // An event may be newer than the calibration.
        let most = end.1.saturating_add(end.1.saturating_sub(start.1)).saturating_add(1 << 40);
        (start.1..=most).contains(&time)
    }

    /// To nanoseconds since the epoch, as by PyTorch's `makeConverter`.
    pub(super) fn converter(&self) -> impl Fn(i64) -> i64 + use<> {
        let mut scales: Vec<f64> = self
            .start
            .iter()
            .zip(&self.end)
            .map(|(start, end)| (end.0 - start.0) as f64 / (end.1 - start.1).max(1) as f64)
            .collect();
        scales.sort_unstable_by(f64::total_cmp);
        let scale = scales.get(REPLICATES / 2 + 1).copied().unwrap_or(1.0);
        let (t0, counter0) = self.start.first().copied().unwrap_or_default();
        let correction = |&(time, counter): &(i64, i64)| {
            (time - t0) - ((counter - counter0) as f64 * scale) as i64
        };
        // PyTorch takes the middle element, not the median.
        let t0 = t0 + self.start.get(REPLICATES / 2 + 1).map_or(0, correction);
        move |counter| ((counter - counter0) as f64 * scale) as i64 + t0
    }
}

fn pairs(bytes: &[u8], now: i64) -> Option<Vec<(i64, i64)>> {
    let pairs: Vec<(i64, i64)> = bytes
        .chunks_exact(PAIR)
        .map(|pair| Some((Field::<i64>::at(0).get(pair)?, Field::<i64>::at(8).get(pair)?)))
        .collect::<Option<_>>()?;
    let first = pairs.first()?;
    let sound = pairs.iter().all(|(time, counter)| {
        (MIN_UNIX_NANOS..=now).contains(time)
            && *counter > 0
            && (time - first.0).abs() <= MAX_MEASURING
    }) && pairs.windows(2).all(|pair| pair[0].1 < pair[1].1);
    sound.then_some(pairs)
}

/// As PyTorch: the clock between two counter reads.
fn measure() -> Option<Vec<(i64, i64)>> {
    let counter = || time_stamp_counter().and_then(|counter| i64::try_from(counter).ok());
    let pair = |_| {
        let before = counter()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let after = counter()?;
        Some((i64::try_from(now).ok()?, before + (after - before) / 2))
    };
    (0..REPLICATES).map(pair).collect()
}
