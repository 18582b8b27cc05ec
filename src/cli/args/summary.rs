//! Arguments of `memspy summary` and `memspy growth`.

use std::time::Duration;

use clap::Args;

use super::SnapshotArgs;
use super::values::{pid, time};

/// `memspy summary`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy -p 12345                    the same as 'memspy summary -p 12345'
  memspy summary -s -p 12345         a short block for every rank of torchrun or another launcher
  memspy summary -p 12345 --json     all of it, with the evidence of each finding")]
pub struct SummaryArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Print a short block for every process of the job that uses CUDA: this one and its
    /// descendants
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Print JSON; with --subprocesses one document after the other
    #[arg(short, long)]
    pub json: bool,
    /// Observe the job for this long. The answer takes 1 s more, with fewer than four processors up
    /// to 6 s more
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "2s")]
    pub duration: Duration,
    /// What a snapshot of the tensors may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
}

/// `memspy growth`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy growth -p 12345               what grew in 20 s, and what keeps it alive
  memspy growth -p 12345 --for 5min    for slow training steps: several of them have to fit in
  memspy growth -s -p 12345            for every rank of torchrun or another launcher")]
pub struct GrowthArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Watch every process of the job that uses CUDA: this one and its descendants, all at the same
    /// time
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Print JSON; with --subprocesses one document after the other
    #[arg(short, long)]
    pub json: bool,
    /// Watch the job for this long
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "20s")]
    pub duration: Duration,
    /// What a snapshot of the tensors may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
}
