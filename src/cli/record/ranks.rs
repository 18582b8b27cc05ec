//! `memspy record -s`: a trace for each CUDA process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::flight::RankContext;
use crate::sampler::{ProcessTree, RankProcess, Worker};

use crate::cli::args::{ModeArg, RecordArgs, RecordFormat};
use crate::cli::launch::LaunchedProgram;
use crate::cli::mode::ModeChoice;
use crate::cli::output::NameFields;
use crate::cli::{eprint_error, eprint_line, hints, in_one_line, output, set_line_prefix};
use crate::render;

use super::outputs::RecordedTrace;

/// Between two searches for new processes of the job.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Between two searches of all processes of the machine.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Ranks that end together end within this.
const MIN_AHEAD: Duration = Duration::from_millis(100);

struct RankRecording {
    label: String,
    thread: Worker<Result<Option<RecordedTrace>>>,
}

pub(super) fn check(args: &RecordArgs) -> Result<()> {
    let Some(output) = &args.output else { return Ok(()) };
    let text = output.to_string_lossy();
    if !text.contains("%r") && !text.contains("%p") {
        bail!(
            "with --subprocesses or --match each process has a file of its own: put %r (its rank) or %p (its pid) into the name \
             {text}, as in -o rank-%r.bin"
        );
    }
    output::check_requested(Some(output), args.force)
}

/// Records until all processes have ended, `stop` is set or the time is over.
pub(super) fn record(
    args: &Arc<RecordArgs>,
    modes: &ModeChoice,
    pid: u32,
    launched: &mut Option<LaunchedProgram>,
    host: &str,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let is_exact = modes.asked == ModeArg::Exact;
    let (mut family, who, interval) = family(args, pid, is_exact)?;
    eprint_line(&format!(
        "following {who}; each that uses CUDA is recorded; Ctrl-C ends the recording"
    ));
    if modes.asked == ModeArg::Follow {
        modes.followed().sharing().iter().for_each(|line| eprint_line(line));
    }
    let mut next = Instant::now();
    let begin = Instant::now();
    let context = RankContext::default();
    let mut running: Vec<RankRecording> = Vec::new();
    let mut job = RankRecordings::default();
    loop {
        let left = args.duration.map(|whole| whole.saturating_sub(begin.elapsed()));
        let over = stop.load(Ordering::Relaxed) || left.is_some_and(|left| left.is_zero());
        if !over && Instant::now() >= next {
            next = Instant::now() + interval;
            for member in family.poll() {
                let label = member.label();
                let rank = context.with_label(label.clone());
                match start(args, modes, member, rank, left, host, stop) {
                    Ok(recording) => {
                        job.begun += 1;
                        running.push(recording);
                    }
                    Err(error) => job.failed.push(format!("{label}: {}", in_one_line(&error))),
                }
            }
        }
        running = job.without_ended(running);
        // A program started by memspy stays a zombie until memspy waits for it.
        let has_ended = launched.as_mut().is_some_and(LaunchedProgram::has_ended);
        let gone = has_ended || !family.root_is_alive();
        if running.is_empty() && (over || gone) {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    job.say()?;
    match (&job.failed[..], job.begun) {
        ([], 0) => bail!(
            "none of {who} used CUDA in {:.0} s: nothing was recorded",
            begin.elapsed().as_secs_f64()
        ),
        ([], _) => Ok(()),
        (failed, _) => bail!("{} of the recordings failed: {}", failed.len(), failed.join("; ")),
    }
}

/// The processes to record, what to call them, and how often to search for new ones.
fn family(args: &RecordArgs, pid: u32, is_exact: bool) -> Result<(ProcessTree, String, Duration)> {
    let Some(pattern) = &args.called else {
        let family = ProcessTree::new(pid, is_exact).map_err(|error| hints::attach(error, pid))?;
        return Ok((family, format!("process {pid} and its descendants"), POLL_INTERVAL));
    };
    let family = ProcessTree::called(pattern.clone(), is_exact);
    Ok((family, format!("processes called {pattern}"), SEARCH_INTERVAL))
}

/// What became of a job's recordings.
#[derive(Default)]
struct RankRecordings {
    begun: u32,
    failed: Vec<String>,
    /// Each with its label.
    traces: Vec<(String, RecordedTrace)>,
}

impl RankRecordings {
    fn without_ended(&mut self, running: Vec<RankRecording>) -> Vec<RankRecording> {
        let (ended, on): (Vec<RankRecording>, Vec<RankRecording>) =
            running.into_iter().partition(|recording| recording.thread.is_finished());
        for RankRecording { label, thread } in ended {
            let result = thread
                .join()
                .unwrap_or_else(|| Err(anyhow!("its recording thread ended unexpectedly")));
            match result {
                Ok(trace) => self.traces.extend(trace.map(|trace| (label, trace))),
                Err(error) => {
                    let error = in_one_line(&error);
                    eprint_error(&format!("{label}: error: {error}"));
                    self.failed.push(format!("{label}: {error}"));
                }
            }
        }
        on
    }

    /// Which rank has the highest peak, and what to do next with all traces.
    fn say(&mut self) -> Result<()> {
        if self.traces.is_empty() {
            return Ok(());
        }
        self.traces.sort_by(|one, other| one.1.path.cmp(&other.1.path));
        let peaks: Vec<(&str, i64)> = self
            .traces
            .iter()
            .filter_map(|(label, trace)| Some((label.as_str(), trace.peak?)))
            .collect();
        let files: Vec<String> =
            self.traces.iter().map(|(_, trace)| trace.path.display().to_string()).collect();
        let first = self.ended_first();
        let first = first.as_ref().map(|(label, before)| (label.as_str(), *before));
        Ok(render::ranks_summary(&mut output::notes(), &peaks, first, &files)?)
    }

    /// The process that ended first, and how long before the next: all others may have followed.
    fn ended_first(&self) -> Option<(String, Duration)> {
        let exited = self.traces.iter().map(|(label, trace)| Some((trace.exited?, label)));
        let mut exited: Vec<(Instant, &String)> = exited.collect::<Option<_>>()?;
        exited.sort();
        let [(first, label), (next, _), ..] = exited[..] else { return None };
        let before = next - first;
        (before >= MIN_AHEAD).then(|| (label.clone(), before))
    }
}

fn start(
    args: &Arc<RecordArgs>,
    modes: &ModeChoice,
    member: RankProcess,
    rank: RankContext,
    left: Option<Duration>,
    host: &str,
    stop: &Arc<AtomicBool>,
) -> Result<RankRecording> {
    let naming = NameFields { pid: member.readers.pid(), host, rank: member.rank };
    let default = match (args.format, member.rank) {
        (RecordFormat::Trace, Some(_)) => "memspy-rank-%r.bin",
        (format, _) => format.default_name(),
    };
    let path = output::expand(args.output.as_deref().unwrap_or(Path::new(default)), naming)?;
    let path: PathBuf = match path.exists() && !args.force {
        // A restarted rank keeps the file of the one before.
        true if member.rank.is_some() => {
            let mut text = path.into_os_string();
            text.push(format!(".{}", naming.pid));
            text.into()
        }
        _ => path,
    };
    let mut args = RecordArgs::clone(args);
    args.duration = left;
    let label = rank.label.clone().unwrap_or_default();
    let (host, stop, name) = (host.to_owned(), Arc::clone(stop), label.clone());
    let modes = modes.clone();
    let thread = Worker::spawn(&naming.pid.to_string(), move |_| {
        set_line_prefix(&name);
        crate::cli::record::record(&args, member.readers, path, host, &stop, rank, &modes)
    })
    .context("cannot start a thread for it")?;
    Ok(RankRecording { label, thread })
}
