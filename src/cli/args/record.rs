//! Arguments of `memspy record`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use super::values::{max_slowdown, percent, pid, print_interval, processor_percent, size, time};
use super::{SnapshotArgs, StackArgs, TriggerArgs};
use crate::flight::PrintInterval;
use crate::sampler::CommandPattern;

/// `memspy record`.
#[derive(Debug, Clone, Args)]
#[command(
    mut_arg("max_stop", |arg| arg.requires("owners")),
    mut_arg("max_time", |arg| arg.requires("owners")),
    mut_arg("no_stop", |arg| arg.conflicts_with("owners").help(
        "Never stop the job. Only --owners stops it, so the two cannot be combined"
    ))
)]
#[command(group = ArgGroup::new("exactly").args(["exact", "mode"]).multiple(true))]
#[command(after_help = "Examples:
  memspy record -p 12345 -o trace.bin           until Ctrl-C, or until the job ends
  memspy record -p 12345 -d 20s -o trace.bin    for 20 seconds
  memspy record --follow -p 12345 -o trace.bin  polls the allocator: no root, needs a free processor
  memspy record -r 200 -p 12345 -o trace.bin    samples only: costs the job less, lines are a guess
  memspy record --exact -p 12345 -o trace.bin   every allocation with its exact stack (root)
  memspy record -o trace.bin -- python train.py
  memspy record --match 'ray::.*' -o ray-%p.bin  all matching processes, also later ones
  memspy record -p 12345 --keep 120s --until oom            for days: the last two minutes
  memspy record -p 12345 --keep 500M --until 'used>90%'     the last 500 MiB of trace
  memspy record -p 12345 --print-every 10s                  the table of lines, every 10 seconds
  memspy record --exact -p 12345 --print-every train_step:20    after every 20 calls of a function (root)")]
pub struct RecordArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true, required_unless_present_any = ["program", "called"], conflicts_with_all = ["program", "called"])]
    pub pid: Option<u32>,
    /// File to write; %p becomes the pid, %h the host name, %r the rank [default: memspy-%p.bin, or
    /// .svg, .txt; with -s memspy-rank-%r.bin]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = RecordFormat::Trace)]
    pub format: RecordFormat,
    /// How long to record (20s, 10min; a number without a unit is seconds) [default: until Ctrl-C
    /// or until the job ends]
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// How to record. auto: exact stacks if memspy may place probes and they cost the job no more
    /// than --max-slowdown, measured in the first second; else follow if a processor is free; else
    /// sample. memspy says which it takes, and why [default: auto]
    #[arg(long, value_enum, conflicts_with_all = ["exact", "follow"], help_heading = "What is recorded")]
    pub mode: Option<ModeArg>,
    /// Sample this many times a second and do nothing else (--mode sample): cheaper, but more
    /// memory is attributed to the wrong line [default with --mode sample: 200]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "What is recorded")]
    pub rate: Option<u32>,
    /// Follow the allocator or fail (--mode follow): its counters and the Python stacks are polled
    /// every few microseconds while the job allocates, without root, with 200 samples a second
    /// besides
    #[arg(long, conflicts_with_all = ["exact", "rate", "gil"], help_heading = "What is recorded")]
    pub follow: bool,
    /// Follow the allocator, using at most PERCENT (20, 50%) of a processor on average. 100 is one
    /// processor; above that, a second thread reads addresses and so knows which block was freed.
    /// Less means fewer attributed bytes. Naming stacks costs extra (docs/follow.md). A job that
    /// cannot be followed is sampled. With -s and --match all processes share the budget evenly, at
    /// most 200 each [default: 10 with fewer than four processors, 50 with fewer than eight, else
    /// 100 for every eight processors]
    #[arg(long, value_name = "PERCENT", value_parser = processor_percent, conflicts_with_all = ["exact", "rate", "gil"], help_heading = "What is recorded")]
    pub cpu: Option<f64>,
    /// The job may lose this part of its time to following: polls of a busy job rest in between,
    /// from the first second, and memspy reports what they cost. auto takes exact stacks only
    /// within it. none: follow all the time. --exact never rests: it warns above it [default: 2%]
    #[arg(long, value_name = "PERCENT|none", value_parser = max_slowdown, conflicts_with_all = ["rate", "gil"], help_heading = "What is recorded")]
    pub max_slowdown: Option<f64>,
    /// Record the process and its descendants, also later ones: one file for each that uses CUDA
    /// (%r in the file name becomes the rank). For torchrun and other launchers
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Record all processes that use CUDA and whose command line or name matches this regular
    /// expression, including later and renamed ones, each into its own file, until Ctrl-C. For Ray
    /// and other servers of workers
    #[arg(long = "match", value_name = "REGEX", conflicts_with_all = ["program", "subprocesses"])]
    pub called: Option<CommandPattern>,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
    /// Do not store source text in the trace
    #[arg(long)]
    pub no_source: bool,
    /// Leave out source text, the command line, the host's name, and paths outside of libraries;
    /// names of functions, files and variables stay
    #[arg(long)]
    pub redact: bool,
    /// Print the table of lines at this interval (10s, 5min) and at the end: for the recording so
    /// far, or with --keep for the time since the last table. With --exact also after this many
    /// calls of a function (train_step:20): a call ends at the first allocation of its thread
    /// outside of the function
    #[arg(long, value_name = "TIME|FUNCTION:CALLS", value_parser = print_interval)]
    pub print_every: Option<PrintInterval>,
    /// With --format flamegraph or collapsed: separate the threads
    #[arg(short, long, help_heading = "Stacks")]
    pub threads: bool,
    /// How stacks are chosen and shown, in what is not a trace
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Also take snapshots of the tensors and their owners. They stop the job for at most PERCENT
    /// of the time [default without a number: 1]
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = percent, help_heading = "Owners and steps")]
    pub owners: Option<f64>,
    /// Integer variable that counts the training steps (`i`, `train:i`, or one of the main module),
    /// for 'memspy iterations'; with --exact it is read at every allocation [default, with
    /// --owners: the step counter of the optimizer, else of a Trainer or a learning-rate scheduler]
    #[arg(long, value_name = "NAME", help_heading = "Owners and steps")]
    pub iter_var: Option<String>,
    /// Integer variable that counts the epochs
    #[arg(long, value_name = "NAME", requires = "iter_var", help_heading = "Owners and steps")]
    pub epoch_var: Option<String>,
    /// What each snapshot of --owners may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
    /// Record every allocation with its exact stack, by probes in the kernel, at any cost to the
    /// job (--mode exact); memspy reports the cost. Needs root, or CAP_BPF, CAP_PERFMON and
    /// CAP_SYS_PTRACE
    #[arg(short, long, conflicts_with_all = ["rate", "gil", "idle"], help_heading = "Every allocation")]
    pub exact: bool,
    /// With --exact: how to place the probes [default: the first of these that the kernel allows]
    #[arg(
        long,
        value_enum,
        value_name = "BACKEND",
        requires = "exactly",
        help_heading = "Every allocation"
    )]
    pub probes: Option<ProbesArg>,
    /// With --exact: how to record frees
    #[arg(long, value_enum, default_value_t = FreesArg::Events, requires = "exactly", help_heading = "Every allocation")]
    pub frees: FreesArg,
    /// With --exact: record stacks only for allocations of at least this size (512, 64K, 2M);
    /// faster
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", requires = "exactly", help_heading = "Every allocation")]
    pub stacks_from: u64,
    /// With --exact: record one stack per this many bytes allocated (16M), on average; faster, and
    /// totals stay exact
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", requires = "exactly", help_heading = "Every allocation")]
    pub stacks_every: u64,
    /// With --exact: also record which line of the forward pass each allocation of the backward
    /// pass belongs to; slower
    #[arg(long, requires = "exactly", help_heading = "Every allocation")]
    pub backward_lines: bool,
    /// With --exact: also record the frames of C and C++ code of large allocations, such as
    /// PyTorch's operators and autograd functions, for 'memspy flame'
    #[arg(long, requires = "exactly", help_heading = "Every allocation")]
    pub native: bool,
    /// With --native: for allocations of at least this size; smaller is slower
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1M", requires = "native", help_heading = "Every allocation")]
    pub native_from: u64,
    /// The conditions, and what is kept
    #[command(flatten)]
    pub until: TriggerArgs,
    /// Program to start and record, after `--`
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// How `record` records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// The best of these that the job can bear
    Auto,
    /// Every allocation with its exact stack, or fail (--exact)
    Exact,
    /// Follow the allocator, or fail (--follow)
    Follow,
    /// Sample the stacks (-r)
    Sample,
}

/// How `record --exact` places its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProbesArg {
    /// One BPF link for all probes: Linux 6.6, CAP_BPF and CAP_PERFMON
    UprobeMulti,
    /// One perf event per probe: Linux 5.17, CAP_SYS_ADMIN
    PerfBpf,
    /// Without BPF (where bpf(2) is refused): exact sizes and addresses, sampled stacks;
    /// CAP_SYS_ADMIN
    PerfOnly,
}

/// How `record --exact` records frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FreesArg {
    /// Record every free with a probe
    Events,
    /// Record every free with its stack: the peaks of all lines are exact; slower
    Stacks,
    /// Find frees by snapshots, once a second: their time is known to the second only; faster
    Snapshots,
}

/// What `record` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// memspy's binary trace, for `flame`, `lines` and the other commands that read one
    Trace,
    /// Only the flamegraph of the peak, as SVG
    Flamegraph,
    /// Only the stacks at the peak, as text: `a;b;c BYTES`
    Collapsed,
}

impl RecordArgs {
    /// Whether several processes may be recorded, each into its own file.
    pub fn records_several(&self) -> bool {
        self.subprocesses || self.called.is_some()
    }

    /// The requested mode, also by its short options.
    ///
    /// # Errors The options contradict each other.
    pub fn mode(&self) -> Result<ModeArg, String> {
        let implied = [
            (self.exact, "--exact", ModeArg::Exact),
            (self.follow, "--follow", ModeArg::Follow),
            (self.rate.is_some(), "-r", ModeArg::Sample),
            (self.cpu.is_some(), "--cpu", ModeArg::Follow),
        ];
        let (word, mode) = match (self.mode, implied.into_iter().find(|(given, ..)| *given)) {
            (Some(mode), Some((_, word, implied))) if mode != implied => {
                let (mode, implied) = (mode.word(), implied.word());
                return Err(format!(
                    "{word} means --mode {implied}, not --mode {mode}: leave one of them out"
                ));
            }
            (Some(mode), _) => (format!("--mode {}", mode.word()), mode),
            (None, Some((_, word, implied))) => (word.to_owned(), implied),
            (None, None) => return Ok(ModeArg::Auto),
        };
        let never = match mode {
            ModeArg::Exact => self.stacks.gil || self.stacks.idle,
            ModeArg::Follow => self.stacks.gil,
            ModeArg::Auto | ModeArg::Sample => false,
        };
        if never {
            return Err(format!(
                "{word} does not go with --gil or --idle, which choose among sampled threads: use --mode sample"
            ));
        }
        let of_exact = self.probes.is_some()
            || self.frees != FreesArg::Events
            || (self.stacks_from, self.stacks_every) != (0, 0)
            || self.backward_lines
            || self.native;
        if of_exact && mode != ModeArg::Exact {
            return Err(format!(
                "{word} does not go with options of exact recordings: use --exact"
            ));
        }
        Ok(mode)
    }
}

impl ModeArg {
    /// Its spelling on the command line.
    fn word(self) -> &'static str {
        match self {
            ModeArg::Auto => "auto",
            ModeArg::Exact => "exact",
            ModeArg::Follow => "follow",
            ModeArg::Sample => "sample",
        }
    }
}

impl RecordFormat {
    /// The default file name.
    pub fn default_name(self) -> &'static str {
        match self {
            RecordFormat::Trace => "memspy-%p.bin",
            RecordFormat::Flamegraph => "memspy-%p.svg",
            RecordFormat::Collapsed => "memspy-%p.txt",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CliArgs, Command};
    use super::*;

    /// The mode of this command line, or the error.
    fn mode(words: &str) -> Result<ModeArg, String> {
        let words = format!("memspy record -p 1 {words}");
        let args = CliArgs::from_words(words.split_whitespace()).map_err(|e| e.to_string())?;
        let Command::Record(args) = args.command else { panic!("no recording") };
        args.mode()
    }

    #[test]
    fn short_forms_are_modes() {
        for (words, asked) in [
            ("", ModeArg::Auto),
            ("--mode auto", ModeArg::Auto),
            ("--exact", ModeArg::Exact),
            ("--mode exact --frees stacks --native", ModeArg::Exact),
            ("--exact --stacks-from 1M", ModeArg::Exact),
            ("--follow --cpu 50", ModeArg::Follow),
            ("--cpu 50", ModeArg::Follow),
            ("--mode follow --cpu 50", ModeArg::Follow),
            ("-r 100", ModeArg::Sample),
            ("--mode sample -r 100", ModeArg::Sample),
            ("--mode sample --gil", ModeArg::Sample),
            ("--gil --idle", ModeArg::Auto),
        ] {
            assert_eq!(mode(words), Ok(asked), "{words}");
        }
    }

    #[test]
    fn options_of_two_modes_are_refused() {
        for words in [
            "--mode follow -r 100",
            "--mode exact --cpu 50",
            "--mode auto --exact",
            "--mode exact --idle",
            "--mode follow --gil",
            "--mode follow --native",
            "--mode auto --frees stacks",
            "--native",
        ] {
            assert!(mode(words).is_err(), "{words}");
        }
    }
}
