//! A recording that goes on for days and keeps its last part: segments on the disk, of which the oldest are removed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::CreateError;
use super::writer::{RecordingNumber, TraceWriter};
use crate::files::{self, FileCreation, PlaceError};
use crate::model::{Nanos, Record, RecordSink, SinkError, SinkResult};

/// The end of a segment's name.
pub(super) const SUFFIX: &str = "memspy";
/// So many segments make up what is kept: one more, at most, is what is too much.
const SEGMENT_COUNT: u64 = 8;
/// Segments are not shorter than this.
const MIN_SEGMENT_DURATION: Duration = Duration::from_millis(100);
/// Blocks of segments are not made smaller than this for the sake of a given size: small ones compress badly.
const MIN_BLOCK_BYTES: u64 = 4 << 10;

/// How much of a recording is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At least the last stretch of this length.
    Time(Duration),
    /// At most this many bytes on the disk, and one segment. Where what a segment begins with is larger than that (a job of
    /// very many blocks): two segments.
    Bytes(u64),
    /// The last stretch of this length, limited to this many bytes.
    Either(Duration, u64),
}

impl Retention {
    /// The length in time, if one was given.
    fn time(self) -> Option<Duration> {
        match self {
            Retention::Time(time) | Retention::Either(time, _) => Some(time),
            Retention::Bytes(_) => None,
        }
    }

    /// So many bytes, if a size was given.
    fn bytes(self) -> Option<u64> {
        match self {
            Retention::Bytes(bytes) | Retention::Either(_, bytes) => Some(bytes),
            Retention::Time(_) => None,
        }
    }

    /// Both bounds; of two of a kind the narrower one.
    pub fn and(self, other: Retention) -> Retention {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        let time = self.time().into_iter().chain(other.time()).min();
        match (time, least(self.bytes(), other.bytes())) {
            (Some(time), Some(bytes)) => Retention::Either(time, bytes),
            (Some(time), None) => Retention::Time(time),
            (None, Some(bytes)) => Retention::Bytes(bytes),
            (None, None) => self,
        }
    }
}

/// Which bound made something go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionLimit {
    /// What was dropped was older than what is to be kept.
    Time,
    /// There was no room for it.
    Bytes,
}

/// Segments in a folder of their own, each of them a trace.
///
/// A segment begins with how things stand ([`TraceRing::begin`] and the records up to [`TraceRing::opened`]), so it says all
/// by itself. Whatever ends memspy, the segments stay and are readable.
pub struct TraceRing {
    folder: PathBuf,
    keep: Retention,
    done: VecDeque<RingSegment>,
    open: Option<(RingSegment, TraceWriter<File>)>,
    number: u64,
    recording: RecordingNumber,
    max_bytes: u64,
    /// What made the last segment go that went.
    bound: Option<RetentionLimit>,
}

/// A segment on the disk.
#[derive(Debug)]
struct RingSegment {
    path: PathBuf,
    from: Nanos,
    bytes: u64,
    /// Bytes of it that only say how things stood.
    opening: u64,
}

impl TraceRing {
    /// Makes the folder of a ring. One that is there already is refused, or with `overwrite` emptied of segments.
    ///
    /// # Errors
    /// The folder is there, or cannot be made.
    pub fn create(
        folder: &Path,
        keep: Retention,
        overwrite: bool,
    ) -> Result<TraceRing, CreateError> {
        let path = || folder.to_owned();
        let create = |source| CreateError::Create { path: path(), source };
        match files::create_folder(folder) {
            Ok(()) => {}
            Err(PlaceError::Exists(_)) => {
                if !overwrite {
                    return Err(CreateError::Exists { path: path() });
                }
                files::use_folder(folder).map_err(|e| CreateError::from_place(folder, e))?;
                for old in super::segments(folder).map_err(|e| create(io::Error::other(e)))? {
                    fs::remove_file(old).map_err(create)?;
                }
            }
            Err(error) => return Err(CreateError::from_place(folder, error)),
        }
        Ok(TraceRing {
            folder: folder.to_owned(),
            keep,
            recording: RecordingNumber::random(),
            done: VecDeque::new(),
            open: None,
            number: 0,
            max_bytes: 0,
            bound: None,
        })
    }

    /// Where its segments are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Begins the next segment, which goes on from `now`.
    ///
    /// # Errors
    /// The segment before could not be finished, or the new one not be made; nothing can be recorded then.
    pub fn begin(&mut self, now: Nanos) -> io::Result<()> {
        if let Some((mut segment, writer)) = self.open.take() {
            segment.bytes = writer.finish()?.1.bytes;
            self.done.push_back(segment);
        }
        self.drop_oldest(now)?;
        self.number += 1;
        let path = self.folder.join(format!("{:08}.{SUFFIX}", self.number));
        let creation = FileCreation::default();
        let mut writer =
            TraceWriter::create_part(&path, creation, self.recording).map_err(io::Error::other)?;
        if self.number == 1 {
            writer = writer.with_early_blocks();
        }
        // A segment that is full must not wait for a second of recorded time: by then it may be twice as large.
        if let Some(bytes) = self.keep.bytes() {
            writer = writer.in_blocks_of((bytes / SEGMENT_COUNT).max(MIN_BLOCK_BYTES) as usize);
        }
        self.open = Some((RingSegment { path, from: now, bytes: 0, opening: 0 }, writer));
        Ok(())
    }

    /// How things stand has been recorded; it is written at once.
    ///
    /// # Errors
    /// It could not be written.
    pub fn opened(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some((segment, _)) = &mut self.open {
            segment.opening = segment.bytes;
        }
        Ok(())
    }

    /// Whether the next segment is to begin at `now`.
    pub fn is_due(&self, now: Nanos) -> bool {
        let Some((segment, writer)) = &self.open else { return true };
        let age = Duration::from_nanos(now.0.saturating_sub(segment.from.0));
        // Segments that begin too often would consist mostly of the keyframes at their beginnings.
        let grown = writer.bytes_written().saturating_sub(segment.opening);
        let worth = grown >= segment.opening;
        let by_time = self.keep.time().is_some_and(|time| {
            let length = (time / SEGMENT_COUNT as u32).max(MIN_SEGMENT_DURATION);
            age >= length && (worth || age >= 4 * length)
        });
        by_time || self.keep.bytes().is_some_and(|bytes| worth && grown >= bytes / SEGMENT_COUNT)
    }

    /// Whether the next segment has been overdue at `now` for too long to wait for a better moment.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        let Some((segment, writer)) = &self.open else { return true };
        let age = Duration::from_nanos(now.0.saturating_sub(segment.from.0));
        let by_time = |time: Duration| age >= time.max(MIN_SEGMENT_DURATION * SEGMENT_COUNT as u32);
        let by_bytes = |bytes: u64| writer.bytes_written() >= segment.opening + bytes / 4;
        self.keep.time().is_some_and(by_time) || self.keep.bytes().is_some_and(by_bytes)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// It could not be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some((segment, writer)) = &mut self.open {
            writer.flush()?;
            segment.bytes = writer.bytes_written();
        }
        self.max_bytes = self.max_bytes.max(self.bytes());
        Ok(())
    }

    /// The segments there are, the oldest first.
    pub fn segments(&self) -> Vec<PathBuf> {
        let open = self.open.iter().map(|(segment, _)| segment);
        self.done.iter().chain(open).map(|segment| segment.path.clone()).collect()
    }

    /// Bytes on the disk.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |(_, writer)| writer.bytes_written());
        self.done.iter().map(|segment| segment.bytes).sum::<u64>() + open
    }

    /// Most bytes that there ever were on the disk.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Segments begun so far.
    pub fn begun(&self) -> u64 {
        self.number
    }

    /// What made the oldest of what was recorded go last; `None` while all of it is kept.
    pub fn bound(&self) -> Option<RetentionLimit> {
        self.bound
    }

    /// Removes all segments, and the folder if nothing else is in it.
    ///
    /// # Errors
    /// A segment could not be removed.
    pub fn remove(mut self) -> io::Result<()> {
        let open = self.open.take().map(|(segment, _)| segment);
        for segment in self.done.drain(..).chain(open) {
            fs::remove_file(&segment.path)?;
        }
        // What others put there keeps it.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    fn drop_oldest(&mut self, now: Nanos) -> io::Result<()> {
        self.max_bytes = self.max_bytes.max(self.bytes());
        loop {
            // The newest whole segment stays: the one after it may have just begun.
            // What comes after the oldest is enough.
            let old = |time: Duration| {
                self.done.get(1).is_some_and(|next| {
                    u128::from(now.0.saturating_sub(next.from.0)) >= time.as_nanos()
                })
            };
            let bound = match self.keep {
                _ if self.done.len() < 2 => None,
                keep if keep.time().is_some_and(old) => Some(RetentionLimit::Time),
                keep if keep.bytes().is_some_and(|most| self.bytes() > most) => {
                    Some(RetentionLimit::Bytes)
                }
                _ => None,
            };
            let Some(bound) = bound else { return Ok(()) };
            let Some(oldest) = self.done.pop_front() else { return Ok(()) };
            self.bound = Some(bound);
            fs::remove_file(&oldest.path)?;
        }
    }
}

impl RecordSink for TraceRing {
    fn record(&mut self, record: &Record) -> SinkResult {
        let Some((_, writer)) = &mut self.open else {
            return Err(SinkError::NotBegun);
        };
        let before = writer.bytes_written();
        writer.record(record)?;
        let grown = writer.bytes_written() > before;
        if grown {
            self.max_bytes = self.max_bytes.max(self.bytes());
            let now = record.time();
            // A ring of a given size gives room as soon as it is needed, one of a given time when a segment begins.
            if let (Some(_), Some(now)) = (self.keep.bytes(), now) {
                self.drop_oldest(now)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> SinkResult {
        Ok(self.flush()?)
    }
}
