//! How long reading tensors may stop the job, and how long it may take.

use std::time::Duration;

use clap::Args;

use super::values::time;
use crate::sampler::{SnapshotOptions, StopPolicy};

/// What a snapshot of the tensors may cost the job, in every command that takes one.
#[derive(Debug, Clone, Copy, Args)]
pub struct SnapshotArgs {
    /// Never stop the job to read its tensors: what it changes meanwhile may be inconsistent
    #[arg(long, visible_aliases = ["no-pause", "nonblocking"], help_heading = "Cost of a snapshot")]
    pub no_stop: bool,
    /// What one snapshot may cost
    #[command(flatten)]
    pub limits: SnapshotLimits,
}

impl SnapshotArgs {
    /// Options of a snapshot at this cost.
    pub fn options(&self) -> SnapshotOptions {
        self.limits.options(self.no_stop)
    }
}

/// The limits of one snapshot.
#[derive(Debug, Clone, Copy, Args)]
pub struct SnapshotLimits {
    /// Stop the job for at most this long. What changes meanwhile and does not fit is read while
    /// the job runs, and the snapshot says how much that is
    #[arg(long, visible_alias = "max-pause", value_name = "TIME", value_parser = time, default_value = "30ms", help_heading = "Cost of a snapshot")]
    pub max_stop: Duration,
    /// End a snapshot after this time [default: 15s; 'summary' has less, as it ends soon]. One that
    /// needs longer is incomplete and says what is missing
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Cost of a snapshot")]
    pub max_time: Option<Duration>,
}

impl SnapshotLimits {
    /// Options of a snapshot within these limits.
    pub fn options(&self, no_stop: bool) -> SnapshotOptions {
        let stop_policy = if no_stop { StopPolicy::Never } else { StopPolicy::Stop };
        let max_pause = self.max_stop;
        let max_time = self.max_time.unwrap_or(SnapshotOptions::DEFAULT.max_time);
        SnapshotOptions { stop_policy, max_pause, max_time, ..SnapshotOptions::DEFAULT }
    }
}
