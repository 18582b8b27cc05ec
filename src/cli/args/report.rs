//! Arguments of `memspy report`.

use std::path::PathBuf;

use clap::Args;

/// `memspy report`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy report trace.bin -o report.html          the peak, the timeline, stacks, source, blocks
  memspy report rank-*.bin -o job.html            the ranks of a job in one page
  memspy report trace.bin --redact -o share.html  without paths, source text, host and command line")]
pub struct ReportArgs {
    /// Trace to read; several, of the ranks of one job, become one page
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// File to write; %p becomes the pid, %h the host name; - is standard output [default:
    /// TRACE.html]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Leave out paths, source text, the host's name and the command line; names of functions,
    /// files and variables stay
    #[arg(long)]
    pub redact: bool,
    /// Heading of the page [default: the program's name]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}
