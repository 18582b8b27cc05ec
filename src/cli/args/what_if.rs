//! Arguments of `memspy what-if`.

use std::path::PathBuf;

use clap::Args;

use super::values::gpu;
use crate::model::Card;

/// `memspy what-if`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy what-if trace.bin
  memspy what-if trace.bin --alloc-conf expandable_segments:True --alloc-conf max_split_size_mb:128
  memspy what-if trace.bin --limit 24GiB --html what-if.html

The trace is one of 'record --exact', 'dry-run -o' or 'history --trace'. Its allocations and frees are \
replayed in their order through the allocator of an installed PyTorch, on a simulated card; no kernel runs. The first \
replay has the recording's own settings, and is compared with what the recording says. \
The simulated CUDA libraries are built on first use, as for dry-run.")]
pub struct WhatIfArgs {
    /// Trace to replay
    pub trace: PathBuf,
    /// Settings to try, as in PYTORCH_ALLOC_CONF; may be given several times [default: --suggest]
    #[arg(long, value_name = "SETTINGS")]
    pub alloc_conf: Vec<String>,
    /// Try the settings that are known to matter
    #[arg(long)]
    pub suggest: bool,
    /// Also call torch.cuda.empty_cache() after each training step of the trace
    #[arg(long)]
    pub empty_cache_every_step: bool,
    /// Replay on another card: its memory (24GiB), or a name as in 'dry-run --card' [default: the
    /// recorded memory]
    #[arg(long, value_name = "NAME|SIZE", value_parser = Card::parse)]
    pub limit: Option<Card>,
    /// This device, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N", value_parser = gpu, allow_negative_numbers = true)]
    pub gpu: Option<u32>,
    /// The Python whose PyTorch replays [default: python in PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<String>,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// Also write a page with a picture of the segments under each setting
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Overwrite the page
    #[arg(long)]
    pub force: bool,
}
