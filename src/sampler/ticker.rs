//! A grid of ticks that counts missed ones.

use std::time::{Duration, Instant};

#[derive(Debug, Clone)]
pub(super) struct Ticker {
    period: Duration,
    next: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tick {
    /// Ticks wholly in the past, which are not sampled.
    pub missed: u64,
    pub wait: Duration,
}

impl Ticker {
    /// `rate` ticks a second, at least one.
    pub(super) fn new(rate: u32, start: Instant) -> Self {
        Ticker { period: Duration::from_secs(1) / rate.max(1), next: start }
    }

    pub(super) fn tick(&mut self, now: Instant) -> Tick {
        let late = now.saturating_duration_since(self.next);
        let missed = (late.as_nanos() / self.period.as_nanos()) as u64;
        // Nanoseconds in u64 last for centuries; u32 multiplication of Duration would not.
        let skipped = Duration::from_nanos(self.period.as_nanos() as u64 * missed);
        let due = self.next + skipped;
        self.next = due + self.period;
        Tick { missed, wait: due.saturating_duration_since(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ticks_are_counted_as_missed() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Ticker::new(100, start);
        assert_eq!(pace.tick(at(0)), Tick { missed: 0, wait: Duration::ZERO });
        assert_eq!(pace.tick(at(4)), Tick { missed: 0, wait: Duration::from_millis(6) });
        assert_eq!(
            pace.tick(at(29)),
            Tick { missed: 0, wait: Duration::ZERO },
            "9 ms late is late, not missed"
        );
        assert_eq!(
            pace.tick(at(65)),
            Tick { missed: 3, wait: Duration::ZERO },
            "30, 40 and 50 are over"
        );
        assert_eq!(pace.tick(at(66)), Tick { missed: 0, wait: Duration::from_millis(4) });
    }
}
