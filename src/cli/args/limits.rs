//! How long a look at tensors may stop the job, and how long it may take.

use std::time::Duration;

use clap::Args;

use super::values::time;
use crate::sampler::{LookOptions, StopPolicy};

/// The limits of a look.
#[derive(Debug, Clone, Copy, Args)]
pub struct Limits {
    /// Stop the job for at most this long (200ms, 5s). A look that needs longer is incomplete, and says what is missing
    #[arg(long, visible_alias = "max-pause", value_name = "TIME", value_parser = time, default_value = "1s", help_heading = "Cost of a look")]
    pub max_stop: Duration,
    /// End a look after this time. One that needs longer is incomplete, and says what is missing
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5s", help_heading = "Cost of a look")]
    pub max_time: Duration,
}

impl Limits {
    /// A look within these limits.
    pub fn options(&self, no_stop: bool) -> LookOptions {
        let stop_policy = if no_stop { StopPolicy::Never } else { StopPolicy::Stop };
        let (max_pause, max_time) = (self.max_stop, self.max_time);
        LookOptions { stop_policy, max_pause, max_time, ..LookOptions::DEFAULT }
    }
}
