//! Limits the time and memory of a read.

use std::time::{Duration, Instant};

use super::memory::MemoryError;
use super::proc_files;

const PAGE: u64 = 4096;

/// A limit of time and memory ([`super::PageCache::within`]).
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    until: Option<Instant>,
    /// memspy's resident bytes at the start.
    resident: u64,
    /// Allowed growth in bytes.
    bytes: u64,
}

impl Budget {
    /// Starts now.
    pub fn new(time: Duration, bytes: u64) -> Budget {
        Budget { until: Instant::now().checked_add(time), resident: resident(), bytes }
    }

    /// Shortens the time to `time` from now.
    pub fn with_time_limit(self, time: Duration) -> Budget {
        let until = Instant::now().checked_add(time);
        let first = [self.until, until].into_iter().flatten().min();
        Budget { until: first, ..self }
    }

    /// Counts memory from now on, within the same limit or at least a quarter of it.
    pub fn restarted(self) -> Budget {
        let now = resident();
        let left = self.bytes.saturating_sub(now.saturating_sub(self.resident));
        Budget { resident: now, bytes: left.max(self.bytes / 4), ..self }
    }

    /// The remaining time.
    pub fn left(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(Duration::MAX, left)
    }

    /// The exceeded limit, where `reserved` of 1 of the memory is kept. Takes microseconds.
    pub(super) fn exceeded(&self, reserved: f64) -> Option<MemoryError> {
        if self.left() == Duration::ZERO {
            return Some(MemoryError::TimeUp);
        }
        let grown = resident().saturating_sub(self.resident);
        let allowed = self.bytes as f64 * (1.0 - reserved);
        (grown as f64 > allowed).then_some(MemoryError::OutOfRoom)
    }

    /// Pages that may be copied whatever is resident: freed memory is, too.
    pub(super) fn spare_pages(&self) -> usize {
        usize::try_from(self.bytes / 12 / PAGE).unwrap_or(usize::MAX)
    }

    /// Most pages that leave half of the memory for what is made of them.
    pub(super) fn pages(&self) -> usize {
        usize::try_from(self.bytes / 2 / PAGE).unwrap_or(usize::MAX)
    }
}

/// memspy's own memory; 0 if unreadable.
pub fn resident() -> u64 {
    let statm = proc_files::fields("self", "statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_bounds_time_and_memory_and_can_be_extended() {
        let none = Budget::new(Duration::ZERO, u64::MAX);
        assert_eq!(none.exceeded(0.0), Some(MemoryError::TimeUp));
        assert_eq!(none.left(), Duration::ZERO);
        let hour = Duration::from_secs(3600);
        assert!(Budget::new(hour, 0).with_time_limit(hour / 2).left() <= hour / 2);
        let budget = Budget::new(hour, 16 << 20);
        assert_eq!(budget.exceeded(0.0), None);
        // Written, so resident; more than parallel tests free meanwhile.
        let taken = std::hint::black_box(vec![1u8; 256 << 20]);
        assert_eq!(budget.exceeded(0.0), Some(MemoryError::OutOfRoom));
        drop(taken);
        assert_eq!(Budget { resident: 0, ..Budget::new(hour, 80) }.restarted().bytes, 20);
        let half = Budget { resident: 0, ..Budget::new(hour, 1 << 40) };
        assert_eq!((half.exceeded(0.5), half.exceeded(1.0)), (None, Some(MemoryError::OutOfRoom)));
    }
}
