//! Keeps a long recording's last part in segments.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::CreateError;
use super::writer::{RecordingNumber, TraceWriter};
use crate::files::{self, FileCreation, PlaceError};
use crate::model::{Nanos, Record, RecordSink, SinkError, SinkResult};

pub(super) const SUFFIX: &str = "memspy";
/// Segments of the retained part; the excess is at most one more.
const SEGMENT_COUNT: u64 = 8;
const MIN_SEGMENT_DURATION: Duration = Duration::from_millis(100);
/// Smaller blocks compress badly.
const MIN_BLOCK_BYTES: u64 = 4 << 10;

/// How much of a recording is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At least the last part of this length.
    Time(Duration),
    /// At most this many bytes on disk, plus one segment (two, if a segment's opening is larger).
    Bytes(u64),
    /// The last part of this length, limited to this many bytes.
    Either(Duration, u64),
}

impl Retention {
    fn time(self) -> Option<Duration> {
        match self {
            Retention::Time(time) | Retention::Either(time, _) => Some(time),
            Retention::Bytes(_) => None,
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            Retention::Bytes(bytes) | Retention::Either(_, bytes) => Some(bytes),
            Retention::Time(_) => None,
        }
    }

    /// Both bounds; of equal kinds the narrower.
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

/// The bound that removed a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionLimit {
    /// It was too old.
    Time,
    /// There was no room.
    Bytes,
}

/// Segments, each a trace, in their own folder.
///
/// A segment begins with the current state ([`RecordingRing::begin`] to
/// [`RecordingRing::opened`]), so it is readable alone. Segments stay however memspy ends.
pub struct RecordingRing {
    folder: PathBuf,
    keep: Retention,
    done: VecDeque<RingPart>,
    open: Option<(RingPart, TraceWriter<File>)>,
    number: u64,
    recording: RecordingNumber,
    max_bytes: u64,
    /// Of the last removed segment.
    bound: Option<RetentionLimit>,
}

#[derive(Debug)]
struct RingPart {
    path: PathBuf,
    from: Nanos,
    bytes: u64,
    /// Bytes of its opening state.
    opening: u64,
}

impl RecordingRing {
    /// Creates the folder. Refuses an existing one or, with `overwrite`, removes its segments.
    pub fn create(
        folder: &Path,
        keep: Retention,
        overwrite: bool,
    ) -> Result<RecordingRing, CreateError> {
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
        Ok(RecordingRing {
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

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Begins the next segment at `now`.
    ///
    /// # Errors
    /// The previous one could not be finished, or the new one not created.
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
        // A second of recorded time could grow the segment to twice its size.
        if let Some(bytes) = self.keep.bytes() {
            writer = writer.with_block_size((bytes / SEGMENT_COUNT).max(MIN_BLOCK_BYTES) as usize);
        }
        self.open = Some((RingPart { path, from: now, bytes: 0, opening: 0 }, writer));
        Ok(())
    }

    /// Ends the opening state and writes it at once.
    pub fn opened(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some((segment, _)) = &mut self.open {
            segment.opening = segment.bytes;
        }
        Ok(())
    }

    /// The next segment should begin at `now`.
    pub fn is_due(&self, now: Nanos) -> bool {
        let Some((segment, writer)) = &self.open else { return true };
        let age = Duration::from_nanos(now.0.saturating_sub(segment.from.0));
        // Count growth after the opening, or short segments would consist mostly of keyframes.
        let grown = writer.bytes_written().saturating_sub(segment.opening);
        let worth = grown >= segment.opening;
        let by_time = self.keep.time().is_some_and(|time| {
            let length = (time / SEGMENT_COUNT as u32).max(MIN_SEGMENT_DURATION);
            age >= length && (worth || age >= 4 * length)
        });
        by_time || self.keep.bytes().is_some_and(|bytes| worth && grown >= bytes / SEGMENT_COUNT)
    }

    /// The next segment cannot wait for a better moment.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        let Some((segment, writer)) = &self.open else { return true };
        let age = Duration::from_nanos(now.0.saturating_sub(segment.from.0));
        let by_time = |time: Duration| age >= time.max(MIN_SEGMENT_DURATION * SEGMENT_COUNT as u32);
        let by_bytes = |bytes: u64| writer.bytes_written() >= segment.opening + bytes / 4;
        self.keep.time().is_some_and(by_time) || self.keep.bytes().is_some_and(by_bytes)
    }

    /// Writes buffered records.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some((segment, writer)) = &mut self.open {
            writer.flush()?;
            segment.bytes = writer.bytes_written();
        }
        self.max_bytes = self.max_bytes.max(self.bytes());
        Ok(())
    }

    /// Existing segments, oldest first.
    pub fn segments(&self) -> Vec<PathBuf> {
        let open = self.open.iter().map(|(segment, _)| segment);
        self.done.iter().chain(open).map(|segment| segment.path.clone()).collect()
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |(_, writer)| writer.bytes_written());
        self.done.iter().map(|segment| segment.bytes).sum::<u64>() + open
    }

    /// Most bytes ever on disk.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Number of segments begun.
    pub fn begun(&self) -> u64 {
        self.number
    }

    /// The bound that last removed a segment.
    pub fn bound(&self) -> Option<RetentionLimit> {
        self.bound
    }

    /// Removes all segments, then the folder if empty.
    pub fn remove(mut self) -> io::Result<()> {
        let open = self.open.take().map(|(segment, _)| segment);
        for segment in self.done.drain(..).chain(open) {
            fs::remove_file(&segment.path)?;
        }
        // Other files keep the folder.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    fn drop_oldest(&mut self, now: Nanos) -> io::Result<()> {
        self.max_bytes = self.max_bytes.max(self.bytes());
        loop {
            // Keep the newest whole segment: its successor may have just begun. Drop segments whose
            // successors suffice.
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

impl RecordSink for RecordingRing {
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
            // A size bound makes room on demand, a time bound at each new segment.
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
