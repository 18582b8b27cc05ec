//! Joins a ring's segments and marks gaps.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ReadError;
use super::reader::TraceReader;
use super::renumberer::{DefinitionTables, Renumberer};
use super::ring::SUFFIX;
use super::sequence::{FoundSegment, SegmentSequence, chosen};
use super::summary::ReplaySummary;
use crate::model::{Nanos, Record, RecordSink, RecordingGap, SinkResult};

/// A ring's segments, oldest first.
///
/// # Errors
/// [`ReadError::Open`]: the folder cannot be listed.
pub fn segments(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let open = |source| ReadError::Open { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(open)? {
        let path = entry.map_err(open)?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            found.push(path);
        }
    }
    // Names are numbers with leading zeros.
    found.sort();
    Ok(found)
}

/// A joined recording.
#[derive(Debug, Default)]
pub struct JoinResult {
    /// The segments read.
    pub segments: Vec<(PathBuf, ReplaySummary)>,
    /// Problems, one sentence each; empty for one whole recording.
    pub warnings: Vec<String>,
}

/// Gives `sink` the records of one recording, that of most `segments`.
///
/// Leaves out a segment's opening state if the segment before it is whole. After a missing or
/// damaged one, gives [`Record::Gap`] and the opening state.
///
/// # Errors
/// No segment is readable, or the sink refuses a record.
pub fn join(segments: &[PathBuf], sink: &mut dyn RecordSink) -> Result<JoinResult, ReadError> {
    let SegmentSequence { found, mut warnings } = chosen(segments)?;
    let mut joining = RecordingJoin::new(sink);
    let mut summaries: Vec<(PathBuf, ReplaySummary)> = Vec::new();
    let count = found.len();
    for (n, segment) in found.into_iter().enumerate() {
        let FoundSegment { path, name, before, reader } = segment;
        let is_last = n + 1 == count;
        if let Some(why) = before {
            joining.miss_after_all(&why);
            warnings.push(why);
        }
        let before = joining.begun;
        let read = reader.and_then(|mut reader| joining.read(&mut reader));
        let (summary, outcome) = match read {
            Ok(read) => read,
            Err(error @ ReadError::Sink { .. }) => return Err(error),
            // The recorder was perhaps killed before it wrote the head.
            Err(ReadError::Empty { .. } | ReadError::HeadCut { .. }) if is_last => continue,
            Err(error) => {
                let why = format!("segment {name} cannot be read: {error}");
                joining.miss_after_all(&why);
                warnings.push(why);
                continue;
            }
        };
        let is_damaged = summary.first_damage.is_some();
        match outcome {
            SegmentOutcome::Read { skipped } => warnings.extend(skipped),
            SegmentOutcome::Repeats => {
                let why = format!("segment {name} begins before the preceding one: it is left out");
                warnings.push(why);
                summaries.push((path, summary));
                continue;
            }
            SegmentOutcome::WithoutOpening if is_last && !is_damaged => {}
            SegmentOutcome::WithoutOpening => {
                let why = format!("segment {name} is incomplete at its start: it is left out");
                joining.miss_after_all(&why);
                warnings.push(why);
            }
        }
        if let Some(why) = damage(&name, &summary, is_last) {
            match is_damaged {
                // The damage may be anywhere in the segment.
                true => joining.miss(&why, joining.begun.max(before).unwrap_or_default()),
                false => joining.miss_after_all(&why),
            }
            warnings.push(why);
        }
        summaries.push((path, summary));
    }
    joining.finish()?;
    Ok(JoinResult { segments: summaries, warnings })
}

fn damage(name: &str, summary: &ReplaySummary, is_last: bool) -> Option<String> {
    if let Some(first) = &summary.first_damage {
        return Some(format!(
            "segment {name} is damaged in {} places, first at byte {} ({}): {} blocks with {} records are lost, {} more \
             records use what was lost",
            summary.damaged_places,
            first.offset,
            first.why,
            summary.lost_blocks,
            summary.lost_records,
            summary.dropped_records
        ));
    }
    // Only the last segment can have been open at the recorder's end.
    (!is_last && summary.unfinished_bytes > 0).then(|| {
        format!(
            "segment {name} is cut off: its last {} bytes are an incomplete block",
            summary.unfinished_bytes
        )
    })
}

enum SegmentOutcome {
    /// Passed on. `skipped`: a new gap before it.
    Read { skipped: Option<String> },
    /// It begins no later than its predecessor.
    Repeats,
    /// Its opening, which its records need, is lost.
    WithoutOpening,
}

struct RecordingJoin<'a> {
    rewriter: Renumberer,
    sink: &'a mut dyn RecordSink,
    /// Latest time passed on.
    last: Option<Nanos>,
    /// Of the last segment read.
    begun: Option<Nanos>,
    /// Held back until all gaps are known.
    end: Option<Record>,
    /// Not passed on yet.
    missing: Option<MissingRange>,
}

struct MissingRange {
    why: String,
    from: Nanos,
}

impl<'a> RecordingJoin<'a> {
    fn new(sink: &'a mut dyn RecordSink) -> RecordingJoin<'a> {
        RecordingJoin {
            rewriter: Renumberer::new(),
            sink,
            last: None,
            begun: None,
            end: None,
            missing: None,
        }
    }

    fn miss(&mut self, why: &str, from: Nanos) {
        match &mut self.missing {
            Some(missing) => {
                missing.why = format!("{}; {why}", missing.why);
                missing.from = missing.from.min(from);
            }
            None => self.missing = Some(MissingRange { why: why.to_owned(), from }),
        }
    }

    fn miss_after_all(&mut self, why: &str) {
        self.miss(why, self.last.unwrap_or_default());
    }

    fn read(
        &mut self,
        reader: &mut TraceReader,
    ) -> Result<(ReplaySummary, SegmentOutcome), ReadError> {
        self.rewriter.reset();
        let state = match (self.last, &self.missing) {
            (None, None) => SegmentState::Open,
            _ => SegmentState::Opening { records: Vec::new(), latest: Nanos(0) },
        };
        let (names, out) = (DefinitionTables::default(), Vec::new());
        let mut segment = JoinSegment { names, to: self, out, state, skipped: None };
        let summary = reader.replay(&mut segment)?;
        let outcome = match segment.state {
            SegmentState::Open => SegmentOutcome::Read { skipped: segment.skipped },
            SegmentState::Repeats => SegmentOutcome::Repeats,
            SegmentState::Opening { .. } | SegmentState::Lost => SegmentOutcome::WithoutOpening,
        };
        Ok((summary, outcome))
    }

    fn give(&mut self, record: &Record) -> SinkResult {
        if let Some(time) = record.time() {
            self.last = self.last.max(Some(time));
        }
        self.last = self.last.or(Some(Nanos(0)));
        if let Record::End(_) = record {
            self.end = Some(record.clone());
            return Ok(());
        }
        self.sink.record(record)
    }

    fn pass_gap(&mut self, to: Nanos) -> SinkResult {
        match self.missing.take() {
            Some(MissingRange { why, from }) => {
                self.give(&Record::Gap(RecordingGap { from: from.min(to), to, why }))
            }
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), ReadError> {
        let passed = match self.last {
            Some(last) => self.pass_gap(last),
            None => Ok(()),
        };
        let ended = match self.end.take() {
            Some(end) => passed.and_then(|()| self.sink.record(&end)),
            None => passed,
        };
        ended.map_err(|source| ReadError::Sink { source })
    }
}

enum SegmentState {
    /// The state at the beginning, with its latest time.
    Opening { records: Vec<Record>, latest: Nanos },
    /// Observations.
    Open,
    /// It begins no later than its predecessor.
    Repeats,
    /// Its opening is incomplete.
    Lost,
}

struct JoinSegment<'a, 'b> {
    names: DefinitionTables,
    to: &'a mut RecordingJoin<'b>,
    out: Vec<Record>,
    state: SegmentState,
    /// A gap before it, not yet reported.
    skipped: Option<String>,
}

impl JoinSegment<'_, '_> {
    fn pass(&mut self, record: &Record) -> SinkResult {
        self.to.rewriter.rewrite(&self.names, record, &mut self.out);
        for record in self.out.drain(..) {
            self.to.give(&record)?;
        }
        Ok(())
    }

    /// The keyframe is the opening's last record.
    fn open(&mut self, begins: Nanos, opening: &[Record], latest: Nanos) -> SinkResult {
        if self.to.begun.is_some_and(|before| begins <= before) {
            self.state = SegmentState::Repeats;
            return Ok(());
        }
        self.state = SegmentState::Open;
        if let Some(last) = self.to.last.filter(|last| self.to.missing.is_none() && latest > *last)
        {
            // Observations that no segment has.
            let why = format!(
                "what was recorded between {:.3} and {:.3} s is missing: the segment before is cut off",
                last.seconds(),
                begins.seconds()
            );
            self.to.miss_after_all(&why);
            self.skipped = Some(why);
        }
        self.to.begun = Some(begins);
        if self.to.missing.is_none() {
            return Ok(());
        }
        // The start record comes first.
        let mut opening = opening.iter();
        if self.to.last.is_none()
            && let Some(start) = opening.next()
        {
            self.pass(start)?;
        }
        self.to.pass_gap(begins)?;
        opening.try_for_each(|record| self.pass(record))
    }

    /// Without keyframe: the recording's beginning, or damage.
    fn without_inheritance(&mut self, opening: &[Record], record: &Record) -> SinkResult {
        self.state = match self.to.last {
            None => SegmentState::Open,
            Some(_) => SegmentState::Lost,
        };
        if self.to.last.is_none() {
            opening.iter().try_for_each(|record| self.pass(record))?;
        }
        self.record(record)
    }
}

impl RecordSink for JoinSegment<'_, '_> {
    fn record(&mut self, record: &Record) -> SinkResult {
        if self.names.on_definition(record) {
            self.to.rewriter.redefined(record);
            return Ok(());
        }
        match &mut self.state {
            SegmentState::Open => {
                if let Record::Keyframe(inherited) = record {
                    self.to.begun = Some(inherited.time);
                }
                self.pass(record)
            }
            SegmentState::Repeats => Ok(()),
            SegmentState::Lost => match record {
                Record::End(_) => self.to.give(record),
                _ => Ok(()),
            },
            SegmentState::Opening { records, latest } => match record {
                Record::Keyframe(inherited) => {
                    let begins = inherited.time;
                    let (mut opening, latest) = (std::mem::take(records), *latest);
                    opening.push(record.clone());
                    self.open(begins, &opening, latest)
                }
                // An opening has none of these.
                Record::Events(_)
                | Record::Missed(_)
                | Record::CounterCheck(_)
                | Record::Step(_)
                | Record::TriggerFired(_)
                | Record::OomException(_)
                | Record::Gap(_)
                | Record::End(_) => {
                    let opening = std::mem::take(records);
                    self.without_inheritance(&opening, record)
                }
                Record::Sample(_) if records.iter().any(|r| matches!(r, Record::Sample(_))) => {
                    let opening = std::mem::take(records);
                    self.without_inheritance(&opening, record)
                }
                other => {
                    *latest = (*latest).max(other.time().unwrap_or_default());
                    records.push(other.clone());
                    Ok(())
                }
            },
        }
    }
}
