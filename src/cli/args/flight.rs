//! Arguments of a recording that waits for a condition, and of the commands that read the result.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{RetentionArgs, StackArgs};
use crate::analysis::TriggerCondition;
use crate::trace::Retention;

/// The conditions that `record` waits for, and what it keeps meanwhile.
#[derive(Debug, Clone, Args)]
pub struct TriggerArgs {
    /// Keep only the last part of the recording: at least this long (120s, 10min, 2h), or at most
    /// this large (500M, 1.5G); give it twice for both limits: the first one reached counts
    #[arg(long, value_name = "TIME|SIZE", help_heading = "When to end, what to keep")]
    pub keep: Vec<RetentionArgs>,
    /// End when this condition is met, and write a report beside the recording (repeat for more):
    /// oom, retry, exit, 'used>90%', 'reserved>70G', 'allocated>80%', 'growth>1G/min'
    #[arg(long, value_name = "CONDITION", help_heading = "When to end, what to keep")]
    pub until: Vec<TriggerCondition>,
    /// With --keep: what to do when a condition is met
    #[arg(long, value_enum, default_value_t = ActionArg::End, requires = "until", requires = "keep", help_heading = "When to end, what to keep")]
    pub on_trigger: ActionArg,
    /// With --on-trigger continue: end after this many recordings
    #[arg(long, value_name = "N", default_value_t = 10, requires = "on_trigger", value_parser = clap::value_parser!(u32).range(1..), help_heading = "When to end, what to keep")]
    pub max_reports: u32,
}

impl TriggerArgs {
    /// How much is kept; `None` for everything.
    pub fn kept(&self) -> Option<Retention> {
        self.keep.iter().map(|kept| kept.0).reduce(Retention::and)
    }
}

/// What `record` does when a condition is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActionArg {
    /// Write what is kept and end
    End,
    /// Write what is kept and go on recording, into OUT-2, OUT-3, ...
    Continue,
}

/// `memspy oom-report`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy oom-report trace.bin                        where the job ran out of memory, else how it ended
  memspy oom-report trace.bin --until 'used>90%'     the last moment that met it")]
pub struct OomArgs {
    /// Trace to read, or the segment folder that a killed 'record --keep' left behind
    pub trace: PathBuf,
    /// File to write; %p becomes the pid, %h the host name [default: standard output]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Report the last moment at which CONDITION was met (repeat for more) [default: the conditions
    /// of the recording, and oom]
    #[arg(long, value_name = "CONDITION")]
    pub until: Vec<TriggerCondition>,
    /// How stacks are chosen
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// `memspy join`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy join trace.ring -o trace.bin")]
pub struct JoinArgs {
    /// The segment folder
    pub ring: PathBuf,
    /// Trace to write; %p becomes the pid, %h the host name [default: RING with .bin]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}
