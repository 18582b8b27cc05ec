//! Writes the segments of a ring as a trace.

use std::path::{Path, PathBuf};

use crate::analysis::{OomBuilder, Profile, TotalsCounter};
use crate::files::FileCreation;
use crate::model::{EndReason, Nanos, Record, RecordSink, RecordingEnd, SinkResult};
use crate::trace::{self, TraceWriter};

use super::error::RingError;

/// A trace written from a ring, its size in bytes and its contents.
#[allow(missing_docs)]
pub struct RingRecording {
    pub path: PathBuf,
    pub bytes: u64,
    pub reports: OomBuilder,
}

/// The report's path for a trace.
pub fn oom_report_path(trace: &Path) -> PathBuf {
    trace.with_extension("oom-report.txt")
}

/// `out.bin`, `out-2.bin`, `out-3.bin`.
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

struct JoinedSink {
    writer: TraceWriter<std::fs::File>,
    reports: OomBuilder,
    tally: TotalsCounter,
    dropped: bool,
}

impl RecordSink for JoinedSink {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.tally.on_record(record);
        match record {
            Record::Keyframe(_) => self.dropped = true,
            // The recorder's totals cover the whole recording.
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

/// Joins `segments` into a trace and reads it into the empty `profile`. `end` is set if the
/// recording goes on; `warn` gets problems of segments.
pub fn join_segments(
    segments: &[PathBuf],
    path: &Path,
    creation: FileCreation,
    mut profile: Profile,
    end: Option<(Nanos, EndReason)>,
    warn: &mut dyn FnMut(String),
) -> Result<RingRecording, RingError> {
    let mut first = Profile::first_reading();
    // The second reading tells of failures.
    let _ = trace::join(segments, &mut first);
    profile.set_first(&first.into_first_reading());
    let mut joined = JoinedSink {
        writer: TraceWriter::create_as(path, creation)?,
        reports: OomBuilder::new(profile),
        tally: TotalsCounter::default(),
        dropped: false,
    };
    let mut result = trace::join(segments, &mut joined).map(|joined| {
        for warning in joined.warnings {
            warn(warning);
        }
    });
    if let (Ok(()), Some((time, reason))) = (&result, end) {
        let totals = joined.tally.totals();
        let end = joined.record(&Record::End(RecordingEnd { time, reason, totals }));
        result = end.map_err(|source| trace::ReadError::Sink { source });
    }
    let finished = joined.writer.finish();
    result.map_err(|source| RingError::Join { path: path.to_owned(), source })?;
    let (_, written) =
        finished.map_err(|source| RingError::Finish { path: path.to_owned(), source })?;
    joined.reports.profile_mut().finish();
    Ok(RingRecording { path: path.to_owned(), bytes: written.bytes, reports: joined.reports })
}
