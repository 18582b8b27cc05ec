//! Arguments of `memspy export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::MomentArg;
use super::values::gpu;

/// `memspy export`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy export exact.bin -f memory-viz -o snapshot.pickle   drop it on pytorch.org/memory_viz
  memspy export trace.bin -f speedscope -o peak.json         open it in speedscope.app
  memspy export rank-*.bin -f pprof --at end -o end.pb.gz    go tool pprof -http=: end.pb.gz
  memspy export trace.bin -f perfetto -o counters.json       open it in ui.perfetto.dev
  memspy export rank-*.bin -f parquet -o tables              a folder per table, a file per rank
  memspy export trace.bin -f csv -o -                        a row for every stack
  memspy export trace.bin -f memory-viz --redact             without paths and the host's name

'--at end' exports everything that was live then, also memory older than the recording.")]
pub struct ExportArgs {
    /// Trace to read; each of several (the ranks of one job) is exported at its own moment
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum)]
    pub format: ExportFormat,
    /// File to write; %p becomes the pid, %h the host name; - is standard output [default: TRACE
    /// with the format's extension]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// The moment to export [default: peak; perfetto has the whole recording]
    #[arg(long, value_enum)]
    pub at: Option<MomentArg>,
    /// Only this device, as the job numbers it [default: all, each at its own moment]
    #[arg(long, value_name = "N", value_parser = gpu)]
    pub gpu: Option<u32>,
    /// Leave out the host's name, and paths outside of libraries; names of functions, files and
    /// variables stay
    #[arg(long)]
    pub redact: bool,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// What `export` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// PyTorch's snapshot: segments, blocks with stacks, and for exact traces the events
    MemoryViz,
    /// speedscope's JSON, one profile per device
    Speedscope,
    /// pprof's profile: inuse_space, and for exact traces alloc_space and alloc_objects
    Pprof,
    /// Trace events over time: the allocator's counters, and iterations as slices
    Perfetto,
    /// A row for every stack
    Csv,
    /// The same in JSON
    Json,
    /// Tables of events, counters, blocks, stacks and frames in the folder OUTPUT, for DuckDB,
    /// Spark and the like
    Parquet,
}

impl ExportFormat {
    /// The extension of its files.
    pub fn extension(self) -> &'static str {
        match self {
            ExportFormat::MemoryViz => "pickle",
            ExportFormat::Speedscope => "speedscope.json",
            ExportFormat::Pprof => "pb.gz",
            ExportFormat::Perfetto => "perfetto.json",
            ExportFormat::Csv => "csv",
            ExportFormat::Json => "json",
            ExportFormat::Parquet => "parquet",
        }
    }
}
