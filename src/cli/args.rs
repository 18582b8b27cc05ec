//! The words of the command line.

mod checkpoint;
mod devices;
mod top;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::analysis::MarkerLine;
use crate::model::StatKey;

pub use checkpoint::{Pause, Resume};
pub use devices::{Devices, DevicesFormat};
pub use top::Top;
use values::{bytes, marker, percent, pid, seconds};

/// What is holding this GPU memory, and which line put it there?
///
/// memspy attaches to a Python job that is already running, with no change to its code, no restart and
/// nothing injected, and records where its GPU memory comes from. It only reads. To list tensors (tensors, graph,
/// referrers, dump, h in top) it stops the job for some milliseconds, says for how many, and lets it go on in any case.
/// Only pause and resume change a job: they move its GPU memory to the host and back.
#[derive(Debug, Parser)]
#[command(name = "memspy", version, infer_subcommands = true, arg_required_else_help = true)]
pub struct Words {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record a job into a trace
    Record(Record),
    /// Draw a trace as a memory flamegraph: what was live at the peak, by Python stack
    #[command(alias = "flamegraph")]
    Flame(Flame),
    /// Print a trace as a table of the peak memory of every line
    Lines(Lines),
    /// Print a recording with --holders as a table of training iterations
    Iterations(Iterations),
    /// Watch a job: where its GPU memory is now, live in the terminal
    Top(Top),
    /// Look at a job once: its stacks, and where its GPU memory is
    Dump(Dump),
    /// List the tensors of a job: name, shape, bytes, what for, who shares the memory
    Tensors(Tensors),
    /// Say what refers to one tensor: why it is still there
    Referrers(Referrers),
    /// Sum up what the autograd graph of a job keeps for the backward pass
    Graph(Graph),
    /// Print the GPUs of this machine, who uses them, and what a job has on them
    Devices(Devices),
    /// Give a job's GPU memory away: it moves to the host, and the job waits (this changes the job)
    Pause(Pause),
    /// Take a paused job's GPU memory back: the job goes on
    Resume(Resume),
    /// Say what memspy can and cannot do with a job, and why
    Doctor(Doctor),
    /// Print completions for a shell
    Completions(Completions),
}

/// `memspy record`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy record -p 12345 -o trace.bin           until Ctrl-C, or until the job ends
  memspy record -p 12345 -d 20 -o trace.bin     for 20 seconds
  memspy record --exact -p 12345 -o trace.bin   every allocation, with its exact stack (root)
  memspy record -o trace.bin -- python train.py")]
pub struct Record {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, required_unless_present = "program", conflicts_with = "program")]
    pub pid: Option<u32>,
    /// File to write; %p becomes the pid, %h the host name, %r the rank [default: memspy-%p.bin, or .svg, .txt; with -s memspy-rank-%r.bin]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = RecordFormat::Trace)]
    pub format: RecordFormat,
    /// Seconds to record [default: until Ctrl-C or until the job ends]
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,
    /// Samples a second
    #[arg(short, long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// Record the process's descendants too, also those that start later: each that uses CUDA into a file of its own (%r in
    /// its name becomes the rank). For torchrun and other launchers
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
    /// Leave the source text of the functions seen out of the trace
    #[arg(long)]
    pub no_source: bool,
    /// Never stop the job to read it: accepted for py-spy's users, memspy never does
    #[arg(long)]
    pub nonblocking: bool,
    /// How stacks are shown, with --format flamegraph or collapsed
    #[command(flatten)]
    pub stacks: Stacks,
    /// Also look at who holds the memory, again and again: the job stands still for at most PERCENT of the time
    /// [default with no number: 1]
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = percent)]
    pub holders: Option<f64>,
    /// An integer variable of the program that counts its training steps (`i`, `train:i`, or one of the main module), for
    /// 'memspy iterations' [default: the step counter of the optimizer, with --holders]
    #[arg(long, value_name = "NAME")]
    pub iter_var: Option<String>,
    /// One that counts its epochs
    #[arg(long, value_name = "NAME", requires = "iter_var")]
    pub epoch_var: Option<String>,
    /// Record every allocation with its exact stack, by probes in the kernel (needs root, or CAP_BPF,
    /// CAP_PERFMON and CAP_SYS_PTRACE). At 66,000 allocations a second on an H200 the job keeps 0.87 of its
    /// speed (PyTorch's own memory history with Python stacks: 0.83)
    #[arg(short, long, conflicts_with_all = ["rate", "gil", "idle"])]
    pub exact: bool,
    /// How probes are placed, with --exact [default: the first of these that the kernel allows]
    #[arg(long, value_enum, value_name = "WAY", requires = "exact")]
    pub probes: Option<ProbesWord>,
    /// How frees are learned of, with --exact
    #[arg(long, value_enum, default_value_t = FreesWord::Events, requires = "exact")]
    pub frees: FreesWord,
    /// With --exact: take stacks only of allocations of at least so many bytes (512, 64K, 2M); from 1M, with
    /// --frees maps, the job keeps 0.92 of its speed
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "0", requires = "exact")]
    pub stacks_from: u64,
    /// With --exact: take one stack for so many bytes allocated, on average; totals stay exact (16M: 0.91 of
    /// the speed)
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "0", requires = "exact")]
    pub stacks_every: u64,
    /// With --exact: also record which line of the forward pass each allocation of the backward pass
    /// belongs to (0.79 of the speed)
    #[arg(long, requires = "exact")]
    pub backward_lines: bool,
    /// Program to start and record, after `--`
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// How `record --exact` places its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProbesWord {
    /// One link for many places: Linux 6.6, CAP_BPF and CAP_PERFMON
    Multi,
    /// One perf event for each place: Linux 5.17, CAP_SYS_ADMIN
    Perf,
    /// No program in the kernel (where bpf(2) is refused): exact sizes and addresses, sampled stacks; CAP_PERFMON
    Samples,
}

/// How `record --exact` learns of frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FreesWord {
    /// Each one by a probe
    Events,
    /// Each one with the stack that freed: peaks of all lines are exact (0.84 of the speed instead of 0.87)
    Stacks,
    /// From block maps, once a second: what was freed in between is known only then (0.89 of the speed)
    Maps,
}

/// What `record` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// memspy's binary trace, for `flame` and `lines`
    Trace,
    /// Only the flamegraph of the peak, as SVG
    Flamegraph,
    /// Only the stacks at the peak, as text: `a;b;c BYTES`
    Collapsed,
}

/// How stacks are chosen and shown.
#[derive(Debug, Clone, Args)]
pub struct Stacks {
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
pub struct Flame {
    /// Trace to read; several, of the ranks of one job, become one picture with each at its own peak
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Of several traces, only the one with the highest peak
    #[arg(long)]
    pub highest: bool,
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
    #[arg(long, value_enum, default_value_t = MomentWord::Peak)]
    pub at: MomentWord,
    /// Draw all that was allocated while recording, not what was live at a moment (exact traces)
    #[arg(long, conflicts_with_all = ["at", "min_lifetime"])]
    pub churn: bool,
    /// Leave out blocks that lived for less than so many seconds (exact traces)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub min_lifetime: Option<f64>,
    /// What the flames are made of
    #[arg(long, value_enum, default_value_t = ByWord::Stack)]
    pub by: ByWord,
    /// The kind of memory (exact traces) [default: torch, or driver in a job without PyTorch]
    #[arg(long, value_enum, value_name = "KIND")]
    pub memory: Option<MemoryWord>,
    /// One frame for each function, not for each line
    #[arg(short = 'F', long)]
    pub function: bool,
    /// How stacks are shown
    #[command(flatten)]
    pub stacks: Stacks,
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
pub enum MomentWord {
    /// The recorded moment nearest below the allocator's own peak
    Peak,
    /// The last recorded moment; of an exact trace what was allocated while recording and is still live
    End,
}

/// What a flamegraph divides memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByWord {
    /// Who made it: Python stacks
    Stack,
    /// Who holds it: category, modules, tensor (recordings with --holders)
    Holder,
}

/// What kind of memory to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemoryWord {
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

/// `memspy lines`.
#[derive(Debug, Args)]
pub struct Lines {
    /// Trace to read; of several, each gets its table
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Of several traces, only the one with the highest peak
    #[arg(long)]
    pub highest: bool,
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
    /// Only functions whose name contains this (again for more)
    #[arg(short = 'F', long = "function", value_name = "NAME")]
    pub functions: Vec<String>,
    /// Columns: keys of torch.cuda.memory_stats, such as active_bytes.all.peak
    #[arg(short, long, value_delimiter = ',', value_name = "KEY,KEY")]
    pub columns: Vec<StatKey>,
    /// How stacks are shown
    #[command(flatten)]
    pub stacks: Stacks,
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
  memspy record --holders -p 12345 -d 60 -o held.bin ; memspy iterations held.bin
  memspy iterations held.bin --parameters --format csv -o iterations.csv
  memspy record --iter-var step --epoch-var epoch -p 12345 -d 60 -o run.bin ; memspy iterations run.bin
  memspy iterations run.bin --marker train.py:42")]
pub struct Iterations {
    /// Trace to read
    pub trace: PathBuf,
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
pub struct Dump {
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
}

/// What all looks at tensors have in common.
#[derive(Debug, Args)]
pub struct Looking {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
    /// Print JSON: all tensors and nodes with their addresses
    #[arg(short, long)]
    pub json: bool,
    /// Do not stop the job for the look (some milliseconds): what it changes meanwhile may be torn
    #[arg(long, visible_alias = "nonblocking")]
    pub no_pause: bool,
}

/// `memspy tensors`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy tensors -p 12345               the largest storages on the GPUs, with all tensors that share them
  memspy tensors -p 12345 --limit 0     all of them
  memspy tensors -p 12345 --every 10    what came and went, every 10 seconds
  memspy tensors -p 12345 --json        every field, with addresses")]
pub struct Tensors {
    /// What is looked at, and how
    #[command(flatten)]
    pub looking: Looking,
    /// Only this device, as the job numbers it
    #[arg(long, value_name = "N")]
    pub gpu: Option<u8>,
    /// Tensors of the CPU and of other devices too [default: those on GPUs, if there are any]
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
  memspy referrers -p 12345 0x7f30c4a01d30         or an address out of 'memspy tensors --json'")]
pub struct Referrers {
    /// What is looked at, and how
    #[command(flatten)]
    pub looking: Looking,
    /// Name of a tensor, or the address of its Python object, of itself or of its memory
    pub tensor: String,
}

/// `memspy graph`.
#[derive(Debug, Args)]
pub struct Graph {
    /// What is looked at, and how
    #[command(flatten)]
    pub looking: Looking,
}

/// `memspy doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
}

/// `memspy completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Words, clap::Error> {
        Words::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_words_fit_together() {
        Words::command().debug_assert();
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
