//! `memspy record`: attach, record, say what came of it.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;

use crate::analysis::{OomReportBuilder, TriggerWatch};
use crate::flight::{
    Aggregation, FlightRecorder, OnTrigger, PrintInterval, RankContext, RecordOutput, SinkChain,
    TableOutput, TablePrinter, TriggerState, oom_report_path,
};
use crate::model::{FollowTotals, FreeTracking, ProbeBackend, RecordSink, SinkResult};
use crate::render;
use crate::sampler::{
    AttachedRecorder, BackgroundSink, CommonOptions, ExactOptions, ExactRecorder, RecordOptions,
    Recorder, RecordingProgress, SourceEmbedder, TargetReaders, attach, attach_when_python,
    rank_of,
};
use crate::trace::{self, Retention, RetentionLimit};

use super::args::{
    FlameFormat, FreesArg, MomentArg, OnTriggerArg, ProbesArg, RecordArgs, RecordFormat,
};
use super::flight::{warn, write_oom_report};
use super::following::FollowChoice;
use super::launch::LaunchedProgram;
use super::output::FileNameFields;
use super::signals::StopSignals;
use super::terminal_host::TerminalHost;
use super::{
    choice, eprint_line, filtered_profile, flame, hints, in_one_line, output, privileges,
    record_ranks,
};

/// Stacks after which a recording that goes on for days begins to number them anew: some 30 MiB of them.
const MAX_IDS: usize = 1 << 17;

/// Runs it.
pub(super) fn run(args: &RecordArgs) -> Result<ExitCode> {
    match args.records_several() {
        true => record_ranks::check(args)?,
        false => output::check_asked(args.output.as_deref(), args.force)?,
    }
    let follow = FollowChoice::for_record(args)?;
    // The name with %p in it cannot be checked before the program runs; all others are, before it starts.
    let host = output::host();
    let named = |pid: u32| -> Result<PathBuf> {
        let rank = rank_of(pid);
        let default = Path::new(args.format.default_name());
        let path = args.output.as_deref().unwrap_or(default);
        output::expand(path, FileNameFields { pid, host: &host, rank })
    };
    let first = named(args.pid.unwrap_or(0))?;
    if !args.records_several() {
        check_outputs(args, &first)?;
    }
    if args.format == RecordFormat::Trace
        && args.output.as_ref().is_some_and(|o| o.as_os_str() == "-")
    {
        bail!("a trace cannot be written to standard output: name a file with -o");
    }
    let streams = args.output.as_ref().is_some_and(|o| o.as_os_str() == "-");
    if args.print_every.is_some() && streams {
        bail!("--print-every prints to standard output, too: name a file with -o");
    }
    if let Some(PrintInterval::Calls { function, every }) = &args.print_every {
        if !args.exact {
            bail!(
                "--print-every {function}:{every} counts calls by exact stacks: add --exact, or give a time (--print-every 10s)"
            );
        }
        if args.until.kept().is_some() {
            bail!("--keep prints tables at intervals of time: --print-every 10s");
        }
    }
    if args.threads && args.format == RecordFormat::Trace {
        bail!(
            "--threads is for --format flamegraph or collapsed; a trace has every thread: 'memspy flame --threads' draws it"
        );
    }
    if args.until.kept().is_some() && args.format != RecordFormat::Trace {
        bail!("--keep writes traces: leave --format out, and draw the trace with 'memspy flame'");
    }

    let (StopSignals { stop }, mut launched) = match args.program.is_empty() {
        true => (StopSignals::watch()?, None),
        false => {
            let (signals, passed_on) = StopSignals::watch_for_program()?;
            (signals, Some(LaunchedProgram::start(&args.program, passed_on)?))
        }
    };
    privileges::give_up_for(args);
    let pid = launched.as_ref().map(LaunchedProgram::pid).or(args.pid).unwrap_or_default();
    if args.records_several() {
        let recorded = record_ranks::record(
            &Arc::new(args.clone()),
            &follow,
            pid,
            &mut launched,
            &host,
            &stop,
        );
        return ended(launched, recorded);
    }
    let attached = match &launched {
        Some(_) => attach_when_python(pid, &stop),
        // Exact events need no Python: a C program has them too.
        None if args.exact => TargetReaders::attach_any(pid),
        None => attach(pid, &stop),
    };
    let recorded = match attached {
        Ok(readers) => {
            record(args, readers, named(pid)?, host, &stop, RankContext::default(), &follow)
        }
        Err(_) if launched.as_mut().is_some_and(LaunchedProgram::has_ended) => {
            Err(anyhow!("the program ended before memspy found a Python in it"))
        }
        Err(error) => Err(hints::attach(error, pid)),
    };
    ended(launched, recorded)
}

/// Waits for a program that memspy started, and passes on its exit code.
fn ended(launched: Option<LaunchedProgram>, recorded: Result<()>) -> Result<ExitCode> {
    match launched {
        None => recorded.map(|()| ExitCode::SUCCESS),
        Some(program) => {
            // A recording that failed never ends the program: it goes on, and memspy waits with it.
            if let Err(error) = &recorded {
                eprint_line(&format!("error: {}", in_one_line(error)));
            }
            let code = program.wait()?;
            // A program's own failure says more than memspy's.
            Ok(if recorded.is_err() && code == 0 { ExitCode::FAILURE } else { code.into() })
        }
    }
}

/// Whether what a recording into the file at `path` writes would overwrite anything.
fn check_outputs(args: &RecordArgs, path: &Path) -> Result<()> {
    output::check(path, args.force)?;
    if has_triggers(args) {
        output::check(&oom_report_path(path), args.force)?;
    }
    Ok(())
}

/// Records one process into the file at `path`.
pub(super) fn record(
    args: &RecordArgs,
    readers: TargetReaders,
    path: PathBuf,
    host: String,
    stop: &Arc<AtomicBool>,
    rank: RankContext,
    follow: &FollowChoice,
) -> Result<()> {
    check_outputs(args, &path)?;
    let mut attached = attached(&readers, follow)?;
    if let (false, Some(error)) = (args.no_source, readers.source_refusal()) {
        eprint_line(&format!("no source text is read from files: {error}"));
    }
    if let (Some(error), Some(condition)) = (
        readers.driver_refusal(),
        args.until.until.iter().find(|condition| condition.needs_driver()),
    ) {
        bail!(
            "cannot wait for '{condition}': {error}; wait for an amount of allocated> or reserved>"
        );
    }
    let duration = args.duration;
    let also = CommonOptions {
        owners: args.owners.map(|percent| percent / 100.0),
        // --no-stop and --owners exclude each other.
        owner_options: args.cost.options(),
        step_variable: args.iter_var.clone(),
        epoch_variable: args.epoch_var.clone(),
        // What is kept has numbers of its own.
        forget_after: args.until.kept().map(|_| MAX_IDS),
    };
    let wanted =
        RecordOptions { rate: follow.rate, duration, follow: follow.budget.clone(), common: also };
    let sources = readers.sources();
    // Before the file is made: probes that are refused leave nothing behind.
    let recorder = recorder(args, wanted, readers, &mut attached)?;
    let sink = sinks(args, &path, stop, rank)?;
    let bar = progress_bar(args, duration);
    // Said when the first moments are on the disk: whoever reads it may kill memspy.
    let mut observe = |progress: &RecordingProgress| {
        attached.drain(..).for_each(|line| eprint_line(&line));
        show(&bar, progress);
    };
    let (sinks, result, followed) = if args.no_source {
        drive(recorder, sink, host, stop, &mut observe, |s| s)?
    } else {
        let sink = SourceEmbedder::new(sink, sources);
        drive(recorder, sink, host, stop, &mut observe, SourceEmbedder::into_inner)?
    };
    bar.finish_and_clear();
    // The process may have ended before anything was seen of it.
    attached.drain(..).for_each(|line| eprint_line(&line));
    let Some(mut sinks) = sinks else {
        return result.with_context(|| format!("the recording into {} failed", path.display()));
    };
    if result.is_ok() {
        sinks.finish().context("cannot print the last table")?;
    }
    match (sinks.output, sinks.reading) {
        (RecordOutput::Flight(flight), _) => end_flight(args, *flight, result),
        (RecordOutput::Trace(writer), reading) => end_trace(args, &path, *writer, reading, result),
        (RecordOutput::Nothing, reading) => {
            result.context("the recording failed")?;
            let drawing = flame::FlameOptions {
                format: match args.format {
                    RecordFormat::Collapsed => FlameFormat::Collapsed,
                    RecordFormat::Flamegraph | RecordFormat::Trace => FlameFormat::Flamegraph,
                },
                gpu: None,
                moment: MomentArg::Peak,
                with_older: false,
                since: None,
                innermost: false,
                function: false,
                churn: false,
                memory: None,
                certain: false,
                by_thread: args.threads,
                full_filenames: args.stacks.full_filenames,
                picture: render::FlamePicture::default(),
            };
            if let Some(profile) = reading.profile() {
                drawing.draw(profile, &path, args.force)?;
            }
            end_reading(args, &path, reading)
        }
    }?;
    follow.unfollowed(followed.as_ref())
}

/// Whether a condition is waited for.
fn has_triggers(args: &RecordArgs) -> bool {
    !args.until.until.is_empty()
}

/// Where the records are to go.
fn sinks(
    args: &RecordArgs,
    path: &Path,
    stop: &Arc<AtomicBool>,
    rank: RankContext,
) -> Result<SinkChain> {
    let (until, choice) = (&args.until, choice(&args.stacks));
    let to = match (until.kept(), args.format) {
        (Some(keep), _) => {
            let creation = output::creation(args.force);
            RecordOutput::Flight(Box::new(FlightRecorder::new(path, keep, creation, choice)?))
        }
        (None, RecordFormat::Trace) => {
            let writer = trace::TraceWriter::create_as(path, output::creation(args.force));
            RecordOutput::Trace(Box::new(
                writer.context("nothing was recorded")?.with_early_blocks(),
            ))
        }
        (None, _) => RecordOutput::Nothing,
    };
    let profile = match &args.print_every {
        Some(_) => filtered_profile(&args.stacks),
        None => filtered_profile(&args.stacks).without_line_statistics(),
    };
    let reading = match (until.kept(), has_triggers(args)) {
        (Some(_), _) => Aggregation::Later,
        (None, true) => Aggregation::OomReport(Box::new(OomReportBuilder::new(profile))),
        (None, false) => Aggregation::Profile(Box::new(profile)),
    };
    let full_filenames = args.stacks.full_filenames;
    let printer = args.print_every.as_ref().map(|interval| {
        let out = TableOutput { out: Box::new(io::stdout()), width: output::width() };
        match (until.kept(), interval) {
            (Some(_), PrintInterval::Time(every)) => {
                TablePrinter::since_last(*every, full_filenames, choice, out)
            }
            _ => TablePrinter::whole_recording(interval, full_filenames, out),
        }
    });
    let watch = TriggerWatch::new(until.until.clone());
    let stop = Arc::clone(stop);
    let then = match until.on_trigger {
        OnTriggerArg::End => OnTrigger::End,
        OnTriggerArg::Continue => OnTrigger::Continue,
    };
    let waiting = TriggerState::new(watch, then, until.max_reports, stop);
    let host = Box::new(TerminalHost::new(rank.label.clone(), args.force));
    Ok(SinkChain { output: to, reading, waiting, printer, rank, host })
}

/// The end of a recording that was written as it went.
fn end_trace(
    args: &RecordArgs,
    path: &Path,
    writer: trace::TraceWriter<std::fs::File>,
    reading: Aggregation,
    result: SinkResult,
) -> Result<()> {
    let finished = result.and_then(|()| Ok(writer.finish()?));
    let (_, written) = finished.map_err(|error| {
        anyhow!(
            "the recording into {0} ended early: {error}; what was written before is whole, \
             try 'memspy flame {0}'",
            path.display()
        )
    })?;
    if let Some(profile) = reading.profile() {
        let mut err = io::stderr().lock();
        render::summary(&mut err, profile, &path.display().to_string(), written.bytes)?;
    }
    end_reading(args, path, reading)
}

/// Writes the report, if one is wanted.
fn end_reading(args: &RecordArgs, path: &Path, reading: Aggregation) -> Result<()> {
    if let Aggregation::OomReport(mut reports) = reading {
        let report = oom_report_path(path);
        write_oom_report(&mut reports, &report, args.force)?;
        eprint_line(&format!("wrote the report to {}", report.display()));
    }
    Ok(())
}

/// The end of a recording of which the last part was kept: that is written now.
fn end_flight(args: &RecordArgs, mut flight: FlightRecorder, result: SinkResult) -> Result<()> {
    let folder = flight.folder().to_owned();
    let (most, segments) = flight.size();
    let reported = result
        .map_err(anyhow::Error::new)
        .and_then(|()| flight.write(None, &mut warn).map_err(anyhow::Error::new));
    let mut reported = reported.map_err(|error| {
        anyhow!(
            "the recording ended early: {error:#}; what was kept is in {0}, try 'memspy join {0} -o FILE'",
            folder.display()
        )
    })?;
    let path = reported.path.display().to_string();
    {
        let mut err = io::stderr().lock();
        render::summary(&mut err, reported.reports.profile(), &path, reported.bytes)?;
    }
    if has_triggers(args) {
        let report = oom_report_path(&reported.path);
        write_oom_report(&mut reported.reports, &report, args.force)?;
        eprint_line(&format!("wrote the report to {}", report.display()));
    }
    let first = match (args.until.kept(), flight.bound()) {
        (None | Some(Retention::Time(_) | Retention::Bytes(_)), _) | (_, None) => "",
        (_, Some(RetentionLimit::Time)) => "; of the bounds of --keep, the time was reached first",
        (_, Some(RetentionLimit::Bytes)) => {
            "; of the bounds of --keep, the size was reached first: less than the time is kept"
        }
    };
    eprint_line(&format!(
        "{} begun; at most {} were kept{first}",
        render::number(segments, "segment"),
        render::bytes(most)
    ));
    Ok(flight.finish()?)
}

/// The recorder asked for; an exact one has placed its probes, and adds to `said` which these are.
fn recorder(
    args: &RecordArgs,
    wanted: RecordOptions,
    readers: TargetReaders,
    said: &mut Vec<String>,
) -> Result<AttachedRecorder> {
    if !args.exact {
        return Ok(AttachedRecorder::Samples(Box::new(Recorder::new(readers, wanted))));
    }
    let pid = readers.pid();
    let wanted = ExactOptions {
        duration: wanted.duration,
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
        common: wanted.common,
    };
    let mut recorder = ExactRecorder::new(readers, wanted);
    let began = Instant::now();
    recorder.attach_probes().map_err(|error| hints::probe(error, pid))?;
    match recorder.probes() {
        Some(coverage) => {
            said.push(format!(
                "probes are in place after {:.0} ms ({}): {}",
                began.elapsed().as_secs_f64() * 1e3,
                render::way(coverage.backend),
                coverage.probes.join(", ")
            ));
            said.extend(coverage.uncovered.iter().map(|what| what.to_string()));
        }
        None => said.push(
            "nothing to probe is loaded in it yet; waiting for PyTorch's CUDA part or the CUDA driver"
                .to_owned(),
        ),
    }
    Ok(AttachedRecorder::Exact(Box::new(recorder)))
}

/// Runs the recorder with `sink` on a thread of its own, and takes the sinks out of it again.
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
    // The writing thread's own error says why; the recorder only notices that it is gone.
    Ok((sink.map(unwrap), written.and(recorded), followed))
}

/// What was attached to, and what cannot be seen of it yet.
fn attached(readers: &TargetReaders, follow: &FollowChoice) -> Result<Vec<String>> {
    let python = readers.python_version();
    let python = python.map_or("no Python".to_owned(), |version| format!("Python {version}"));
    let torch = readers.torch_version().map_or(String::new(), |v| format!(", PyTorch {v}"));
    let mut lines = vec![format!(
        "attached to process {} ({python}{torch}) in {:.0} ms; Ctrl-C ends the recording",
        readers.pid(),
        readers.attach_time().as_secs_f64() * 1e3,
    )];
    lines.extend(follow.opening(readers)?);
    if let (Some(error), true) = (readers.driver_refusal(), readers.has_torch()) {
        lines.push(format!("{error}; memory outside PyTorch will be unknown"));
    }
    Ok(lines)
}

fn progress_bar(args: &RecordArgs, duration: Option<Duration>) -> ProgressBar {
    // Several recordings at once would write over each other's.
    if !io::stderr().is_terminal() || args.subprocesses {
        return ProgressBar::hidden();
    }
    match duration {
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
            "{} allocations, {} frees, {} lost; {sizes}",
            exact.allocations, exact.frees, exact.lost
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
