//! From the segments of a ring to a trace and a report.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use crate::analysis::{OomReportBuilder, Profile, TotalsCounter, TriggerCondition, TriggerWatch};
use crate::cli::args::{JoinArgs, OomReportArgs};
use crate::cli::flame::into_io;
use crate::cli::replay::{self, StoredRecording};
use crate::cli::{eprint_line, filtered_profile, output};
use crate::model::{EndReason, Nanos, Record, RecordSink, RecordingEnd};
use crate::render;
use crate::trace::{self, TraceWriter};

/// A recording written from a ring.
pub struct RingRecording {
    /// The trace.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it shows.
    pub reports: OomReportBuilder,
}

impl RingRecording {
    /// Writes the report beside the trace; returns its file.
    pub(in crate::cli) fn write_oom_report(&mut self, force: bool) -> Result<PathBuf> {
        let path = oom_report_path(&self.path);
        write_oom_report(&mut self.reports, &path, force)?;
        Ok(path)
    }
}

/// The file of the report on a trace.
pub(in crate::cli) fn oom_report_path(trace: &Path) -> PathBuf {
    trace.with_extension("oom-report.txt")
}

/// The name of the `number`th recording: `out.bin`, `out-2.bin`, `out-3.bin`.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    if number <= 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    path.with_file_name(name)
}

/// Where the joined records go.
struct JoinedSink {
    writer: TraceWriter<std::fs::File>,
    reports: OomReportBuilder,
    tally: TotalsCounter,
    dropped: bool,
}

impl RecordSink for JoinedSink {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.tally.on_record(record);
        match record {
            Record::Keyframe(_) => self.dropped = true,
            // The recorder's sums are those of the whole recording.
            Record::End(end) if self.dropped => {
                let end = Record::End(RecordingEnd { totals: self.tally.totals(), ..end.clone() });
                self.writer.record(&end)?;
                return self.reports.record(&end);
            }
            _ => {}
        }
        self.writer.record(record)?;
        self.reports.record(record)
    }
}

/// Joins `segments` into the trace at `path`, read into the empty `profile`. `end` is for a recording that goes on.
pub(super) fn write(
    segments: &[PathBuf],
    path: &Path,
    force: bool,
    profile: Profile,
    end: Option<(Nanos, EndReason)>,
) -> Result<RingRecording> {
    let mut joined = JoinedSink {
        writer: TraceWriter::create_as(path, output::creation(force))?,
        reports: OomReportBuilder::new(profile),
        tally: TotalsCounter::default(),
        dropped: false,
    };
    let mut result = trace::join(segments, &mut joined).map(|joined| {
        for warning in joined.warnings {
            eprint_line(&format!("warning: {warning}"));
        }
    });
    if let (Ok(()), Some((time, reason))) = (&result, end) {
        let totals = joined.tally.totals();
        let end = joined.record(&Record::End(RecordingEnd { time, reason, totals }));
        result = end.map_err(|source| trace::ReadError::Sink { source });
    }
    let finished = joined.writer.finish();
    result.with_context(|| format!("cannot write {}", path.display()))?;
    let (_, written) = finished.with_context(|| format!("cannot write {}", path.display()))?;
    joined.reports.profile_mut().finish();
    Ok(RingRecording { path: path.to_owned(), bytes: written.bytes, reports: joined.reports })
}

/// Writes the report.
pub(in crate::cli) fn write_oom_report(
    reports: &mut OomReportBuilder,
    path: &Path,
    force: bool,
) -> Result<()> {
    let report = reports.report();
    output::write(path, force, |out| {
        render::oom_report_text(out, reports.profile(), &report).map_err(into_io)
    })
}

/// `memspy oom-report`.
pub(in crate::cli) fn oom_report(args: &OomReportArgs) -> Result<()> {
    let profile = filtered_profile(&args.stacks).without_line_statistics();
    let reports = OomReportBuilder::new(profile);
    let reports = match args.until.is_empty() {
        true => reports.with_trigger(TriggerWatch::new(vec!["oom".parse::<TriggerCondition>()?])),
        false => reports.only(TriggerWatch::new(args.until.clone())),
    };
    let mut reports = StoredRecording::trace_or_ring(&args.trace).oom_report(reports)?;
    let start = reports.profile().start();
    let path = output::of_report(args.output.as_deref(), start, PathBuf::from("-"))?;
    write_oom_report(&mut reports, &path, args.force)?;
    output::wrote(&path);
    Ok(())
}

/// `memspy join`.
pub(in crate::cli) fn join(args: &JoinArgs) -> Result<()> {
    let segments = replay::found(&args.ring)?;
    // A first pass tells what the name may need.
    let bytes = segments.iter().filter_map(|segment| std::fs::metadata(segment).ok());
    let bytes = bytes.map(|file| file.len()).sum();
    let empty = || {
        let mut profile = Profile::new().without_line_statistics();
        replay::limit(&mut profile, bytes);
        profile
    };
    let path = match &args.output {
        Some(path) if path.to_string_lossy().contains('%') => {
            let mut profile = empty();
            trace::join(&segments, &mut profile)?;
            output::expand(path, profile.start().into())?
        }
        Some(path) => path.clone(),
        None => args.ring.with_extension("bin"),
    };
    output::check(&path, args.force)?;
    let reported = write(&segments, &path, args.force, empty(), None)?;
    if reported.reports.profile().start().is_none() {
        let _ = std::fs::remove_file(&path);
        return Err(anyhow!("the segments in {} have no whole block", args.ring.display()));
    }
    let mut err = io::stderr().lock();
    render::summary(
        &mut err,
        reported.reports.profile(),
        &path.display().to_string(),
        reported.bytes,
    )?;
    Ok(())
}
