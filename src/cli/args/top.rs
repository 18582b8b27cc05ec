//! Arguments of `memspy top`.

use std::time::Duration;

use clap::Args;

use super::SnapshotArgs;
use super::values::{gpu, max_slowdown, pid, processor_percent, time};

/// `memspy top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  memspy top -p 12345               until q; ? lists the keys
  memspy top -p 12345 --exact       every allocation, with its exact stack (root)
  memspy top -p 12345 -r 20 --refresh 2s
  memspy top -s -p 12345            every rank of a launcher; 0-9, Tab and Enter open one")]
pub struct TopArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Show the process and its descendants, also later ones: a table of all that use CUDA, and a
    /// view of each. For torchrun and other launchers
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Sample this many times a second and do nothing else: cheaper, but more memory is attributed
    /// to the wrong line. Default: the allocator is followed (--cpu), with 100 samples a second
    /// besides; a job that cannot be followed is only sampled
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: Option<u32>,
    /// The most of one processor that following may use, as with 'memspy record'; with -s all
    /// processes share it evenly [default: 10 with fewer than four processors, 50 with fewer than
    /// eight, else 100 for every eight processors]
    #[arg(long, value_name = "PERCENT", value_parser = processor_percent, conflicts_with_all = ["exact", "rate", "gil"])]
    pub cpu: Option<f64>,
    /// The job may lose this part of its time to following, as with 'memspy record' [default: 2%]
    #[arg(long, value_name = "PERCENT|none", value_parser = max_slowdown, conflicts_with_all = ["exact", "rate", "gil"])]
    pub max_slowdown: Option<f64>,
    /// Redraw at this interval, from 100ms to 30s; + and - change it
    #[arg(long, default_value = "250ms", value_name = "TIME", value_parser = interval)]
    pub refresh: Duration,
    /// Show this device first, as the job numbers it [default: the one with the highest peak]
    #[arg(long, value_name = "N", value_parser = gpu)]
    pub gpu: Option<u32>,
    /// Record every allocation with its exact stack, as 'memspy record --exact' does and at its
    /// cost
    #[arg(short, long, conflicts_with_all = ["rate", "gil", "idle"])]
    pub exact: bool,
    /// Attribute memory only to threads that hold the GIL
    #[arg(short, long)]
    pub gil: bool,
    /// Attribute memory also to idle threads
    #[arg(short, long)]
    pub idle: bool,
    /// Show full file names
    #[arg(long)]
    pub full_filenames: bool,
    /// What the list of owners (key h) may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
}

/// The time between two redraws.
fn interval(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(30));
    match time(text)? {
        time if (least..=most).contains(&time) => Ok(time),
        _ => Err("a time from 100ms to 30s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use crate::cli::args::{CliArgs, Command};

    #[test]
    fn options_of_top_are_parsed() {
        let parse = |line: &str| CliArgs::try_parse_from(line.split(' ')).map(|args| args.command);
        let Ok(Command::Top(top)) = parse("memspy top -p 0x10 --refresh 2") else { panic!() };
        assert_eq!(
            (top.pid, top.rate, top.refresh, top.exact),
            (16, None, Duration::from_secs(2), false)
        );
        for wrong in [
            "",
            "-p 1 --refresh 0.01",
            "-p 1 --refresh 60",
            "-p 1 --exact -r 5",
            "-p 1 -r 0",
            "-p 1 -r 5 --cpu 5",
        ] {
            assert!(parse(&format!("memspy top {wrong}")).is_err(), "{wrong}");
        }
    }
}
