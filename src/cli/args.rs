//! The words of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::model::StatKey;

/// What is holding this GPU memory, and which line put it there?
///
/// memspy attaches to a Python job that is already running, with no change to its code, no restart and
/// nothing injected, and records where its GPU memory comes from. It only reads; it never stops the job.
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
    /// Look at a job once: its stacks, and where its GPU memory is
    Dump(Dump),
    /// Say what memspy can and cannot do with a job, and why
    Doctor(Doctor),
    /// Print completions for a shell
    Completions(Completions),
}

/// `memspy record`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy record -p 12345 -o trace.bin           until Ctrl-C, or until the job ends
  memspy record -p 12345 -d 20 -o trace.bin     for 20 seconds
  memspy record -o trace.bin -- python train.py")]
pub struct Record {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, required_unless_present = "program", conflicts_with = "program")]
    pub pid: Option<u32>,
    /// File to write; %p becomes the pid, %h the host name [default: memspy-%p.bin, or .svg, .txt]
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
    /// Follow child processes too (not built yet: refused)
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
    /// Program to start and record, after `--`
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
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
    /// Trace to read
    pub trace: PathBuf,
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
    /// The last recorded moment
    End,
}

/// `memspy lines`.
#[derive(Debug, Args)]
pub struct Lines {
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

/// `memspy dump`.
#[derive(Debug, Args)]
pub struct Dump {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid)]
    pub pid: u32,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// Only this device, as the job numbers it
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Show whole file names
    #[arg(long)]
    pub full_filenames: bool,
    /// Never stop the job to read it: accepted for py-spy's users, memspy never does
    #[arg(long)]
    pub nonblocking: bool,
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

fn pid(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(pid) if (1..=i32::MAX as u32).contains(&pid) => Ok(pid),
        _ => Err("a process id is a number from 1 on, decimal or 0x…".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err("a number of seconds greater than 0".to_owned()),
    }
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
