//! From the segments of a ring to one recording, with what is missing in it marked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::ReadError;
use super::reader::Reader;
use super::rewrite::{Names, Rewriter};
use super::ring::SUFFIX;
use super::sequence::{Found, Sequence, chosen};
use super::summary::Summary;
use crate::model::{Gap, Nanos, Record, RecordSink};

/// The segments in the folder of a ring, the oldest first.
///
/// # Errors
/// [`ReadError::Open`] when the folder cannot be listed.
pub fn segments(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let open = |source| ReadError::Open { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(open)? {
        let path = entry.map_err(open)?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            found.push(path);
        }
    }
    // Their numbers have leading zeros.
    found.sort();
    Ok(found)
}

/// What came of joining segments.
#[derive(Debug, Default)]
pub struct Joined {
    /// What was found in each segment that was read.
    pub segments: Vec<(PathBuf, Summary)>,
    /// What is wrong with them, a sentence each; empty when they are one whole recording.
    pub warnings: Vec<String>,
}

/// Gives the records of `segments`, the oldest first, to `sink` as those of one recording: that of most of them.
///
/// How things stood at the border of two segments is left out, for the segment before tells it. Where one is missing or
/// damaged a [`Record::Gap`] says so, and how things stood behind it is given. Segments of other recordings are left out.
///
/// # Errors
/// No segment can be read, or the sink takes no more.
pub fn join(segments: &[PathBuf], sink: &mut dyn RecordSink) -> Result<Joined, ReadError> {
    let Sequence { found, mut warnings } = chosen(segments)?;
    let mut joining = Joining {
        rewriter: Rewriter::new(),
        sink,
        last: None,
        begun: None,
        end: None,
        missing: None,
    };
    let mut summaries: Vec<(PathBuf, Summary)> = Vec::new();
    let count = found.len();
    for (n, segment) in found.into_iter().enumerate() {
        let Found { path, name, before, reader } = segment;
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
            // The last one may have been killed before its head was written.
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
            Outcome::Read { skipped } => warnings.extend(skipped),
            Outcome::Repeats => {
                let why = format!(
                    "segment {name} begins before the one that stands before it: it is left out"
                );
                warnings.push(why);
                summaries.push((path, summary));
                continue;
            }
            // The last one may have been killed while its opening was written.
            Outcome::WithoutOpening if is_last && !is_damaged => {}
            Outcome::WithoutOpening => {
                let why = format!("segment {name} is not whole where it begins: it is left out");
                joining.miss_after_all(&why);
                warnings.push(why);
            }
        }
        if let Some(why) = damage(&name, &summary, is_last) {
            match is_damaged {
                // Anywhere in it.
                true => joining.miss(&why, joining.begun.max(before).unwrap_or_default()),
                false => joining.miss_after_all(&why),
            }
            warnings.push(why);
        }
        summaries.push((path, summary));
    }
    joining.finish()?;
    Ok(Joined { segments: summaries, warnings })
}

/// What of a segment that was read is not there.
fn damage(name: &str, summary: &Summary, is_last: bool) -> Option<String> {
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
    // Only the last one may have been written when the recorder ended.
    (!is_last && summary.unfinished_bytes > 0).then(|| {
        format!(
            "segment {name} is cut off: its last {} bytes are no whole block",
            summary.unfinished_bytes
        )
    })
}

/// What became of a segment.
enum Outcome {
    /// Its records were given on; `skipped` says what is missing before it and was not known to be.
    Read { skipped: Option<String> },
    /// It begins before what was read already.
    Repeats,
    /// What it begins with is lost, and so what its records rest on.
    WithoutOpening,
}

/// The recording being put together.
struct Joining<'a> {
    rewriter: Rewriter,
    sink: &'a mut dyn RecordSink,
    /// The latest time given on; `None` before the first record.
    last: Option<Nanos>,
    /// When the segment began that was read last.
    begun: Option<Nanos>,
    /// The recording's end, which is given on when all is known that is missing.
    end: Option<Record>,
    /// What is missing and was not told yet.
    missing: Option<Missing>,
}

/// What is missing, and since when.
struct Missing {
    why: String,
    from: Nanos,
}

impl Joining<'_> {
    /// From here on something is missing, for this reason.
    fn miss(&mut self, why: &str, from: Nanos) {
        match &mut self.missing {
            Some(missing) => {
                missing.why = format!("{}; {why}", missing.why);
                missing.from = missing.from.min(from);
            }
            None => self.missing = Some(Missing { why: why.to_owned(), from }),
        }
    }

    /// The same behind all that was read.
    fn miss_after_all(&mut self, why: &str) {
        self.miss(why, self.last.unwrap_or_default());
    }

    /// Reads a segment.
    fn read(&mut self, reader: &mut Reader) -> Result<(Summary, Outcome), ReadError> {
        self.rewriter.turn();
        let state = match (self.last, &self.missing) {
            (None, None) => State::Open,
            _ => State::Opening { records: Vec::new(), latest: Nanos(0) },
        };
        let (names, out) = (Names::default(), Vec::new());
        let mut segment = Segment { names, to: self, out, state, skipped: None };
        let summary = reader.replay(&mut segment)?;
        let outcome = match segment.state {
            State::Open => Outcome::Read { skipped: segment.skipped },
            State::Repeats => Outcome::Repeats,
            State::Opening { .. } | State::Lost => Outcome::WithoutOpening,
        };
        Ok((summary, outcome))
    }

    fn give(&mut self, record: &Record) -> io::Result<()> {
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

    /// Gives on that something is missing up to `to`.
    fn tell_missing(&mut self, to: Nanos) -> io::Result<()> {
        match self.missing.take() {
            Some(Missing { why, from }) => {
                self.give(&Record::Gap(Gap { from: from.min(to), to, why }))
            }
            None => Ok(()),
        }
    }

    /// Ends the recording.
    fn finish(&mut self) -> Result<(), ReadError> {
        let told = match self.last {
            Some(last) => self.tell_missing(last),
            None => Ok(()),
        };
        let ended = match self.end.take() {
            Some(end) => told.and_then(|()| self.sink.record(&end)),
            None => told,
        };
        ended.map_err(|source| ReadError::Sink { source })
    }
}

/// How far a segment is read.
enum State {
    /// Its records say how things stood when it began; `latest` is the latest time that they tell of.
    Opening { records: Vec<Record>, latest: Nanos },
    /// What happens.
    Open,
    /// It begins before what was read already.
    Repeats,
    /// Its opening is not whole.
    Lost,
}

/// One segment being read.
struct Segment<'a, 'b> {
    names: Names,
    to: &'a mut Joining<'b>,
    out: Vec<Record>,
    state: State,
    /// What is missing before it, where nothing else told.
    skipped: Option<String>,
}

impl Segment<'_, '_> {
    fn pass(&mut self, record: &Record) -> io::Result<()> {
        self.to.rewriter.rewrite(&self.names, record, &mut self.out);
        for record in self.out.drain(..) {
            self.to.give(&record)?;
        }
        Ok(())
    }

    /// The opening is over with the inheritance, which is its last record; it tells of times up to `latest`.
    fn open(&mut self, begins: Nanos, opening: &[Record], latest: Nanos) -> io::Result<()> {
        if self.to.begun.is_some_and(|before| begins <= before) {
            self.state = State::Repeats;
            return Ok(());
        }
        self.state = State::Open;
        if let Some(last) = self.to.last.filter(|last| self.to.missing.is_none() && latest > *last)
        {
            // How things stood was last seen at a time of which no segment tells.
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
        // What was recorded, and how, always comes first.
        let mut opening = opening.iter();
        if self.to.last.is_none()
            && let Some(start) = opening.next()
        {
            self.pass(start)?;
        }
        self.to.tell_missing(begins)?;
        opening.try_for_each(|record| self.pass(record))
    }

    /// There is no inheritance: what the records rest on is lost, or they are those of the recording's own beginning.
    fn without_inheritance(&mut self, opening: &[Record], record: &Record) -> io::Result<()> {
        self.state = match self.to.last {
            None => State::Open,
            Some(_) => State::Lost,
        };
        if self.to.last.is_none() {
            opening.iter().try_for_each(|record| self.pass(record))?;
        }
        self.record(record)
    }
}

impl RecordSink for Segment<'_, '_> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        if self.names.take(record) {
            self.to.rewriter.redefined(record);
            return Ok(());
        }
        match &mut self.state {
            State::Open => {
                if let Record::Inherited(inherited) = record {
                    self.to.begun = Some(inherited.time);
                }
                self.pass(record)
            }
            State::Repeats => Ok(()),
            State::Lost => match record {
                Record::End(_) => self.to.give(record),
                _ => Ok(()),
            },
            State::Opening { records, latest } => match record {
                Record::Inherited(inherited) => {
                    let begins = inherited.time;
                    let (mut opening, latest) = (std::mem::take(records), *latest);
                    opening.push(record.clone());
                    self.open(begins, &opening, latest)
                }
                // Nothing of this stands in an opening.
                Record::Events(_)
                | Record::Missed(_)
                | Record::Reconciled(_)
                | Record::Step(_)
                | Record::Triggered(_)
                | Record::Thrown(_)
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
