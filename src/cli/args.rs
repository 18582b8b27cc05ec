//! The words of the command line.

mod checkpoint;
mod devices;
mod flight;
mod limits;
mod record;
mod retention;
mod top;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::analysis::MarkerLine;
use crate::model::StatKey;

pub use checkpoint::{PauseArgs, ResumeArgs};
pub use devices::{DevicesArgs, DevicesFormat};
pub use flight::{JoinArgs, OnTriggerArg, OomReportArgs, TriggerArgs};
pub use limits::Limits;
pub use record::{FreesArg, ProbesArg, RecordArgs, RecordFormat};
pub use retention::RetentionArgs;
pub use top::TopArgs;
pub use values::time;
use values::{marker, mode, pid, seconds};

/// What is holding this GPU memory, and which line put it there?
///
/// memspy attaches to a Python job that is already running, with no change to its code, no restart and
/// nothing injected, and records where its GPU memory comes from. It only reads. To list tensors (tensors, graph,
/// referrers, dump, h in top) it stops the job for some milliseconds, says for how many, and lets it go on in any case.
/// Only pause and resume change a job: they move its GPU memory to the host and back.
#[derive(Debug, Parser)]
#[command(name = "memspy", version, infer_subcommands = true, arg_required_else_help = true)]
pub struct CliArgs {
    /// Mode of the files written, in octal [default: 600; with --force that of the file overwritten]
    #[arg(long, global = true, value_name = "MODE", value_parser = mode)]
    pub mode: Option<u32>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record a job into a trace
    Record(RecordArgs),
    /// Draw a trace as a memory flamegraph: what was live at the peak, by Python stack
    #[command(alias = "flamegraph")]
    Flame(FlameArgs),
    /// Print a trace as a table of the peak memory of every line
    Lines(LinesArgs),
    /// Print a recording as a table of training iterations: peaks, gradients, feature maps, who held it
    Iterations(IterationsArgs),
    /// Watch a job: where its GPU memory is now, live in the terminal
    Top(TopArgs),
    /// Say what a recording shows of the moment at which the job ran out of memory, or of its end
    OomReport(OomReportArgs),
    /// Join the segments that a killed 'record --keep' left behind into one trace
    Join(JoinArgs),
    /// Look at a job once: its stacks, and where its GPU memory is
    Dump(DumpArgs),
    /// List the tensors of a job: name, shape, bytes, what for, who shares the memory
    Tensors(TensorsArgs),
    /// Say what refers to one tensor: why it is still there
    Referrers(ReferrersArgs),
    /// Sum up what the autograd graph of a job keeps for the backward pass
    Graph(GraphArgs),
    /// Print the GPUs of this machine, who uses them, and what a job has on them
    Devices(DevicesArgs),
    /// Give a job's GPU memory away: it moves to the host, and the job waits (this changes the job)
    Pause(PauseArgs),
    /// Take a paused job's GPU memory back: the job goes on
    Resume(ResumeArgs),
    /// Say what memspy can and cannot do with a job, and why
    Doctor(DoctorArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// How stacks are chosen and shown.
#[derive(Debug, Clone, Args)]
pub struct StackArgs {
    /// Show each thread apart
    #[arg(short, long)]
    pub threads: bool,
    /// Charge memory only to threads that hold the GIL
    #[arg(short, long)]
    pub gil: bool,
    /// Charge memory also to threads that are idle
    #[arg(short, long)]
    pub idle: bool,
    /// Show whole file names
    #[arg(long)]
    pub full_filenames: bool,
}

/// `memspy flame`.
#[derive(Debug, Args)]
pub struct FlameArgs {
    /// Trace to read; several, of the ranks of one job, become one picture with each at its own peak
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Of several traces, only the one with the highest peak
    #[arg(long)]
    pub max_peak: bool,
    /// Of several traces, one picture in which equal stacks of all ranks are added up, not side by side
    #[arg(long, conflicts_with = "max_peak")]
    pub merge: bool,
    /// File to write; %p becomes the pid, %h the host name; - is standard output [default: TRACE.svg]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = FlameFormat::Flamegraph)]
    pub format: FlameFormat,
    /// Only this device, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// The moment to draw
    #[arg(long, value_enum, default_value_t = MomentArg::Peak)]
    pub at: MomentArg,
    /// Draw all that was allocated while recording, not what was live at a moment (exact traces)
    #[arg(long, conflicts_with_all = ["at", "min_lifetime"])]
    pub total_allocated: bool,
    /// Draw only the bytes of which it is proven which stack allocated them (recordings that followed the allocator)
    #[arg(long, conflicts_with_all = ["total_allocated", "min_lifetime", "memory"])]
    pub certain: bool,
    /// Leave out blocks that lived for less than so many seconds (exact traces)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub min_lifetime: Option<f64>,
    /// What the flames are made of
    #[arg(long, value_enum, default_value_t = GroupByArg::Stack)]
    pub by: GroupByArg,
    /// The kind of memory (exact traces) [default: torch, or driver in a job without PyTorch]
    #[arg(long, value_enum, value_name = "KIND")]
    pub memory: Option<MemoryArg>,
    /// One frame for each function, not for each line
    #[arg(short = 'F', long)]
    pub function: bool,
    /// How stacks are shown
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

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MomentArg {
    /// The recorded moment nearest below the allocator's own peak
    Peak,
    /// The last recorded moment; of an exact trace what was allocated while recording and is still live
    End,
}

/// What a flamegraph divides memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GroupByArg {
    /// Who made it: Python stacks
    Stack,
    /// Who holds it: category, modules, tensor (recordings with --owners)
    Owner,
}

/// What kind of memory to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemoryArg {
    /// Blocks of PyTorch's caching allocator
    Torch,
    /// Device memory from the driver: cuMemAlloc and its kin
    Driver,
    /// Physical device memory from the driver: cuMemCreate
    Physical,
    /// cuMemAllocManaged
    Managed,
    /// Page-locked host memory
    Pinned,
}

/// What all tables made of a trace have in common.
#[derive(Debug, Clone, Args)]
pub struct TableArgs {
    /// File to write; %p becomes the pid, %h the host name [default: standard output]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub format: LinesFormat,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Only this device, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
}

impl TableArgs {
    /// What to write.
    pub fn format(&self) -> LinesFormat {
        if self.json { LinesFormat::Json } else { self.format }
    }
}

/// `memspy lines`.
#[derive(Debug, Args)]
pub struct LinesArgs {
    /// Trace to read; of several, each gets its table
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Of several traces, one table: for each line the greatest value and the least, of which ranks, and the sum
    #[arg(long, conflicts_with = "max_peak")]
    pub merge: bool,
    /// Of several traces, only the one with the highest peak
    #[arg(long)]
    pub max_peak: bool,
    /// What is printed, and where to
    #[command(flatten)]
    pub table: TableArgs,
    /// Only functions whose name contains this (again for more)
    #[arg(short = 'F', long = "function", value_name = "NAME")]
    pub functions: Vec<String>,
    /// Columns: keys of torch.cuda.memory_stats, such as active_bytes.all.peak
    #[arg(short, long, value_delimiter = ',', value_name = "KEY,KEY")]
    pub columns: Vec<StatKey>,
    /// A row for every line of a function's source, also those of which nothing was seen
    #[arg(long, conflicts_with = "merge")]
    pub all_lines: bool,
    /// How stacks are shown
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// What `lines` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinesFormat {
    /// A table with the source text
    Text,
    /// Comma-separated values, in bytes
    Csv,
    /// JSON, in bytes
    Json,
}

/// `memspy iterations`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy record --owners -p 12345 -d 60 -o held.bin ; memspy iterations held.bin
  memspy iterations held.bin --parameters --format csv -o iterations.csv
  memspy record --iter-var step --epoch-var epoch -p 12345 -d 60 -o run.bin ; memspy iterations run.bin
  memspy iterations run.bin --marker train.py:42
  memspy record --exact --iter-var step -p 12345 -d 20 -o steps.bin ; memspy iterations steps.bin --format csv -o steps.csv")]
pub struct IterationsArgs {
    /// Trace to read
    pub trace: PathBuf,
    /// What is printed, and where to
    #[command(flatten)]
    pub table: TableArgs,
    /// An iteration ends when a thread comes to this line (train.py:42), also as the caller of others [default: when the
    /// steps recorded change, else after the period of the allocator's counters]
    #[arg(long, value_name = "FILE:LINE", value_parser = marker, conflicts_with = "period")]
    pub marker: Option<MarkerLine>,
    /// An iteration ends when so many allocations have been made that the same levels come again
    #[arg(long)]
    pub period: bool,
    /// Also the bytes of each parameter and of its gradient
    #[arg(long)]
    pub parameters: bool,
    /// List so many of the last iterations as text; 0 lists all
    #[arg(short, long, default_value_t = 40, value_name = "N")]
    pub limit: usize,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// `memspy dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
    /// Look at every process of the job that uses CUDA: it and its descendants, one after the other
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Print JSON; with --subprocesses one document after the other
    #[arg(short, long)]
    pub json: bool,
    /// Only this device, as the job numbers it
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Show whole file names
    #[arg(long)]
    pub full_filenames: bool,
    /// Do not stop the job (for some milliseconds) to sort its memory by holder: what it changes meanwhile may be torn
    #[arg(long, visible_alias = "nonblocking")]
    pub no_pause: bool,
    /// What the look may cost
    #[command(flatten)]
    pub limits: Limits,
}

/// What all looks at tensors have in common.
#[derive(Debug, Args)]
pub struct TensorReadArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
    /// Print JSON: all tensors and nodes with their addresses
    #[arg(short, long)]
    pub json: bool,
    /// Do not stop the job for the look (some milliseconds): what it changes meanwhile may be torn
    #[arg(long, visible_alias = "nonblocking")]
    pub no_pause: bool,
    /// What the look may cost
    #[command(flatten)]
    pub limits: Limits,
}

/// `memspy tensors`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy tensors -p 12345               the largest storages on the GPUs, with all tensors that share them
  memspy tensors -p 12345 --limit 0     all of them
  memspy tensors -p 12345 --every 10    what came and went, every 10 seconds
  memspy tensors -p 12345 --json        every field, with addresses")]
pub struct TensorsArgs {
    /// What is looked at, and how
    #[command(flatten)]
    pub read_args: TensorReadArgs,
    /// Only this device, as the job numbers it
    #[arg(long, value_name = "N")]
    pub gpu: Option<u8>,
    /// Tensors of the CPU and of other devices too [default: those on GPUs, or all if there are none at the first look]
    #[arg(short, long, conflicts_with = "gpu")]
    pub all_devices: bool,
    /// List so many storages; 0 lists all
    #[arg(short, long, default_value_t = 40, value_name = "N")]
    pub limit: usize,
    /// Look again every so many seconds, and list what came (+) and went (-) since, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub every: Option<f64>,
}

/// `memspy referrers`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy referrers -p 12345 'train: losses[0]'     a name as 'memspy tensors' prints it
  memspy referrers -p 12345 'losses[0]'            without its function, if no other is called so
  memspy referrers -p 12345 0x7f30c4a01d30         or an address, also as 'memspy tensors --json' has it")]
pub struct ReferrersArgs {
    /// What is looked at, and how
    #[command(flatten)]
    pub read_args: TensorReadArgs,
    /// Name of a tensor, or the address of its Python object, of itself or of its memory
    pub tensor: String,
}

/// `memspy graph`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy graph -p 12345                                     what the autograd graph keeps, by class of node
  memspy graph -p 12345 --like trumpy --loss 'main: loss'   memory_for_backward(net, loss) as trumpy counts it
  memspy graph -p 12345 --like modelsize                    parameters and intermediate variables as modelsize counts them")]
pub struct GraphArgs {
    /// What is looked at, and how
    #[command(flatten)]
    pub read_args: TensorReadArgs,
    /// What another tool would say of the same job, by its own rule
    #[arg(long, value_name = "TOOL")]
    pub like: Option<Like>,
    /// With --like trumpy: this loss [default: each that is alive]; a name as 'memspy tensors' prints it, or an address
    #[arg(long, value_name = "NAME", requires = "like")]
    pub loss: Option<String>,
}

/// A tool whose figures can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Like {
    /// `memory_for_backward` of youkaichao/TRUMPY, of one loss
    Trumpy,
    /// `modelsize` of Oldpan/Pytorch-Memory-Utils, of every model
    Modelsize,
}

/// `memspy doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
}

/// `memspy completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<CliArgs, clap::Error> {
        CliArgs::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_words_fit_together() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn pids_are_decimal_or_hexadecimal() {
        let Command::Dump(dump) = parse("memspy dump -p 0x1F").unwrap().command else { panic!() };
        assert_eq!(dump.pid, 31);
        for wrong in ["0", "-1", "x", "4294967295", "0xffffffff"] {
            assert!(parse(&format!("memspy dump --pid={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn commands_may_be_shortened() {
        assert!(matches!(parse("memspy rec -p 1").unwrap().command, Command::Record(_)));
        assert!(matches!(parse("memspy flamegraph t").unwrap().command, Command::Flame(_)));
    }

    #[test]
    fn a_recording_needs_a_pid_or_a_program_and_not_both() {
        assert!(parse("memspy record").is_err());
        assert!(parse("memspy record -p 1 -- python x.py").is_err());
        let Command::Record(record) =
            parse("memspy record -r 1000 -- python -c pass").unwrap().command
        else {
            panic!()
        };
        assert_eq!(record.program, ["python", "-c", "pass"]);
    }

    #[test]
    fn a_wrong_column_lists_the_right_ones() {
        let error = parse("memspy lines t --columns active_bytes.all.peak,nonsense").unwrap_err();
        assert!(error.to_string().contains("requested_bytes"), "{error}");
    }
}
