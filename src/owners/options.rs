//! Options of an ownership snapshot: whether it stops the process, and its limits.

use std::time::Duration;

use crate::target::Budget;

/// Whether a snapshot may stop the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopPolicy {
    /// Stop it for some milliseconds, for a consistent snapshot.
    #[default]
    Stop,
    /// Never stop it; the data may be torn and is checked as far as possible.
    Never,
}

/// Options and limits of a snapshot, kept whatever the process's memory contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Whether the process may be stopped.
    pub stop_policy: StopPolicy,
    /// Maximum time of one stop.
    pub max_pause: Duration,
    /// Maximum time of the snapshot.
    pub max_time: Duration,
    /// Maximum bytes copied, in addition to what the process's objects need (1 KiB each).
    pub max_memory: u64,
}

impl SnapshotOptions {
    /// The defaults.
    pub const DEFAULT: SnapshotOptions = SnapshotOptions {
        stop_policy: StopPolicy::Stop,
        max_pause: Duration::from_secs(1),
        max_time: Duration::from_secs(5),
        max_memory: 512 << 20,
    };
}

impl Default for SnapshotOptions {
    fn default() -> SnapshotOptions {
        SnapshotOptions::DEFAULT
    }
}

impl From<StopPolicy> for SnapshotOptions {
    fn from(stop_policy: StopPolicy) -> SnapshotOptions {
        SnapshotOptions { stop_policy, ..SnapshotOptions::DEFAULT }
    }
}

/// A request for a snapshot. Its time budget starts when it is created and covers all attempts.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotRequest<'a> {
    pub(super) options: SnapshotOptions,
    pub(super) budget: Budget,
    pub(super) asked: Option<&'a str>,
    /// Whether the process may be stopped again, at any moment, if the first copy was not enough.
    pub(super) may_stop_again: bool,
    pub(super) announce: Option<AnnounceStop>,
}

/// The estimate of a long stop, before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopEstimate {
    /// Expected time.
    pub time: Duration,
    /// Bytes to copy.
    pub bytes: u64,
    /// Maximum time.
    pub max_pause: Duration,
}

/// Receives the estimate.
pub type AnnounceStop = fn(StopEstimate);

/// Bytes that a slow machine copies per second.
const SLOW_COPY: u64 = 2 << 30;
const LONG_STOP: Duration = Duration::from_millis(100);

impl StopEstimate {
    /// The estimate for copying `bytes`; `None` if the stop is short.
    pub(super) fn of(bytes: u64, max_pause: Duration) -> Option<StopEstimate> {
        let time = Duration::from_secs_f64(bytes as f64 / SLOW_COPY as f64);
        (time >= LONG_STOP || time > max_pause).then_some(StopEstimate { time, bytes, max_pause })
    }
}

impl<'a> SnapshotRequest<'a> {
    /// A request with `options`. For the tensors named `asked`, or at that address (`0x…`), it also
    /// finds the referrers, which doubles its time.
    pub fn new(options: SnapshotOptions, asked: Option<&'a str>) -> SnapshotRequest<'a> {
        let budget = Budget::new(options.max_time, options.max_memory);
        SnapshotRequest { options, budget, asked, may_stop_again: true, announce: None }
    }

    /// The same request with `announce` called before a long stop.
    pub fn announced_by(self, announce: Option<AnnounceStop>) -> SnapshotRequest<'a> {
        SnapshotRequest { announce, ..self }
    }

    /// The same request limited to one stop. If that is not enough, it fails with
    /// [`OwnerError::Moved`](super::OwnerError::Moved), and the caller chooses the moment of the
    /// next stop.
    pub fn with_one_stop(self) -> SnapshotRequest<'a> {
        SnapshotRequest { may_stop_again: false, ..self }
    }

    /// The same request with its full time budget again.
    pub fn with_full_budget(self) -> SnapshotRequest<'a> {
        let SnapshotOptions { max_time, max_memory, .. } = self.options;
        SnapshotRequest { budget: Budget::new(max_time, max_memory), ..self }
    }

    /// Whether it may stop the process.
    pub fn stop_policy(&self) -> StopPolicy {
        self.options.stop_policy
    }

    /// The time left.
    pub fn time_left(&self) -> Duration {
        self.budget.left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_stops_are_announced() {
        let announced = |bytes, max_pause| {
            StopEstimate::of(bytes, Duration::from_millis(max_pause))
                .map(|stop| stop.time.as_millis())
        };
        assert_eq!(announced(100 << 20, 1000), None);
        assert_eq!(announced(1 << 30, 1000), Some(500));
        assert_eq!(announced(100 << 20, 20), Some(48));
    }
}
