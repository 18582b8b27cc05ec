//! Arguments of `memspy flame`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::{gpu, time};
use super::{MemoryArg, PictureArgs, StackArgs};

/// `memspy flame`.
#[derive(Debug, Args)]
pub struct FlameArgs {
    /// Trace to read; several (the ranks of one job) become one picture, each at its own peak
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// With several traces: only the one with the highest peak
    #[arg(long, help_heading = "Several traces")]
    pub max_peak: bool,
    /// With several traces: one picture that sums equal stacks of all ranks, instead of one beside
    /// the other
    #[arg(long, conflicts_with = "max_peak", help_heading = "Several traces")]
    pub merge: bool,
    /// File to write; %p becomes the pid, %h the host name; - is standard output [default:
    /// TRACE.svg]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = FlameFormat::Flamegraph)]
    pub format: FlameFormat,
    /// Only this device, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N", help_heading = "What is drawn", value_parser = gpu)]
    pub gpu: Option<u32>,
    /// The moment to draw: peak, end, oom (when the job last ran out of memory), or a time since
    /// the recording began (12.5s). Of an exact trace, end shows only what was allocated while
    /// recording
    #[arg(long, value_name = "MOMENT", value_parser = moment, default_value = "peak", help_heading = "What is drawn")]
    pub at: FlameMoment,
    /// Draw what was allocated from this time on (12.5s) and is live at --to (exact traces)
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["at", "diff", "proven", "memory", "min_lifetime"], help_heading = "What is drawn")]
    pub from: Option<Duration>,
    /// Where the time range of --from ends [default: the end of the recording]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "from", help_heading = "What is drawn")]
    pub to: Option<Duration>,
    /// Draw everything that was allocated while recording, or between --from and --to, freed or
    /// not, instead of what was live at one moment (not for traces recorded with -r)
    #[arg(long, conflicts_with_all = ["at", "min_lifetime"], help_heading = "What is drawn")]
    pub total_allocated: bool,
    /// Draw only the bytes whose stack is proven (only traces recorded by following)
    #[arg(long, conflicts_with_all = ["min_lifetime", "memory"])]
    pub proven: bool,
    /// Leave out blocks that were freed sooner than this (500ms, 2s; exact traces)
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "What is drawn")]
    pub min_lifetime: Option<Duration>,
    /// How to divide the memory
    #[arg(long, value_enum, default_value_t = GroupArg::Stack, help_heading = "What is drawn")]
    pub by: GroupArg,
    /// With --by module: draw the first N steps of each module's path [default: whole paths]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..), help_heading = "What is drawn")]
    pub depth: Option<u8>,
    /// The kind of memory (exact traces) [default: torch, or driver in a job without PyTorch]
    #[arg(long, value_enum, value_name = "KIND", help_heading = "What is drawn")]
    pub memory: Option<MemoryArg>,
    /// How it is drawn
    #[command(flatten)]
    pub picture: PictureArgs,
    /// Draw one frame per function instead of one per line
    #[arg(short = 'F', long, help_heading = "Stacks")]
    pub function: bool,
    /// Separate the threads
    #[arg(short, long, help_heading = "Stacks")]
    pub threads: bool,
    /// How stacks are chosen and shown
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// What `flame` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlameFormat {
    /// SVG
    #[value(alias = "svg")]
    Flamegraph,
    /// Text: `a;b;c BYTES`
    #[value(alias = "raw")]
    Collapsed,
}

/// A moment that `flame` draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlameMoment {
    /// The allocator's own peak, or the recorded moment nearest below it.
    Peak,
    /// The last recorded moment.
    End,
    /// When the job last ran out of memory.
    Oom,
    /// This long after the recording began.
    Time(Duration),
}

/// A moment of a recording.
pub(super) fn moment(text: &str) -> Result<FlameMoment, String> {
    match text {
        "peak" => Ok(FlameMoment::Peak),
        "end" => Ok(FlameMoment::End),
        "oom" => Ok(FlameMoment::Oom),
        _ => time(text).map(FlameMoment::Time).map_err(|_| {
            "a moment is peak, end, oom, or a time since the recording's beginning such as 12.5s".to_owned()
        }),
    }
}

/// What a flamegraph divides memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GroupArg {
    /// By the Python stack that allocated it
    Stack,
    /// By the innermost line alone
    Line,
    /// By the innermost function alone
    Function,
    /// By device, and then by Python stack
    Device,
    /// By rank, and then by Python stack
    Rank,
    /// By CUDA stream, and then by Python stack
    Stream,
    /// By the module of the model whose call allocated it (exact traces, or recorded with --owners)
    Module,
    /// By what owns it: category, modules, tensor (traces recorded with --owners)
    Owner,
    /// By what it is for: parameters, gradients, optimizer state, saved for backward, ... (traces
    /// recorded with --owners)
    Category,
}

impl GroupArg {
    /// Whether it draws owners instead of Python stacks.
    pub fn is_of_owners(self) -> bool {
        matches!(self, GroupArg::Owner | GroupArg::Category)
    }

    /// As given on the command line.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
