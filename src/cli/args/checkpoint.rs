//! Arguments of `memspy pause` and `memspy resume`.

use std::time::Duration;

use clap::Args;

use super::values::{pid, size, time};

/// `memspy pause`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy pause -p 12345             until 'memspy resume -p 12345'
  memspy pause --for 10min -p 12345 for ten minutes; Ctrl-C resumes the job earlier

The CUDA driver (570 or newer) does the work: it lets the job's kernels end, makes its next CUDA \
calls wait, copies its GPU memory to the host and gives the GPU back. Addresses and contents are the \
same afterwards. The driver may refuse jobs that share GPU memory with other processes (CUDA IPC).")]
pub struct PauseArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Resume the job after this time (90s, 10min, 1h), on Ctrl-C, or when memspy is terminated
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,
    /// How long to wait for the job's kernels to end before giving up
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub lock_timeout: Duration,
    /// Host memory that must stay available after the move; otherwise the job is not paused
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    pub keep_free: u64,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
}

/// `memspy resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
}
