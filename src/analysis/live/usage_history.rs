//! The last 15 minutes of levels, without losing a maximum.

use std::collections::VecDeque;

use crate::model::Nanos;

const INTERVAL_NANOS: u64 = 250_000_000;
/// Intervals per column at most: 2 s.
const MAX_WIDENING: u64 = 8;
const KEPT: usize = 3600;

/// The greatest values seen, in bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakUsage {
    pub allocated: i64,
    pub reserved: i64,
}

impl PeakUsage {
    pub(crate) fn with(self, other: PeakUsage) -> PeakUsage {
        PeakUsage {
            allocated: self.allocated.max(other.allocated),
            reserved: self.reserved.max(other.reserved),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct UsageInterval {
    number: u64,
    greatest: PeakUsage,
    /// The least allocated bytes.
    least: i64,
    last: PeakUsage,
}

/// Intervals with changes; in others, the last value holds.
#[derive(Debug, Clone, Default)]
pub struct UsageHistory {
    intervals: VecDeque<UsageInterval>,
}

impl UsageHistory {
    pub(crate) fn add(&mut self, time: Nanos, now: PeakUsage) {
        let number = time.0 / INTERVAL_NANOS;
        match self.intervals.back_mut() {
            Some(last) if last.number >= number => {
                last.greatest = last.greatest.with(now);
                last.least = last.least.min(now.allocated);
                last.last = now;
            }
            last => {
                let before = last.map_or(now, |last| last.last);
                self.intervals.push_back(UsageInterval {
                    number,
                    greatest: before.with(now),
                    least: before.allocated.min(now.allocated),
                    last: now,
                });
            }
        }
        if self.intervals.len() > KEPT {
            self.intervals.pop_front();
        }
    }

    pub(crate) fn levels(&self) -> Vec<PeakUsage> {
        self.intervals.iter().map(|interval| interval.last).collect()
    }

    /// Allocated bytes at seconds, and the most of them in the last sixth of the time.
    pub(crate) fn allocated(&self) -> (Vec<(f64, u64)>, u64) {
        let bytes = |value: i64| value.max(0) as u64;
        let level = |interval: &UsageInterval| {
            let seconds = (interval.number * INTERVAL_NANOS) as f64 / 1e9;
            (seconds, bytes(interval.last.allocated))
        };
        let recent = self.intervals.iter().rev().take(self.intervals.len().div_ceil(6));
        let most = recent.map(|interval| bytes(interval.greatest.allocated)).max().unwrap_or(0);
        (self.intervals.iter().map(level).collect(), most)
    }

    /// The least allocated bytes: what lasts, whatever the job does at one moment.
    pub(crate) fn least_allocated(&self) -> Option<u64> {
        self.intervals.iter().map(|interval| interval.least.max(0) as u64).min()
    }

    /// Whether nothing is known yet.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// The time up to `now` in `count` columns, and a column's length; `None` before the first
    /// value. Columns start at fixed times, so they scroll unchanged.
    pub fn columns(&self, now: Nanos, count: usize) -> (Nanos, Vec<Option<PeakUsage>>) {
        let now = now.0 / INTERVAL_NANOS;
        let first = self.intervals.front().map_or(now, |interval| interval.number);
        let mut width = 1;
        while width < MAX_WIDENING && (now / width) - (first / width) >= count as u64 {
            width *= 2;
        }
        let mut columns = Vec::with_capacity(count);
        let mut next = 0;
        let mut before: Option<PeakUsage> = None;
        let last = now / width + 1;
        columns.resize((count as u64).saturating_sub(last) as usize, None);
        for column in last.saturating_sub(count as u64)..last {
            let end = (column + 1) * width;
            let mut greatest = before;
            while let Some(interval) = self.intervals.get(next).filter(|s| s.number < end) {
                if interval.number >= column * width {
                    greatest =
                        Some(greatest.map_or(interval.greatest, |g| g.with(interval.greatest)));
                } else {
                    greatest = Some(interval.last);
                }
                before = Some(interval.last);
                next += 1;
            }
            columns.push(greatest);
        }
        (Nanos(width * INTERVAL_NANOS), columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(allocated: i64) -> PeakUsage {
        PeakUsage { allocated, reserved: allocated + 1 }
    }

    fn allocated(recent: &UsageHistory, now: f64, count: usize) -> (f64, Vec<Option<i64>>) {
        let (width, columns) = recent.columns(Nanos((now * 1e9) as u64), count);
        (width.seconds(), columns.iter().map(|c| c.map(|c| c.allocated)).collect())
    }

    #[test]
    fn value_holds_until_the_next_and_short_rises_show() {
        let mut recent = UsageHistory::default();
        for (time, value) in [(0.6, 5), (1.1, 90), (1.2, 7), (2.3, 7)] {
            recent.add(Nanos((time * 1e9) as u64), reach(value));
        }
        let (width, columns) = allocated(&recent, 2.4, 8);
        assert_eq!(width, 0.25);
        assert_eq!(recent.least_allocated(), Some(5));
        let some = |values: &[i64]| values.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(columns, some(&[5, 5, 90, 7, 7, 7, 7, 7]));
        let (width, columns) = allocated(&recent, 2.4, 4);
        assert_eq!((width, columns), (0.5, some(&[5, 90, 7, 7])));
        let (_, columns) = allocated(&recent, 2.4, 20);
        assert_eq!(columns.len(), 20);
        assert_eq!(columns[..12], [None; 12]);
        assert_eq!(columns[12..], some(&[5, 5, 90, 7, 7, 7, 7, 7]));
    }

    #[test]
    fn days_fit_and_old_columns_scroll_away() {
        let mut recent = UsageHistory::default();
        for second in 0..200_000u64 {
            recent.add(Nanos(second * 1_000_000_000), reach((second % 10) as i64));
        }
        assert_eq!(recent.intervals.len(), KEPT);
        let (width, columns) = allocated(&recent, 199_999.0, 60);
        assert_eq!((width, columns.len()), (2.0, 60));
        assert!(columns.iter().all(Option::is_some));
        let (_, columns) = allocated(&recent, 300_000.0, 3);
        assert_eq!(columns, [Some(9); 3]);
    }
}
