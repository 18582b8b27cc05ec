//! The words of `memspy record`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::{bytes, percent, pid, processor_percent, seconds, time};
use super::{Limits, StackArgs, TriggerArgs};

/// `memspy record`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy record -p 12345 -o trace.bin           until Ctrl-C, or until the job ends
  memspy record -p 12345 -d 20 -o trace.bin     for 20 seconds
  memspy record --exact -p 12345 -o trace.bin   every allocation, with its exact stack (root)
  memspy record -o trace.bin -- python train.py
  memspy record -p 12345 --keep 120s --until oom            for days: the last two minutes before it runs out of memory
  memspy record -p 12345 --keep 500M --until 'used>90%'     the last 500 MiB of trace before the device is full
  memspy record -p 12345 --print-every 10s                  the table of lines, again and again")]
pub struct RecordArgs {
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
    /// Also follow the allocator: poll its counters and the Python stacks every few microseconds while it allocates, so that
    /// far more of the memory is on the line that allocated it. This costs: memspy uses up to --cpu of a processor, and a job
    /// that allocates without a pause kept 0.65 to 0.98 of its speed beside it on an H100
    #[arg(long, conflicts_with = "exact")]
    pub follow: bool,
    /// The most of one processor that following may use (20, 50%), on average [default: 25, on machines with fewer than four
    /// processors 10]
    #[arg(long, value_name = "PERCENT", value_parser = processor_percent, requires = "follow")]
    pub cpu: Option<f64>,
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
    pub stacks: StackArgs,
    /// Also look at who holds the memory, again and again: the job stands still for at most PERCENT of the time
    /// [default with no number: 1]
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = percent)]
    pub owners: Option<f64>,
    /// What each of these looks may cost
    #[command(flatten)]
    pub limits: Limits,
    /// An integer variable of the program that counts its training steps (`i`, `train:i`, or one of the main module), for
    /// 'memspy iterations'; with --exact it is read at every allocation [default, with --owners: the step counter of the
    /// optimizer, else of a Trainer or a learning-rate scheduler]
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
    #[arg(long, value_enum, value_name = "BACKEND", requires = "exact")]
    pub probes: Option<ProbesArg>,
    /// How frees are learned of, with --exact
    #[arg(long, value_enum, default_value_t = FreesArg::Events, requires = "exact")]
    pub frees: FreesArg,
    /// With --exact: take stacks only of allocations of at least so many bytes (512, 64K, 2M); from 1M, with
    /// --frees snapshots, the job keeps 0.92 of its speed
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
    /// What is waited for, and what is kept
    #[command(flatten)]
    pub until: TriggerArgs,
    /// Print the table of lines to standard output every so often (10s, 5min), and at the end: of the recording so
    /// far, or with --keep of the time since the last one
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub print_every: Option<Duration>,
    /// Program to start and record, after `--`
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// How `record --exact` places its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProbesArg {
    /// One link for many places: Linux 6.6, CAP_BPF and CAP_PERFMON
    UprobeMulti,
    /// One perf event for each place: Linux 5.17, CAP_SYS_ADMIN
    PerfBpf,
    /// No program in the kernel (where bpf(2) is refused): exact sizes and addresses, sampled stacks; CAP_PERFMON
    PerfOnly,
}

/// How `record --exact` learns of frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FreesArg {
    /// Each one by a probe
    Events,
    /// Each one with the stack that freed: peaks of all lines are exact (0.84 of the speed instead of 0.87)
    Stacks,
    /// From snapshots, once a second: what was freed in between is known only then (0.89 of the speed)
    Snapshots,
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

impl RecordFormat {
    /// The name of the file when none is asked for.
    pub fn default_name(self) -> &'static str {
        match self {
            RecordFormat::Trace => "memspy-%p.bin",
            RecordFormat::Flamegraph => "memspy-%p.svg",
            RecordFormat::Collapsed => "memspy-%p.txt",
        }
    }
}
