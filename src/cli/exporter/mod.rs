//! `memspy exporter`: a job's figures for Prometheus.

mod http;
mod watched_jobs;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use crate::render::{MetricsFormat, metrics_content_type, metrics_text};
use crate::sampler::{ProcessTree, RankProcess, TargetReaders, sleep_unless};

use super::args::ExporterArgs;
use super::members::refuse_launcher;
use super::signals::StopSignals;
use super::{eprint_line, hints};
use http::{MakePage, MetricsServer, ServedPage};
use watched_jobs::WatchedJobs;

/// Each takes memory and a thread.
const MAX_PROCESSES: usize = 64;
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) fn run(args: &ExporterArgs) -> Result<()> {
    let stop = StopSignals::watch()?.stop;
    let jobs = Arc::new(WatchedJobs::new(args.into()));
    let pid = args.pid;
    let mut tree = match args.subprocesses {
        true => Some(ProcessTree::new(pid, false).map_err(|error| hints::attach(error, pid))?),
        false => {
            let devices =
                TargetReaders::attach_devices(pid).map_err(|error| hints::attach(error, pid))?;
            refuse_launcher(&devices)?;
            jobs.add(pid, crate::sampler::rank_of(pid), None, &stop)
                .map_err(anyhow::Error::from_boxed)?;
            None
        }
    };
    let server = serve(args, Arc::clone(&jobs))?;
    let mut is_announced = false;
    let mut members = Members::default();
    while !stop.load(Ordering::Relaxed) {
        if server.is_finished() {
            bail!("the HTTP server ended unexpectedly");
        }
        for (ended, why) in jobs.remove_ended() {
            eprint_line(&format!("process {ended}: {why}; its series end"));
        }
        let is_over = match &mut tree {
            None => jobs.count() == 0,
            Some(tree) => {
                // Checked first: later descendants come from known processes.
                let alive = tree.root_is_alive();
                for process in tree.poll() {
                    members.add(&jobs, process, &stop);
                }
                !alive && jobs.count() == 0
            }
        };
        if is_over && !args.wait {
            eprint_line(&format!(
                "process {pid} has ended, and so has the exporter (--wait keeps it running)"
            ));
            return Ok(());
        }
        if is_over && !std::mem::replace(&mut is_announced, true) {
            eprint_line(&format!("process {pid} has ended; serving no series of it, until Ctrl-C"));
        }
        sleep_unless(POLL_INTERVAL, || stop.load(Ordering::Relaxed));
    }
    Ok(())
}

fn serve(args: &ExporterArgs, jobs: Arc<WatchedJobs>) -> Result<MetricsServer> {
    let page: Arc<MakePage> = Arc::new(move |accept: &str| {
        let format = match accept.contains("application/openmetrics-text") {
            true => MetricsFormat::OpenMetrics,
            false => MetricsFormat::Prometheus,
        };
        let body = metrics_text(&jobs.export(), format).map_err(|error| error.to_string())?;
        Ok(ServedPage { content_type: metrics_content_type(format), body })
    });
    let server =
        MetricsServer::start(args.listen, args.allow_host.clone(), page).map_err(|error| {
            anyhow!(
                "cannot listen on {}: {error}; give another one with --listen 127.0.0.1:PORT",
                args.listen
            )
        })?;
    let address = server.address();
    if !address.ip().is_loopback() {
        eprint_line(&format!(
            "warning: {address} can be reached from other machines, and anyone who does so can read names, lines and sizes of the job"
        ));
    }
    let pid = args.pid;
    eprint_line(&format!("serving http://{address}/metrics of process {pid}, until Ctrl-C"));
    Ok(server)
}

/// What was said of descendants that are not watched.
#[derive(Default)]
struct Members {
    is_full: bool,
    refused: HashSet<u32>,
}

impl Members {
    fn add(&mut self, jobs: &WatchedJobs, process: RankProcess, stop: &Arc<AtomicBool>) {
        let RankProcess { readers, rank } = process;
        let member = readers.pid();
        if jobs.count() >= MAX_PROCESSES {
            if !std::mem::replace(&mut self.is_full, true) {
                eprint_line(&format!(
                    "warning: {MAX_PROCESSES} processes are watched; process {member} and further ones have no series"
                ));
            }
            return;
        }
        match jobs.add(member, rank, Some(readers), stop) {
            Ok(()) => eprint_line(&format!("process {member} has series now")),
            Err(error) if self.refused.insert(member) => {
                eprint_line(&format!("process {member} cannot be watched: {error}"));
            }
            Err(_) => {}
        }
    }
}
