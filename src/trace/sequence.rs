//! Orders a ring's segments and finds gaps.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::error::ReadError;
use super::reader::TraceReader;
use crate::model::{Record, RecordSink, RecordingStart, SinkResult};

pub(super) struct FoundSegment {
    pub(super) path: PathBuf,
    pub(super) name: String,
    /// What is missing before it.
    pub(super) before: Option<String>,
    pub(super) reader: Result<TraceReader, ReadError>,
}

pub(super) struct SegmentSequence {
    pub(super) found: Vec<FoundSegment>,
    /// Problems of other files.
    pub(super) warnings: Vec<String>,
}

/// With the recording that the file names.
type OpenedTrace = Result<(TraceReader, Option<SegmentOrigin>), ReadError>;

/// Shared by a recording's segments.
#[derive(Debug, Clone, PartialEq)]
struct SegmentOrigin {
    /// Random; older traces have none.
    recording: Option<u64>,
    start: RecordingStart,
}

/// The recording that most of `paths` belong to.
///
/// # Errors
/// The first path's error if none can be read.
pub(super) fn chosen(paths: &[PathBuf]) -> Result<SegmentSequence, ReadError> {
    let mut all: Vec<(PathBuf, OpenedTrace)> = Vec::new();
    for path in paths {
        all.push((path.clone(), TraceReader::open(path).and_then(started)));
    }
    let starts = || all.iter().filter_map(|(_, read)| read.as_ref().ok()?.1.as_ref());
    // In a tie the later, which the ring wrote last.
    let most =
        starts().max_by_key(|start| starts().filter(|other| other == start).count()).cloned();
    if all.iter().all(|(_, read)| read.is_err())
        && let Some((_, Err(error))) = all.first_mut().map(|(path, read)| (path, read))
    {
        let nothing = ReadError::Empty { path: PathBuf::new() };
        let error = std::mem::replace(error, nothing);
        // The recorder was killed before writing a head: nothing is damaged.
        return match error {
            ReadError::Empty { .. } | ReadError::HeadCut { .. } => {
                Ok(SegmentSequence { found: Vec::new(), warnings: Vec::new() })
            }
            error => Err(error),
        };
    }
    let mut sequence = SegmentSequence { found: Vec::new(), warnings: Vec::new() };
    let mut last: Option<u64> = None;
    for (path, read) in all {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (reader, start) = match read {
            Ok((reader, start)) => (Ok(reader), start),
            Err(error) => (Err(error), None),
        };
        if let (Some(start), Some(most)) = (&start, &most)
            && start != most
        {
            sequence.warnings.push(format!(
                "segment {name} belongs to another recording (of process {} on {}, not of {} on {}, or begun at another \
                 time): it is left out",
                start.start.pid, start.start.host, most.start.pid, most.start.host
            ));
            continue;
        }
        let number = number(&path);
        let before = match (last, number) {
            (Some(last), Some(number)) if number > last + 1 => Some(match number - last {
                2 => format!("segment {:08} is missing", last + 1),
                _ => format!("segments {:08} to {:08} are missing", last + 1, number - 1),
            }),
            _ => None,
        };
        last = number.or(last);
        sequence.found.push(FoundSegment { path, name, before, reader });
    }
    Ok(sequence)
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok().filter(|number| *number < u64::MAX)
}

/// `None`: the start record is lost.
fn started(mut reader: TraceReader) -> OpenedTrace {
    struct StartSink(Option<RecordingStart>);
    impl RecordSink for StartSink {
        fn record(&mut self, record: &Record) -> SinkResult {
            match record {
                Record::Start(start) => {
                    self.0 = Some(start.clone());
                    // Stop reading.
                    Err(io::Error::from(io::ErrorKind::Interrupted).into())
                }
                _ => Ok(()),
            }
        }
    }
    let mut first = StartSink(None);
    match reader.replay_with(&mut first, &mut |_| ControlFlow::Break(())) {
        Ok(_) | Err(ReadError::Sink { .. }) => {
            let recording = reader.recording();
            let origin = first.0.map(|start| SegmentOrigin { recording, start });
            Ok((reader, origin))
        }
        Err(error) => Err(error),
    }
}
