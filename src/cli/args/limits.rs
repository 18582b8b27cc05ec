//! What a look at tensors may cost the job, and the one who waits for it.

use std::time::Duration;

use clap::Args;

use super::values::time;
use crate::sampler::{LookOptions, StopPolicy};

/// The limits of a look.
#[derive(Debug, Clone, Copy, Args)]
pub struct Limits {
    /// Let the job go on after so long at the latest (200ms, 5s), also when the look is not complete then: what is missing is
    /// told
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub max_pause: Duration,
    /// End a look after so long, with what was reached by then: what is missing is told
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5s")]
    pub max_time: Duration,
}

impl Limits {
    /// A look within these limits.
    pub fn options(&self, no_pause: bool) -> LookOptions {
        let stop_policy = if no_pause { StopPolicy::Never } else { StopPolicy::Stop };
        let (max_pause, max_time) = (self.max_pause, self.max_time);
        LookOptions { stop_policy, max_pause, max_time, ..LookOptions::DEFAULT }
    }
}
