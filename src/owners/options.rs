//! Options and limits of an ownership snapshot.

use std::time::Duration;

use crate::target::{Budget, resident};

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
    /// Longest stop: copying ends then, whatever was copied.
    pub max_pause: Duration,
    /// Longest snapshot.
    pub max_time: Duration,
    /// Most bytes by which memspy grows while it reads; `None`: as many as keep it near 1 GiB.
    pub max_memory: Option<u64>,
}

impl SnapshotOptions {
    /// The defaults.
    pub const DEFAULT: SnapshotOptions = SnapshotOptions {
        stop_policy: StopPolicy::Stop,
        max_pause: Duration::from_millis(30),
        max_time: Duration::from_secs(15),
        max_memory: None,
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
    pub(super) max_memory: u64,
    pub(super) asked: Option<&'a str>,
    /// Another stop may follow at any moment.
    pub(super) may_stop_again: bool,
}

/// A job of 350,000 objects needs 400 MiB, one of 900 kept graphs twice as much. Beyond, memory
/// grows by what is new in the stop, and by what is made of the last bytes read.
const MAX_RESIDENT: u64 = 960 << 20;
/// Of a memspy that has much already.
const MIN_MEMORY: u64 = 64 << 20;

fn memory_to_use() -> u64 {
    MAX_RESIDENT.saturating_sub(resident()).max(MIN_MEMORY)
}

impl<'a> SnapshotRequest<'a> {
    /// `asked` is a tensor's name or address (`0x…`): its referrers are searched, for double the
    /// time.
    pub fn new(options: SnapshotOptions, asked: Option<&'a str>) -> SnapshotRequest<'a> {
        let max_memory = options.max_memory.unwrap_or_else(memory_to_use);
        let budget = Budget::new(options.max_time, max_memory);
        SnapshotRequest { options, budget, max_memory, asked, may_stop_again: true }
    }

    /// Allows one stop; then [`OwnerError::Moved`](super::OwnerError::Moved): the caller
    /// chooses the next moment.
    pub fn with_one_stop(self) -> SnapshotRequest<'a> {
        SnapshotRequest { may_stop_again: false, ..self }
    }

    /// Restores the whole time.
    pub fn with_full_budget(self) -> SnapshotRequest<'a> {
        SnapshotRequest { budget: Budget::new(self.options.max_time, self.max_memory), ..self }
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
