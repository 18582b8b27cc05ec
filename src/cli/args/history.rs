//! Arguments of `memspy history`.

use std::path::PathBuf;

use clap::Args;

use super::values::pid;

/// `memspy history`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy history -p 12345 -o snapshot.pickle    drop it on pytorch.org/memory_viz
  memspy history -p 12345 --trace -o trace.bin
  memspy history -p 12345 --json -o - | jq '.device_traces[0][-1]'

The job has to record: torch.cuda.memory._record_memory_history(stacks=\"python\") once, at its start. \
memspy then reads what torch.cuda.memory._snapshot() would give, also of a job that hangs or is \
stopped (SIGSTOP), and changes nothing in it. Frames of C++ and TorchScript are left out; memspy \
prints their number.")]
pub struct HistoryArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// File to write; %p becomes the pid, %h the host name; - is standard output [default:
    /// history-PID.pickle]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Write JSON with the same keys instead of a pickle
    #[arg(short, long)]
    pub json: bool,
    /// Write a trace, as 'record --exact' does: for 'memspy flame', 'lines' and 'what-if'
    #[arg(long, conflicts_with = "json")]
    pub trace: bool,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}
