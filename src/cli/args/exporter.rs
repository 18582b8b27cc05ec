//! Arguments of `memspy exporter`.

use std::net::SocketAddr;

use clap::Args;

use super::SnapshotLimits;
use super::values::{percent, pid};

/// `memspy exporter`.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("max_stop", |arg| arg.requires("owners")), mut_arg("max_time", |arg| arg.requires("owners")))]
#[command(after_help = "Examples:
  memspy exporter -p 12345                    http://127.0.0.1:9400/metrics, until the job ends
  memspy exporter -s -p 12345                 every rank of a launcher, also later ones
  memspy exporter -p 12345 --owners           also the owners, within a stop budget
  memspy exporter -p 12345 --listen 0.0.0.0:9400 --allow-host gpu17
                                              for a Prometheus on another machine that scrapes
                                              gpu17:9400: anybody who reaches the port reads it")]
pub struct ExporterArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Include the process's descendants, also later ones: each that uses CUDA has its own series
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Address and port to listen on; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9400")]
    pub listen: SocketAddr,
    /// Also answer requests for this host name (without a port; may be given several times).
    /// Requests for any host but this and the server's own address are refused, so that no web page
    /// can read it through a browser
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Keep serving after the job ends, without its series, until Ctrl-C [default: end with the
    /// job]
    #[arg(long)]
    pub wait: bool,
    /// Samples a second, of counters and stacks; each scrape gets the last one. Fewer samples make
    /// the lines less accurate
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rate: u32,
    /// How many lines and owners of each GPU have their own series, the largest first; the rest is
    /// summed as other
    #[arg(short, long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub limit: u32,
    /// Also read the owners of the memory repeatedly: the job is stopped for at most PERCENT of the
    /// time [default with no number: 0.1]
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "0.1", require_equals = true, value_parser = percent, help_heading = "Owners")]
    pub owners: Option<f64>,
    /// What each snapshot of --owners may cost
    #[command(flatten)]
    pub limits: SnapshotLimits,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::args::{CliArgs, Command};

    #[test]
    fn the_exporter_listens_on_loopback_by_default() {
        let parse = |line: &str| CliArgs::try_parse_from(line.split(' ')).map(|args| args.command);
        let Ok(Command::Exporter(args)) = parse("memspy exporter -p 1 --owners") else { panic!() };
        assert!(args.listen.ip().is_loopback());
        assert_eq!(args.owners, Some(0.1));
        for wrong in ["-p 1 --listen 9400", "-p 1 --max-stop 1s", "-p 1 --limit 101", "-p 1 -r 0"] {
            assert!(parse(&format!("memspy exporter {wrong}")).is_err(), "{wrong}");
        }
    }
}
