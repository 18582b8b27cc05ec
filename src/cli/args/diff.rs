//! The words of `memspy diff`.

use std::path::PathBuf;

use clap::Args;

use super::MomentArg;

/// `memspy diff`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy diff before.bin after.bin             which lines hold more at the peak, and which less
  memspy diff before.bin after.bin --at end    the same at the end of the recordings
  memspy diff rank-0.bin rank-1.bin            two ranks of one job
  memspy flame after.bin --diff before.bin     the same as a flamegraph: red grew, blue shrank")]
pub struct DiffArgs {
    /// The trace before
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// The trace after
    #[arg(value_name = "B")]
    pub after: PathBuf,
    /// The moment to compare
    #[arg(long, value_enum, default_value_t = MomentArg::Peak)]
    pub at: MomentArg,
    /// Only this device, as the jobs number it [default: in each trace the one with the highest peak]
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// List at most this many rows; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 25)]
    pub limit: usize,
    /// File to write [default: standard output]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Show full file names, and match files by them
    #[arg(long)]
    pub full_filenames: bool,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}
