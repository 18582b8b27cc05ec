//! Arguments of the command line.

#![expect(
    clippy::module_name_repetitions,
    reason = "a command's arguments, beside the command of the same name: RecordArgs, Record"
)]

mod checkpoint;
mod console;
mod devices;
mod diff;
mod doctor;
mod dry_run;
mod dump;
mod export;
mod exporter;
mod flame;
mod flight;
mod history;
mod limits;
mod lines;
mod man;
mod mcp;
mod picture;
mod record;
mod report;
mod retention;
mod summary;
mod tensors;
mod top;
mod values;
mod what_if;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::analysis::MarkerLine;

pub use checkpoint::{PauseArgs, ResumeArgs};
pub use console::{ColorArg, ConsoleArgs};
pub use devices::{DevicesArgs, DevicesFormat};
pub use diff::{CompareArg, DiffArgs};
pub use doctor::DoctorArgs;
pub use dry_run::{DryRunArgs, FitRange};
pub use dump::DumpArgs;
pub use export::{ExportArgs, ExportFormat};
pub use exporter::ExporterArgs;
pub use flame::{FlameArgs, FlameFormat, FlameMoment, GroupArg};
pub use flight::{ActionArg, JoinArgs, OomArgs, TriggerArgs};
pub use history::HistoryArgs;
pub use limits::{SnapshotArgs, SnapshotLimits};
pub use lines::{LinesArgs, LinesBy, LinesFormat, SortArg};
pub use man::ManArgs;
pub use mcp::McpArgs;
pub use picture::PictureArgs;
pub use record::{FreesArg, ModeArg, ProbesArg, RecordArgs, RecordFormat};
pub use report::ReportArgs;
pub use retention::RetentionArgs;
pub use summary::{GrowthArgs, SummaryArgs};
pub use tensors::{GraphArgs, PeerTool, ReadArgs, TensorsArgs, WhyArgs};
pub use top::TopArgs;
use values::{file_mode, gpu, marker};
pub use what_if::WhatIfArgs;

/// What is holding this GPU memory, and which line put it there?
///
/// memspy attaches to a Python job that is already running, with no change to its code, no restart
/// and nothing injected, and records where its GPU memory comes from. It only reads: to list
/// tensors (summary, growth, tensors, graph, why, dump, h in top) it stops the job for some
/// milliseconds, says for how many, and always resumes it. Only pause and resume change a job: they
/// move its GPU memory to the host and back.
#[derive(Debug, Parser)]
#[command(name = "memspy", version, infer_subcommands = true, arg_required_else_help = true)]
pub struct CliArgs {
    /// Mode of the files written, in octal [default: 600; with --force that of the file
    /// overwritten]
    #[arg(long, global = true, value_name = "MODE", value_parser = file_mode)]
    pub file_mode: Option<u32>,
    /// What is printed besides the answer.
    #[command(flatten)]
    pub console: ConsoleArgs,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl CliArgs {
    /// Parses a command line that begins with the program's name.
    ///
    /// # Errors Invalid arguments; also a request for the help or the version.
    pub fn from_words(
        words: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<CliArgs, clap::Error> {
        CliArgs::try_parse_from(with_default_command(words.into_iter().map(Into::into)))
    }
}

/// `memspy -p PID` is `memspy summary -p PID`.
fn with_default_command(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let is_pid = |word: &OsString| {
        let word = word.to_string_lossy();
        let number = word.strip_prefix("-p").is_some_and(|rest| {
            rest.trim_start_matches('=').starts_with(|c: char| c.is_ascii_digit())
        });
        number || word == "-p" || word == "--pid" || word.starts_with("--pid=")
    };
    // Options may precede the pid: `memspy -s -p PID`, `memspy --color never -p PID`.
    let takes_value = |word: &OsString| word == "--color" || word == "--file-mode";
    let mut is_value = false;
    let mut options = words.iter().skip(1).take_while(|word| {
        let is_option = word.to_string_lossy().starts_with('-') || is_value;
        is_value = !is_value && takes_value(word);
        is_option
    });
    if options.any(is_pid) {
        words.insert(1, "summary".into());
    }
    words
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a job's GPU memory on one screen: where it is, what owns it, what grows, and what to
    /// do; 'memspy -p PID' does the same
    Summary(SummaryArgs),
    /// Find leaks in a running job: owners and lines whose live bytes keep growing, and what keeps
    /// them alive
    Growth(GrowthArgs),
    /// Record a job into a trace
    Record(RecordArgs),
    /// Draw a trace as a memory flamegraph: what was live at the peak, by Python stack
    #[command(alias = "flamegraph")]
    Flame(FlameArgs),
    /// Write a trace as one page for a browser: the peak, the timeline, every moment by stack, line
    /// and owner
    Report(ReportArgs),
    /// Rank the lines of a trace by their memory at the peak
    Lines(LinesArgs),
    /// Compare two traces, or two moments of one: which lines, functions, stacks or owners hold
    /// more or less memory
    Diff(DiffArgs),
    /// Export a trace for other tools: PyTorch's memory_viz, speedscope, pprof, CSV, JSON
    Export(ExportArgs),
    /// Read the history that a job recorded (torch.cuda.memory._record_memory_history), from
    /// outside
    History(HistoryArgs),
    /// Print a trace as a table of training iterations: peaks, gradients, feature maps, owners
    Iterations(IterationsArgs),
    /// Watch a job's GPU memory live in the terminal
    Top(TopArgs),
    /// Serve a job's figures to Prometheus: OpenMetrics over HTTP, for weeks
    Exporter(ExporterArgs),
    /// Find out whether a program fits a card, without a GPU: its peak, what holds it, and the
    /// largest batch that fits
    DryRun(DryRunArgs),
    /// Replay an exact recording through PyTorch's allocator under other settings, without a GPU:
    /// which setting reserves less memory, and by how much
    WhatIf(WhatIfArgs),
    /// Explain from a trace why the job ran out of memory, or how it ended
    OomReport(OomArgs),
    /// Join the segments that a killed 'record --keep' left behind into one trace
    Join(JoinArgs),
    /// Print a job's stacks, and where its GPU memory is, once
    Dump(DumpArgs),
    /// List the tensors of a job: owner, name, shape, bytes, category, shared storages
    Tensors(TensorsArgs),
    /// Show why a tensor is still alive: the way that keeps it, and what each step would free
    #[command(visible_alias = "referrers")]
    Why(WhyArgs),
    /// Show what the autograd graph of a job keeps for the backward pass
    Graph(GraphArgs),
    /// List the GPUs, the processes on them, and the memory of a job on each
    Devices(DevicesArgs),
    /// Free a job's GPU memory: move it to the host and let the job wait (this changes the job)
    Pause(PauseArgs),
    /// Move a paused job's memory back to the GPU and let the job continue
    Resume(ResumeArgs),
    /// Check what memspy can and cannot do with a job, and why
    Doctor(DoctorArgs),
    /// Run an MCP (Model Context Protocol) server with the read-only commands, on standard input
    /// and output
    Mcp(McpArgs),
    /// Write man pages into a folder
    Man(ManArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// Which threads memory is attributed to, and how their stacks are shown.
#[derive(Debug, Clone, Args)]
pub struct StackArgs {
    /// Attribute memory only to threads that hold the GIL (sampled traces)
    #[arg(short, long, help_heading = "Stacks")]
    pub gil: bool,
    /// Attribute memory also to idle threads (sampled traces)
    #[arg(short, long, help_heading = "Stacks")]
    pub idle: bool,
    /// Show full file names
    #[arg(long, help_heading = "Stacks")]
    pub full_filenames: bool,
}

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MomentArg {
    /// The recorded moment closest to the allocator's peak
    Peak,
    /// The last recorded moment
    End,
}

/// What kind of memory to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemoryArg {
    /// Blocks of PyTorch's caching allocator
    Torch,
    /// Device memory from the driver: cuMemAlloc and similar calls
    Driver,
    /// Physical device memory from the driver: cuMemCreate
    Physical,
    /// cuMemAllocManaged
    Managed,
    /// Page-locked host memory
    Pinned,
}

/// Options shared by all tables of a trace.
#[derive(Debug, Clone, Args)]
pub struct TableArgs {
    /// File to write; %p becomes the pid, %h the host name [default: standard output]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// What to write
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub format: LinesFormat,
    /// Same as --format json
    #[arg(short, long, conflicts_with = "format")]
    pub json: bool,
    /// Only this device, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N", value_parser = gpu)]
    pub gpu: Option<u32>,
}

impl TableArgs {
    /// The output format.
    pub fn format(&self) -> LinesFormat {
        if self.json { LinesFormat::Json } else { self.format }
    }
}

/// `memspy iterations`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy record --owners -p 12345 -d 60 -o held.bin ; memspy iterations held.bin
  memspy iterations held.bin --parameters --format csv -o iterations.csv
  memspy record --iter-var step --epoch-var epoch -p 12345 -d 60 -o run.bin
  memspy iterations run.bin
  memspy iterations run.bin --marker train.py:42
  memspy record --exact --iter-var step -p 12345 -d 20 -o steps.bin
  memspy iterations steps.bin --format csv -o steps.csv")]
pub struct IterationsArgs {
    /// Trace to read
    pub trace: PathBuf,
    /// What is printed, and where
    #[command(flatten)]
    pub table: TableArgs,
    /// An iteration ends when a thread reaches this line (train.py:42), or a function called from
    /// it [default: when the recorded step changes, else by the period of the allocator's counters]
    #[arg(long, value_name = "FILE:LINE", value_parser = marker, conflicts_with = "period", help_heading = "What an iteration is")]
    pub marker: Option<MarkerLine>,
    /// Find iterations by the period of the allocator's counters: the same values return after the
    /// same number of allocations
    #[arg(long, help_heading = "What an iteration is")]
    pub period: bool,
    /// Add the bytes of each parameter and of its gradient; in text those of the last step (traces
    /// recorded with --owners)
    #[arg(long)]
    pub parameters: bool,
    /// Text only: list this many of the last iterations; 0 lists all
    #[arg(short, long, default_value_t = 40, value_name = "N")]
    pub limit: usize,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
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
    fn the_arguments_are_consistent() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn pids_are_decimal_or_hexadecimal() {
        let Command::Dump(dump) = parse("memspy dump -p 0x1F").unwrap().command else { panic!() };
        assert_eq!(dump.pid, Some(31));
        for wrong in ["0", "-1", "x", "4294967295", "0xffffffff"] {
            assert!(parse(&format!("memspy dump --pid={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn summary_options_may_precede_the_pid() {
        for line in [
            "memspy -s -p 31",
            "memspy -p 31 -s",
            "memspy --json -s -p31",
            "memspy -p 31",
            "memspy --color never -v -p 31",
            "memspy -p 31 --quiet --color=always",
        ] {
            let words = line.split(' ');
            let Command::Summary(summary) = CliArgs::from_words(words).unwrap().command else {
                panic!("{line}")
            };
            assert_eq!((summary.pid, summary.subprocesses), (31, line.contains("-s")), "{line}");
        }
        assert!(CliArgs::from_words(["memspy", "--version"]).is_err());
    }

    #[test]
    fn a_device_is_a_gpu_or_the_cpu() {
        let of = |device: &str| match parse(&format!("memspy tensors -p 1 --gpu {device}")) {
            Ok(CliArgs { command: Command::Tensors(tensors), .. }) => tensors.gpu,
            _ => None,
        };
        use crate::render::DeviceChoice::{Cpu, Gpu};
        let found = ["cpu", "1", "cuda:2", "gpu"].map(of);
        assert_eq!(found, [Some(Cpu), Some(Gpu(1)), Some(Gpu(2)), None]);
        let refused = parse("memspy flame a.bin --gpu cpu").unwrap_err().to_string();
        assert!(refused.contains("memspy tensors -p PID --gpu cpu"), "{refused}");
    }

    #[test]
    fn a_letter_means_one_thing_in_every_command() {
        let mut meaning = std::collections::BTreeMap::new();
        for command in CliArgs::command().get_subcommands() {
            for arg in command.get_arguments() {
                let Some(letter) = arg.get_short() else { continue };
                let long = arg.get_long().unwrap_or_default().to_owned();
                let before = meaning.entry(letter).or_insert_with(|| long.clone());
                assert_eq!(*before, long, "-{letter} of '{}'", command.get_name());
            }
        }
        assert_eq!(meaning[&'e'], "exact");
        assert_eq!(meaning[&'F'], "function");
    }

    #[test]
    fn sizes_and_times_have_one_syntax_in_every_command() {
        for command in CliArgs::command().get_subcommands() {
            for arg in command.get_arguments() {
                for name in arg.get_value_names().unwrap_or_default() {
                    assert!(
                        !["SECONDS", "BYTES", "MINUTES"].contains(&name.as_str()),
                        "--{} of '{}' takes {name}: one of TIME and SIZE",
                        arg.get_id(),
                        command.get_name()
                    );
                }
            }
        }
        for line in [
            "record -p 1 -d 1.5s",
            "record -p 1 -d 20",
            "record -p 1 --exact --stacks-from 1.5G --stacks-every 2T",
            "record -p 1 --keep 1.5G --keep 10min --until used>1.5G",
            "top -p 1 --refresh 250ms",
            "tensors -p 1 --every 250ms --max-stop 20ms --max-time 10m",
            "devices --every 250ms",
            "pause -p 1 --for 10m --keep-free 1.5G",
            "flame t --min-lifetime 250ms",
            "flame t --text --inverted --min-width 5",
            "flame t --diff u --title x",
        ] {
            parse(&format!("memspy {line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let error = parse("memspy record -p 1 --keep 500m").unwrap_err().to_string();
        assert!(error.contains("500 minutes") && error.contains("500 MiB"), "{error}");
    }

    /// Regression: `summary` and `growth` had their own `--no-pause` without `--no-stop`; `growth`
    /// lacked `--subprocesses`.
    #[test]
    fn snapshot_limits_have_the_same_options_everywhere() {
        for command in
            ["summary", "growth", "dump", "tensors", "graph", "referrers loss", "top", "record"]
        {
            for words in ["--no-stop", "--no-pause", "--nonblocking"] {
                let line = format!("memspy {command} -p 1 -s {words}");
                parse(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            let owners = if command == "record" { "--owners" } else { "" };
            for words in ["--max-stop 20ms --max-time 10s", "--max-pause 20ms"] {
                let line = format!("memspy {command} -p 1 {owners} {words}").replace("  ", " ");
                parse(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn options_that_would_do_nothing_are_refused() {
        for line in [
            "lines t --threads",
            "flame t --text --title x",
            "flame t --text --diff u",
            "flame t --diff u --merge",
            "flame t --min-width 101",
            "oom-report t --threads",
            "record -p 1 --nonblocking --owners",
            "record -p 1 --max-stop 1s",
            "record -p 1 --max-time 1s",
            "record -p 1 --stacks-from 1M",
            "record -p 1 --exact --gil",
            "record -p 1 --on-trigger continue",
            "tensors -p 1 --json --gpu 0",
        ] {
            assert!(parse(&format!("memspy {line}")).is_err(), "{line}");
        }
        for line in ["record -p 1 --nonblocking", "record -p 1 --owners --max-stop 20ms"] {
            parse(&format!("memspy {line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn help_has_no_benchmark_figures() {
        for mut command in CliArgs::command().get_subcommands().cloned() {
            let help = command.render_long_help().to_string();
            let figure = help.split_whitespace().find(|word| {
                let number = word.trim_matches(|c: char| !c.is_ascii_digit() && c != '.');
                number.strip_prefix("0.").is_some_and(|rest| rest.len() == 2)
            });
            assert_eq!(figure, None, "{}", command.get_name());
        }
    }

    /// clap wraps: a line that ends by itself would be wrapped twice.
    #[test]
    fn a_paragraph_of_the_help_is_one_line() {
        for command in CliArgs::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_prose = |line: &&str| !line.is_empty() && !line.starts_with("  ");
            for paragraph in help.split("\n\n") {
                let prose = paragraph.lines().filter(is_prose).count();
                assert!(prose <= 1, "'{}': {paragraph}", command.get_name());
            }
        }
    }

    #[test]
    fn a_long_list_of_options_has_headings() {
        for command in CliArgs::command().get_subcommands() {
            let without = command
                .get_arguments()
                .filter(|arg| !arg.is_positional() && arg.get_help_heading().is_none());
            assert!(without.count() <= 12, "{}", command.get_name());
        }
    }

    #[test]
    fn a_pid_alone_asks_for_the_summary() {
        for line in [
            "memspy -p 12",
            "memspy --pid 12",
            "memspy --pid=12",
            "memspy -p12",
            "memspy -p 0xc -s",
        ] {
            let args = CliArgs::from_words(line.split(' ')).unwrap();
            let Command::Summary(summary) = args.command else { panic!("{line}") };
            assert_eq!(summary.pid, 12, "{line}");
        }
        assert!(CliArgs::from_words(["memspy"]).is_err());
    }

    #[test]
    fn commands_may_be_shortened() {
        assert!(matches!(parse("memspy rec -p 1").unwrap().command, Command::Record(_)));
        assert!(matches!(parse("memspy flamegraph t").unwrap().command, Command::Flame(_)));
    }

    #[test]
    fn a_recording_takes_a_pid_or_a_program() {
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
