//! Writes a trace.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;

use super::block::{BlockWriter, MAGIC};
use super::error::CreateError;
use super::wire::v1;
use super::wire::v1::encode::{RecordEncoder, RejectedRecord};
use crate::files::FileCreation;
use crate::model::{Record, RecordSink, SinkResult};

/// Payload of a block.
const MAX_BLOCK_BYTES: usize = 256 << 10;
/// Recorded time of a block.
const MAX_BLOCK_AGE: u64 = 1_000_000_000;
/// Of the first block of a recording that may be killed at any moment; doubles block by block.
const FIRST_AGE: u64 = 100_000_000;
/// Higher levels cost the recording machine time for a few per cent.
const ZSTD_LEVEL: i32 = 6;

/// In each block's head; identifies the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordingNumber(u64);

impl RecordingNumber {
    pub(super) fn random() -> RecordingNumber {
        // With the time, in case the random keys repeat.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        // The highest bit makes all numbers equally long.
        RecordingNumber(RandomState::new().hash_one(now) | 1 << 63)
    }
}

/// Writes records as a trace, block by block.
///
/// It writes a block after a second of recorded time (or less, [at
/// first](Self::with_early_blocks)), after 256 KiB, and by [`Self::flush`]. After an error all
/// calls fail, and the file is readable up to its last whole block.
pub struct TraceWriter<W: Write> {
    to: W,
    encoder: RecordEncoder,
    block_writer: BlockWriter,
    block: Vec<u8>,
    /// Payload bytes of a block.
    full: usize,
    /// Recorded time of the next block.
    age: u64,
    /// First time in the current block.
    since: Option<u64>,
    bytes: u64,
    blocks: u64,
    failed: Option<(io::ErrorKind, String)>,
}

/// A finished trace's length and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WrittenFile {
    pub bytes: u64,
    pub blocks: u64,
    pub records: u64,
}

impl TraceWriter<File> {
    /// Creates the trace at `path`, readable by its owner only.
    ///
    /// Refuses an existing file or, with `overwrite`, replaces it: readers keep the old one. Writes
    /// into a pipe or device as it is.
    pub fn create(path: impl AsRef<Path>, overwrite: bool) -> Result<Self, CreateError> {
        TraceWriter::create_as(path, FileCreation::replacing(overwrite))
    }

    /// With the file mode of `creation`.
    pub fn create_as(path: impl AsRef<Path>, creation: FileCreation) -> Result<Self, CreateError> {
        TraceWriter::create_part(path.as_ref(), creation, RecordingNumber::random())
    }

    /// One of a recording's files.
    pub(super) fn create_part(
        path: &Path,
        creation: FileCreation,
        recording: RecordingNumber,
    ) -> Result<Self, CreateError> {
        let create = |source| CreateError::Create { path: path.to_owned(), source };
        let file = creation.create(path).map_err(|error| CreateError::from_place(path, error))?;
        TraceWriter::of_recording(file, recording).map_err(create)
    }
}

impl<W: Write> TraceWriter<W> {
    /// Writes the file's head to `to`.
    pub fn new(to: W) -> io::Result<Self> {
        TraceWriter::of_recording(to, RecordingNumber::random())
    }

    pub(super) fn of_recording(mut to: W, recording: RecordingNumber) -> io::Result<Self> {
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&v1::VERSION.to_le_bytes());
        to.write_all(&head)?;
        to.flush()?;
        Ok(TraceWriter {
            to,
            encoder: RecordEncoder::new(recording.0).map_err(rejected)?,
            block_writer: BlockWriter::new(ZSTD_LEVEL)?,
            block: Vec::new(),
            full: MAX_BLOCK_BYTES,
            age: MAX_BLOCK_AGE,
            since: None,
            bytes: head.len() as u64,
            blocks: 0,
            failed: None,
        })
    }

    /// Limits blocks to about `payload` bytes, if less than usual.
    pub fn with_block_size(mut self, payload: usize) -> Self {
        self.full = self.full.min(payload);
        self
    }

    /// Writes the first block after 0.1 s, each later one after twice as long, up to the usual age:
    /// a new recording may be killed.
    pub fn with_early_blocks(mut self) -> Self {
        self.age = FIRST_AGE;
        self
    }

    /// Bytes in the file.
    pub fn bytes_written(&self) -> u64 {
        self.bytes
    }

    /// Records written or buffered.
    pub fn records(&self) -> u64 {
        self.encoder.records()
    }

    /// Writes buffered records as a block.
    pub fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        if self.encoder.is_empty() {
            return Ok(());
        }
        let written = self.write_block();
        self.note(written)
    }

    /// Writes the rest and returns the file. Without [`Record::End`] the trace counts as ended
    /// abruptly.
    pub fn finish(mut self) -> io::Result<(W, WrittenFile)> {
        self.flush()?;
        let written =
            WrittenFile { bytes: self.bytes, blocks: self.blocks, records: self.encoder.records() };
        Ok((self.to, written))
    }

    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, why)) => {
                Err(io::Error::new(*kind, format!("the trace could not be written further: {why}")))
            }
        }
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.failed = Some((error.kind(), error.to_string()));
        }
        result
    }

    fn write_block(&mut self) -> io::Result<()> {
        self.block_writer.write(self.encoder.payload(), &mut self.block)?;
        self.to.write_all(&self.block)?;
        self.to.flush()?;
        self.bytes += self.block.len() as u64;
        self.blocks += 1;
        self.since = None;
        self.encoder.next_block().map_err(rejected)
    }

    fn write_record(&mut self, record: &Record) -> io::Result<()> {
        let ends = matches!(record, Record::End(_));
        if ends {
            // The trailer has its own block.
            self.flush()?;
        }
        if let Err(why) = self.encoder.record(record) {
            self.flush()?;
            return Err(rejected(why));
        }
        let now = self.encoder.time();
        let since = *self.since.get_or_insert(now);
        let full = self.encoder.payload().len() >= self.full;
        if ends || full || now.saturating_sub(since) >= self.age {
            self.age = MAX_BLOCK_AGE.min(2 * self.age);
            self.flush()?;
        }
        Ok(())
    }
}

impl<W: Write> RecordSink for TraceWriter<W> {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.check()?;
        let taken = self.write_record(record);
        Ok(self.note(taken)?)
    }

    fn sync(&mut self) -> SinkResult {
        Ok(self.flush()?)
    }
}

fn rejected(why: RejectedRecord) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
