//! One attempt to record a process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use crate::flight::{RankContext, SinkChain};
use crate::model::{
    FollowTotals, FreeTracking, ProbeBackend, RecordSink, RedactingSink, SinkResult,
};
use crate::render;
use crate::sampler::{
    AttachedRecorder, BackgroundSink, CommonOptions, CostNews, CostWatch, ExactOptions,
    ExactRecorder, PlacementError, RecordOptions, Recorder, RecordingProgress, SourceEmbedder,
    SourceReader, TargetReaders, check_exact_rights,
};

use super::outputs;
use crate::cli::args::{FreesArg, ProbesArg, RecordArgs};
use crate::cli::eprint_line;
use crate::cli::following::FollowChoice;
use crate::cli::mode::cost_line;
use crate::cli::verbosity::shows_progress;

/// A recording of several days restarts its numbers at this many stacks: some 30 MiB.
const MAX_IDS: usize = 1 << 17;

pub(super) struct Attempt {
    pub(super) recorder: AttachedRecorder,
    pub(super) follow: FollowChoice,
    pub(super) cost: Option<CostWatch>,
    pub(super) lines: Vec<String>,
    sources: SourceReader,
}

pub(super) struct Recorded {
    /// `None`: writing failed; nothing is left.
    pub(super) sinks: Option<SinkChain>,
    pub(super) result: SinkResult,
    pub(super) followed: Option<FollowTotals>,
    /// The duration counts from here.
    pub(super) began: Instant,
}

impl Attempt {
    pub(super) fn of_samples(
        args: &RecordArgs,
        duration: Option<Duration>,
        readers: TargetReaders,
        follow: &FollowChoice,
    ) -> Result<Attempt> {
        let lines = opening(&readers, follow)?;
        let sources = SourceReader::new(&readers);
        let wanted = RecordOptions {
            rate: follow.rate,
            duration,
            follow: follow.budget.clone(),
            common: common(args),
        };
        let recorder = AttachedRecorder::Samples(Box::new(Recorder::new(readers, wanted)));
        Ok(Attempt { recorder, follow: follow.clone(), cost: None, lines, sources })
    }

    /// A recorder of exact events with probes placed, or the error with the readers. `follow` has
    /// no budget.
    pub(super) fn of_events(
        args: &RecordArgs,
        readers: TargetReaders,
        follow: &FollowChoice,
        cost: CostWatch,
    ) -> Result<Result<Attempt, (PlacementError, TargetReaders)>> {
        let mut lines = opening(&readers, follow)?;
        let sources = SourceReader::new(&readers);
        let mut recorder = ExactRecorder::new(readers, exact_options(args, cost.clone()));
        let began = Instant::now();
        let is_trial = cost.is_trial();
        let placed = recorder.attach_probes().and_then(|()| match recorder.probes() {
            // Checked now: it may take minutes until the job has something to probe.
            None if is_trial => check_exact_rights(),
            _ => Ok(()),
        });
        if let Err(error) = placed {
            return Ok(Err((error, recorder.into_readers())));
        }
        match recorder.probes() {
            Some(coverage) => {
                lines.push(format!(
                    "probes are in place after {:.0} ms ({}): {}",
                    began.elapsed().as_secs_f64() * 1e3,
                    render::way(coverage.backend),
                    coverage.probes.join(", ")
                ));
                lines.extend(coverage.uncovered.iter().map(|what| what.to_string()));
            }
            None => lines.push(
                "nothing to probe is loaded in it yet; waiting for PyTorch's CUDA part or the CUDA driver"
                    .to_owned(),
            ),
        }
        let recorder = AttachedRecorder::Exact(Box::new(recorder));
        Ok(Ok(Attempt { recorder, follow: follow.clone(), cost: Some(cost), lines, sources }))
    }

    /// `path` is new or (`replaces`) memspy's own.
    pub(super) fn run(
        self,
        args: &RecordArgs,
        path: &Path,
        (host, stop, rank): (String, &Arc<AtomicBool>, RankContext),
        replaces: bool,
    ) -> Result<Recorded> {
        let Attempt { recorder, cost, mut lines, sources, .. } = self;
        let sink = outputs::sinks(args, path, stop, rank, replaces)?;
        let bar = progress_bar(args);
        let say_cost = |cost: &CostWatch| {
            for news in cost.take_news() {
                eprint_line(&cost_line(news, cost.limit()));
            }
        };
        // After the first records are on disk: a reader of the message may kill memspy.
        let mut began = None;
        let mut observe = |progress: &RecordingProgress| {
            began.get_or_insert_with(Instant::now);
            lines.drain(..).for_each(|line| eprint_line(&line));
            cost.iter().for_each(say_cost);
            show(&bar, progress);
        };
        let (sinks, result, followed) = if args.redact {
            let sink = RedactingSink::new(sink);
            drive(recorder, sink, host, stop, &mut observe, RedactingSink::into_inner)?
        } else if args.no_source {
            drive(recorder, sink, host, stop, &mut observe, |s| s)?
        } else {
            let sink = SourceEmbedder::new(sink, sources);
            drive(recorder, sink, host, stop, &mut observe, SourceEmbedder::into_inner)?
        };
        bar.finish_and_clear();
        lines.drain(..).for_each(|line| eprint_line(&line));
        if let Some(cost) = &cost {
            cost.end();
            say_cost(cost);
            if let Some(known) = cost.unjudged() {
                eprint_line(&cost_line(CostNews::First(known), cost.limit()));
            }
        }
        Ok(Recorded { sinks, result, followed, began: began.unwrap_or_else(Instant::now) })
    }
}

fn common(args: &RecordArgs) -> CommonOptions {
    CommonOptions {
        owners: args.owners.map(|percent| percent / 100.0),
        // --no-stop and --owners exclude each other.
        owner_options: args.cost.options(),
        step_variable: args.iter_var.clone(),
        epoch_variable: args.epoch_var.clone(),
        // A partial recording has its own numbers.
        forget_after: args.until.kept().map(|_| MAX_IDS),
    }
}

fn exact_options(args: &RecordArgs, cost: CostWatch) -> ExactOptions {
    ExactOptions {
        duration: args.duration,
        backend: args.probes.map(|word| match word {
            ProbesArg::UprobeMulti => ProbeBackend::UprobeMulti,
            ProbesArg::PerfBpf => ProbeBackend::PerfUprobes,
            ProbesArg::PerfOnly => ProbeBackend::PerfSamples,
        }),
        frees: match args.frees {
            FreesArg::Events => FreeTracking::Events,
            FreesArg::Stacks => FreeTracking::Stacks,
            FreesArg::Snapshots => FreeTracking::Snapshots,
        },
        stacks_from: args.stacks_from,
        stacks_every: args.stacks_every,
        backward_lines: args.backward_lines,
        native_from: args.native.then_some(args.native_from),
        cost: Some(cost),
        common: common(args),
    }
}

fn drive<S: RecordSink + Send + 'static>(
    recorder: AttachedRecorder,
    sink: S,
    host: String,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&RecordingProgress),
    unwrap: impl FnOnce(S) -> SinkChain,
) -> Result<(Option<SinkChain>, SinkResult, Option<FollowTotals>)> {
    let mut background = BackgroundSink::new(sink).context("cannot start the writing thread")?;
    let sink = &mut background;
    let recorded = recorder.run(host, sink, stop, observe);
    let followed = recorded.as_ref().ok().and_then(|end| end.totals.follow);
    let recorded = recorded.map(|_| ());
    let (sink, written) = background.finish();
    // The writing thread's error is the cause.
    Ok((sink.map(unwrap), written.and(recorded), followed))
}

fn opening(readers: &TargetReaders, follow: &FollowChoice) -> Result<Vec<String>> {
    let mut lines: Vec<String> = follow.opening(readers)?.into_iter().collect();
    if let (Some(error), true) = (readers.driver_refusal(), readers.has_torch()) {
        lines.push(format!("{error}; memory outside PyTorch will be unknown"));
    }
    Ok(lines)
}

fn progress_bar(args: &RecordArgs) -> ProgressBar {
    // Parallel recordings would overwrite each other's line.
    if !shows_progress() || args.subprocesses {
        return ProgressBar::hidden();
    }
    match args.duration {
        Some(duration) => {
            let style =
                indicatif::ProgressStyle::with_template("{bar:24} {elapsed} of {len} s  {msg}");
            let bar = ProgressBar::new(duration.as_secs().max(1));
            style.map_or(bar.clone(), |style| bar.with_style(style))
        }
        None => ProgressBar::new_spinner(),
    }
}

fn show(bar: &ProgressBar, progress: &RecordingProgress) {
    let sizes = match (progress.allocated, progress.reserved) {
        (Some(allocated), Some(reserved)) => format!(
            "allocated {}, reserved {}",
            render::bytes(allocated.max(0) as u64),
            render::bytes(reserved.max(0) as u64)
        ),
        _ => "allocator unknown".to_owned(),
    };
    bar.set_position(progress.elapsed.as_secs());
    if let Some(exact) = &progress.totals.exact {
        bar.set_message(format!(
            "{} events, {} lost; {sizes}",
            exact.allocations + exact.frees,
            exact.lost
        ));
        return bar.tick();
    }
    bar.set_message(format!(
        "{} samples, {} late, {} torn; {sizes}",
        progress.totals.ticks - progress.totals.late,
        progress.totals.late,
        progress.totals.torn
    ));
    bar.tick();
}
