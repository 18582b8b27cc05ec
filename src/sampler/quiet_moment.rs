//! Quiet moments of the allocator, for consistent snapshots.
//!
//! A job that allocates every 50 µs changes its blocks for hundreds of milliseconds, then waits for
//! the device, data or a loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(1);

/// When the counters last changed. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct LastChange(Arc<AtomicU64>);

impl LastChange {
    /// In nanoseconds since the recording started.
    pub(super) fn set(&self, nanos: u64) {
        self.0.store(nanos, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Waits for a moment likely to last for `takes`.
pub(super) struct QuietMoments {
    pub(super) last_change: LastChange,
    pub(super) start: Instant,
    pub(super) takes: Duration,
    pub(super) until: Instant,
}

impl QuietMoments {
    pub(super) fn wait(&self) {
        let wanted = self.takes.clamp(SHORTEST, LONGEST);
        while self.start.elapsed().saturating_sub(self.last_change.get()) < wanted
            && Instant::now() < self.until
        {
            std::thread::sleep(wanted / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_quiet_counters_until_the_deadline() {
        let last_change = LastChange::default();
        let start = Instant::now();
        let takes = Duration::from_micros(500);
        let until = start + Duration::from_secs(60);
        last_change.set(3_000_000);
        let moments = QuietMoments { last_change: last_change.clone(), start, takes, until };
        moments.wait();
        assert!(start.elapsed() >= Duration::from_micros(3_500), "{:?}", start.elapsed());

        last_change.set(u64::MAX / 2);
        let until = Instant::now() + Duration::from_millis(2);
        QuietMoments { until, ..moments }.wait();
        assert!(Instant::now() >= until);
    }
}
