//! Options and limits of an ownership snapshot.

use std::time::Duration;

use crate::target::Budget;

/// Whether a snapshot may stop the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopPolicy {
    /// For some milliseconds: a consistent snapshot.
    #[default]
    Stop,
    /// The data may be torn; it is checked where possible.
    Never,
}

/// Limits hold whatever the process contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Whether the process may be stopped.
    pub stop_policy: StopPolicy,
    /// Longest stop.
    pub max_pause: Duration,
    /// Longest snapshot.
    pub max_time: Duration,
    /// Most bytes copied, besides 1 KiB per Python object.
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

/// A snapshot to take. Its time begins here, for all attempts.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotRequest<'a> {
    pub(super) options: SnapshotOptions,
    pub(super) budget: Budget,
    pub(super) asked: Option<&'a str>,
    /// Another stop may follow at any moment.
    pub(super) may_stop_again: bool,
    pub(super) announce: Option<AnnounceStop>,
}

/// Estimate of a long stop: its time, and the bytes to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StopEstimate {
    pub time: Duration,
    pub bytes: u64,
    pub max_pause: Duration,
}

/// Called before a long stop, with its estimate.
pub type AnnounceStop = fn(StopEstimate);

/// Bytes per second on a slow machine.
const SLOW_COPY: u64 = 2 << 30;
const LONG_STOP: Duration = Duration::from_millis(100);

impl StopEstimate {
    pub(super) fn of(bytes: u64, max_pause: Duration) -> Option<StopEstimate> {
        let time = Duration::from_secs_f64(bytes as f64 / SLOW_COPY as f64);
        (time >= LONG_STOP || time > max_pause).then_some(StopEstimate { time, bytes, max_pause })
    }
}

impl<'a> SnapshotRequest<'a> {
    /// `asked` is a tensor's name or address (`0x…`): its referrers are searched, for double the
    /// time.
    pub fn new(options: SnapshotOptions, asked: Option<&'a str>) -> SnapshotRequest<'a> {
        let budget = Budget::new(options.max_time, options.max_memory);
        SnapshotRequest { options, budget, asked, may_stop_again: true, announce: None }
    }

    /// Calls `announce` before a long stop.
    pub fn announced_by(self, announce: Option<AnnounceStop>) -> SnapshotRequest<'a> {
        SnapshotRequest { announce, ..self }
    }

    /// Allows one stop; then [`OwnerError::Moved`](super::OwnerError::Moved): the caller
    /// chooses the next moment.
    pub fn with_one_stop(self) -> SnapshotRequest<'a> {
        SnapshotRequest { may_stop_again: false, ..self }
    }

    /// Restores the whole time.
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
