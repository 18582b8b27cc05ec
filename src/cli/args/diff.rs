//! Arguments of `memspy diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::flame::moment;
use super::values::gpu;
use super::{FlameMoment, MomentArg};

/// `memspy diff`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy diff before.bin after.bin             which lines hold more at the peak, and which less
  memspy diff before.bin after.bin --at end    the same at the end of the recordings
  memspy diff rank-0.bin rank-1.bin            two ranks of one job
  memspy diff run.bin --from 10s --to 60s      two moments of one recording: what grew in between
  memspy diff run.bin --from 10s --by stack    from then to the end, by whole stacks
  memspy diff a.bin b.bin --by owner           parameters, optimizer state, ... (record --owners)
  memspy flame after.bin --diff before.bin     the same as a flamegraph: red grew, blue shrank")]
pub struct DiffArgs {
    /// The first trace; alone, with --from: two of its moments are compared
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// The second trace
    #[arg(value_name = "B")]
    pub after: Option<PathBuf>,
    /// With two traces: the moment to compare
    #[arg(long, value_enum, default_value_t = MomentArg::Peak)]
    pub at: MomentArg,
    /// With one trace: the first moment: a time since the recording began (12.5s), peak, end or oom
    #[arg(long, value_name = "MOMENT", value_parser = moment, conflicts_with = "at")]
    pub from: Option<FlameMoment>,
    /// With one trace: the second moment [default: end]
    #[arg(long, value_name = "MOMENT", value_parser = moment, requires = "from")]
    pub to: Option<FlameMoment>,
    /// What a row is, and so what is matched
    #[arg(long, value_enum, default_value_t = CompareArg::Line)]
    pub by: CompareArg,
    /// Only this device, as the jobs number it [default: in each trace the one with the highest
    /// peak]
    #[arg(long, value_name = "N", value_parser = gpu)]
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

/// What two moments are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompareArg {
    /// By line of the program; a line that moved is matched by file, function and text
    Line,
    /// By function of the program, matched by file and name
    Function,
    /// By whole stack, innermost first; matched by the files and names of all its functions, in one
    /// trace also by their lines
    Stack,
    /// By what holds it (traces recorded with --owners), matched by category and name; numbers in
    /// names become *
    Owner,
}
