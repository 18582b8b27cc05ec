//! How much a look at another process may cost: time, and memory of memspy's own.

use std::time::{Duration, Instant};

use super::memory::MemoryError;
use super::proc_files;

/// Bytes of a page of memspy's own, as the kernel counts them on x86-64.
const PAGE: u64 = 4096;

/// A limit of time and of memory, kept by what reads within it ([`super::PageCache::within`]).
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    until: Option<Instant>,
    /// What memspy had in memory when this began.
    resident: u64,
    /// By how many bytes that may grow.
    bytes: u64,
}

impl Budget {
    /// `time` and `bytes` from now on.
    pub fn new(time: Duration, bytes: u64) -> Budget {
        Budget { until: Instant::now().checked_add(time), resident: resident(), bytes }
    }

    /// The same with only `time` from now on, if that is less.
    pub fn but_at_most(self, time: Duration) -> Budget {
        let until = Instant::now().checked_add(time);
        let first = [self.until, until].into_iter().flatten().min();
        Budget { until: first, ..self }
    }

    /// The time that is left.
    pub fn left(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(Duration::MAX, left)
    }

    /// Which of the two is used up, if one is, where `more` bytes are allowed besides. Takes some microseconds.
    pub(super) fn exceeded(&self, more: u64) -> Option<MemoryError> {
        if self.left() == Duration::ZERO {
            return Some(MemoryError::TimeUp);
        }
        let grown = resident().saturating_sub(self.resident);
        (grown > self.bytes.saturating_add(more)).then_some(MemoryError::OutOfRoom)
    }
}

/// Bytes of memspy in memory (the second number of `/proc/self/statm`); 0 where that cannot be read.
fn resident() -> u64 {
    let statm = proc_files::fields("self", "statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_are_bounded_and_memory_can_be_allowed() {
        let none = Budget::new(Duration::ZERO, u64::MAX);
        assert_eq!(none.exceeded(0), Some(MemoryError::TimeUp));
        assert_eq!(none.left(), Duration::ZERO);
        let hour = Duration::from_secs(3600);
        assert!(Budget::new(hour, 0).but_at_most(hour / 2).left() <= hour / 2);
        let budget = Budget::new(hour, 16 << 20);
        assert_eq!(budget.exceeded(0), None);
        // Written to, so that it is really there; more than tests beside this one give back meanwhile.
        let taken = vec![1u8; 256 << 20];
        assert_eq!(budget.exceeded(0), Some(MemoryError::OutOfRoom));
        assert_eq!(budget.exceeded(1 << 40), None);
        drop(taken);
    }
}
