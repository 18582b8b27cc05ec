//! Arguments of `memspy devices`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::{pid, time};

/// `memspy devices`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy devices                                  every GPU, and the processes on it
  memspy devices -p 12345                         and where the memory of this job is
  memspy devices --format csv --every 5s > log.csv a row per GPU, with nvidia-smi's names
  memspy devices -p 12345 -p 12346 --json")]
pub struct DevicesArgs {
    /// Process id of a job to show (repeat for more)
    #[arg(short, long = "pid", value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pids: Vec<u32>,
    /// For each job given, show all processes that use CUDA: it and its descendants
    #[arg(short, long, requires = "pids")]
    pub subprocesses: bool,
    /// What to print
    #[arg(short, long, value_enum, default_value_t = DevicesFormat::Text)]
    pub format: DevicesFormat,
    /// Same as --format json
    #[arg(short, long, conflicts_with = "format")]
    pub json: bool,
    /// Repeat at this interval (500ms, 5s), until Ctrl-C or until the jobs have ended
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub every: Option<Duration>,
}

/// What `devices` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DevicesFormat {
    /// Tables
    Text,
    /// Comma-separated values with the query keys of nvidia-smi, in bytes; with -p a row for each
    /// GPU of each job
    Csv,
    /// JSON, in bytes; with --every one line per snapshot
    Json,
}
