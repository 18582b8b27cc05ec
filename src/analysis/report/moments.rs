//! Chooses key moments: extremes and requested ones.

use std::collections::BTreeSet;

use crate::model::Nanos;

#[derive(Debug, Clone, Copy)]
struct IntervalExtremes {
    highest: (u64, Nanos),
    lowest: (u64, Nanos),
}

#[derive(Debug, Clone)]
pub(super) struct MomentChoice {
    from: u64,
    width: u64,
    intervals: Vec<Option<IntervalExtremes>>,
    wanted: BTreeSet<Nanos>,
}

impl MomentChoice {
    pub(super) fn new(from: Nanos, to: Nanos, count: usize) -> MomentChoice {
        let intervals = (count / 2).max(1);
        let width = to.0.saturating_sub(from.0).div_ceil(intervals as u64).max(1);
        MomentChoice {
            from: from.0,
            width,
            intervals: vec![None; intervals],
            wanted: BTreeSet::new(),
        }
    }

    pub(super) fn want(&mut self, time: Nanos) {
        self.wanted.insert(time);
    }

    pub(super) fn add(&mut self, time: Nanos, bytes: u64) {
        let number = usize::try_from(time.0.saturating_sub(self.from) / self.width);
        let number = number.unwrap_or(usize::MAX).min(self.intervals.len() - 1);
        let seen = (bytes, time);
        let extremes =
            self.intervals[number].get_or_insert(IntervalExtremes { highest: seen, lowest: seen });
        if bytes > extremes.highest.0 {
            extremes.highest = seen;
        }
        if bytes < extremes.lowest.0 {
            extremes.lowest = seen;
        }
    }

    /// In time order.
    pub(super) fn moments(mut self) -> Vec<Nanos> {
        for extremes in self.intervals.iter().flatten() {
            self.wanted.insert(extremes.highest.1);
            self.wanted.insert(extremes.lowest.1);
        }
        self.wanted.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_every_interval_are_kept() {
        let mut choice = MomentChoice::new(Nanos(0), Nanos(100), 4);
        for (time, bytes) in [(1, 5), (2, 9), (3, 1), (4, 5), (60, 7), (70, 7)] {
            choice.add(Nanos(time), bytes);
        }
        choice.want(Nanos(80));
        assert_eq!(choice.moments(), [2, 3, 60, 80].map(Nanos));
    }
}
