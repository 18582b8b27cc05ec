//! A recording's outputs and end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::analysis::{OomBuilder, Profile, TriggerWatch, peak};
use crate::flight::{
    Aggregation, OnTrigger, PrintInterval, RankContext, RecordOutput, RingRecorder, SinkChain,
    TableOutput, TablePrinter, TriggerState, oom_report_path,
};
use crate::model::{EndReason, SinkResult};
use crate::render::{self, file_word, in_sentence, suggestion};
use crate::trace::{self, Retention, RetentionLimit};

use crate::cli::args::{ActionArg, FlameFormat, MomentArg, RecordArgs, RecordFormat};
use crate::cli::flight::{warn, write_oom_report};
use crate::cli::replay::StoredRecording;
use crate::cli::terminal_host::TerminalHost;
use crate::cli::{choice, eprint_line, filtered_profile, flame, output};

pub(super) fn has_triggers(args: &RecordArgs) -> bool {
    !args.until.until.is_empty()
}

/// With `replaces`, it replaces memspy's own abandoned trace.
pub(super) fn sinks(
    args: &RecordArgs,
    path: &Path,
    stop: &Arc<AtomicBool>,
    rank: RankContext,
    replaces: bool,
) -> Result<SinkChain> {
    let (until, choice) = (&args.until, choice(&args.stacks));
    let to = match (until.kept(), args.format) {
        (Some(keep), _) => {
            let creation = output::creation(args.force);
            RecordOutput::Flight(Box::new(RingRecorder::new(path, keep, creation, choice)?))
        }
        (None, RecordFormat::Trace) => {
            let creation = output::creation(args.force || replaces);
            let writer = trace::TraceWriter::create_as(path, creation);
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
        (None, true) => Aggregation::OomReport(Box::new(OomBuilder::new(profile))),
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
        ActionArg::End => OnTrigger::End,
        ActionArg::Continue => OnTrigger::Continue,
    };
    let waiting = TriggerState::new(watch, then, until.max_reports, stop);
    let host = Box::new(TerminalHost::new(rank.label.clone(), args.force));
    Ok(SinkChain { output: to, reading, waiting, printer, rank, host })
}

/// For a recording that restarts in another mode; its trace is replaced later.
pub(super) fn discard(sinks: SinkChain) -> Result<()> {
    match sinks.output {
        RecordOutput::Flight(flight) => Ok(flight.finish()?),
        RecordOutput::Trace(_) | RecordOutput::Nothing => Ok(()),
    }
}

/// A trace that was written.
pub(super) struct RecordedTrace {
    pub(super) path: PathBuf,
    /// Bytes allocated at the peak, on the GPU with the greatest one.
    pub(super) peak: Option<i64>,
    /// When the process was seen to have ended, if that ended the recording.
    pub(super) exited: Option<Instant>,
}

impl RecordedTrace {
    fn of(profile: Option<&Profile>, path: &Path, ended: Instant) -> RecordedTrace {
        let mark = profile.and_then(|profile| peak::allocated(profile, peak::main_gpu(profile)?));
        let end = profile.and_then(Profile::end);
        let has_exited = end.is_some_and(|end| end.reason == EndReason::TargetExited);
        RecordedTrace {
            path: path.to_owned(),
            peak: mark.map(|mark| mark.within),
            exited: has_exited.then_some(ended),
        }
    }
}

/// Of a recording that is over.
struct Ended {
    result: SinkResult,
    at: Instant,
    /// Whether it is the only recording.
    is_only: bool,
}

/// Prints what was recorded; of the only recording also what to do next.
fn say(profile: &Profile, path: &Path, size: u64, is_only: bool) -> Result<()> {
    let (mut err, path) = (output::notes(), path.display().to_string());
    render::summary(&mut err, profile, &path, size)?;
    if is_only {
        render::next_steps(&mut err, profile, &path)?;
    }
    Ok(())
}

pub(super) fn finish(
    args: &RecordArgs,
    path: &Path,
    mut sinks: SinkChain,
    result: SinkResult,
) -> Result<Option<RecordedTrace>> {
    let ended = Ended { result, at: Instant::now(), is_only: sinks.rank.label.is_none() };
    if ended.result.is_ok() {
        sinks.finish().context("cannot print the last table")?;
    }
    match (sinks.output, sinks.reading) {
        (RecordOutput::Flight(flight), _) => end_flight(args, *flight, ended).map(Some),
        (RecordOutput::Trace(writer), reading) => {
            end_trace(args, path, *writer, reading, ended).map(Some)
        }
        (RecordOutput::Nothing, reading) => {
            ended.result.context("the recording failed")?;
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
                churn: false,
                memory: None,
                certain: false,
                by_thread: args.threads,
                style: render::NameStyle {
                    full_filenames: args.stacks.full_filenames,
                    ..Default::default()
                },
                picture: render::FlamePicture::default(),
            };
            if let Some(profile) = reading.profile() {
                drawing.draw(profile, path, args.force)?;
            }
            end_reading(args, path, reading)?;
            Ok(None)
        }
    }
}

fn end_trace(
    args: &RecordArgs,
    path: &Path,
    writer: trace::TraceWriter<std::fs::File>,
    reading: Aggregation,
    ended: Ended,
) -> Result<RecordedTrace> {
    let finished = ended.result.and_then(|()| Ok(writer.finish()?));
    let (_, written) = finished.map_err(|error| {
        anyhow!(
            "the recording into {} ended early: {error}; what was written before is whole, try {}",
            path.display(),
            in_sentence(&suggestion(["flame", &file_word(&path.display().to_string())]))
        )
    })?;
    let reading = read_again(args, path, reading);
    if let Some(profile) = reading.profile() {
        say(profile, path, written.bytes, ended.is_only)?;
    }
    let recorded = RecordedTrace::of(reading.profile(), path, ended.at);
    end_reading(args, path, reading)?;
    Ok(recorded)
}

/// Only a second reading knows who made what was followed.
fn read_again(args: &RecordArgs, path: &Path, reading: Aggregation) -> Aggregation {
    if reading.profile().is_none_or(|profile| profile.followed_changes() == 0) {
        return reading;
    }
    let empty = || filtered_profile(&args.stacks).without_line_statistics();
    let again = || -> Result<Aggregation> {
        let trace = StoredRecording::trace(path)?;
        Ok(match reading {
            Aggregation::OomReport(_) => {
                Aggregation::OomReport(Box::new(trace.oom_report_again(OomBuilder::new(empty()))?))
            }
            _ => Aggregation::Profile(Box::new(trace.profile_again(empty())?)),
        })
    };
    again().unwrap_or(reading)
}

fn end_reading(args: &RecordArgs, path: &Path, reading: Aggregation) -> Result<()> {
    if let Aggregation::OomReport(mut reports) = reading {
        let report = oom_report_path(path);
        write_oom_report(&mut reports, &report, args.force)?;
        eprint_line(&format!("wrote the report to {}", report.display()));
    }
    Ok(())
}

/// For a recording that kept its last part: writes that now.
fn end_flight(args: &RecordArgs, mut flight: RingRecorder, ended: Ended) -> Result<RecordedTrace> {
    let folder = flight.folder().to_owned();
    let (most, segments) = flight.size();
    let reported = ended
        .result
        .map_err(anyhow::Error::new)
        .and_then(|()| flight.write(None, &mut warn).map_err(anyhow::Error::new));
    let mut reported = reported.map_err(|error| {
        anyhow!(
            "the recording ended early: {error:#}; what was kept is in {}, try {}",
            folder.display(),
            in_sentence(&suggestion([
                "join",
                &file_word(&folder.display().to_string()),
                "-o",
                "joined.bin"
            ]))
        )
    })?;
    let profile = reported.reports.profile();
    say(profile, &reported.path, reported.bytes, ended.is_only)?;
    let recorded = RecordedTrace::of(Some(profile), &reported.path, ended.at);
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
    flight.finish()?;
    Ok(recorded)
}
