//! Reads a trace's records.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::block::{BLOCK_HEAD, BlockError, BlockHeader, BlockReader, FILE_HEAD, MAGIC, SYNC};
use super::error::ReadError;
use super::sniff::guess_format;
use super::summary::{DamagedPlace, ReplayProgress, ReplaySummary};
use super::window::{TraceWindow, WindowError};
use super::wire::v1;
use super::wire::v1::decode::{DecodeCounts, DecodeStop, RecordDecoder};
use super::wire::v1::varint::PayloadCursor;
use crate::model::RecordSink;

/// Bytes searched at a time for the next good block.
const STRIDE: u64 = 1 << 20;
/// A false block start costs a search of the bytes that it claims. The bound is this plus four
/// times the file: else a file of false starts would cost the square of its size.
const MAX_SEARCH_BYTES: u64 = 64 << 20;
const MISSING_BLOCKS: &str = "blocks are missing before this one";
const MISSING_RECORDS: &str = "records are missing before this block";
const GIVEN_UP: &str = "too much looks like a block but is not one: what follows was not searched";

/// An open trace.
#[derive(Debug)]
pub struct TraceReader {
    path: PathBuf,
    window: TraceWindow,
    version: u16,
    /// From the first block read.
    recording: Option<u64>,
}

impl TraceReader {
    /// Opens the trace at `path`, which may still grow.
    pub fn open(path: impl AsRef<Path>) -> Result<TraceReader, ReadError> {
        let path = path.as_ref().to_owned();
        let open = |source| ReadError::Open { path: path.clone(), source };
        // Opening a pipe would wait for its other end.
        let kind = std::fs::metadata(&path).map_err(open)?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "a directory" } else { "a pipe, a socket or a device" };
            return Err(ReadError::NotAFile { path, what });
        }
        let file = File::open(&path).map_err(open)?;
        TraceReader::new(path, TraceWindow::new(file))
    }

    /// Opens a trace in memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<TraceReader, ReadError> {
        TraceReader::new("(memory)".into(), TraceWindow::Memory(bytes.into()))
    }

    fn new(path: PathBuf, mut window: TraceWindow) -> Result<TraceReader, ReadError> {
        let length = match window.length() {
            Ok(length) => length,
            Err(source) => return Err(ReadError::Open { path, source }),
        };
        if length == 0 {
            return Err(ReadError::Empty { path });
        }
        let mut head = [0; 64];
        let seen = length.min(head.len() as u64) as usize;
        match window.bytes(0, seen, length) {
            Ok(bytes) => head[..seen].copy_from_slice(bytes),
            Err(why) => return Err(unreadable(&path, why, 0, length)),
        }
        let magic = seen.min(MAGIC.len());
        if head[..magic] != MAGIC[..magic] {
            let looks_like = guess_format(&head[..seen]);
            return Err(ReadError::NotATrace { path, looks_like });
        }
        if seen < FILE_HEAD {
            return Err(ReadError::HeadCut { path, bytes: length });
        }
        match u16::from_le_bytes([head[8], head[9]]) {
            version @ v1::VERSION => Ok(TraceReader { path, window, version, recording: None }),
            0 => Err(ReadError::NotATrace {
                path,
                looks_like: "a trace of version 0, which never existed",
            }),
            found => Err(ReadError::NewerVersion { path, found, supported: v1::VERSION }),
        }
    }

    /// Known after reading; older files have none.
    pub(super) fn recording(&self) -> Option<u64> {
        self.recording
    }

    /// Format version of the file.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The file's length now.
    pub fn length(&self) -> Result<u64, ReadError> {
        self.window.length().map_err(|source| ReadError::Read {
            path: self.path.clone(),
            offset: 0,
            source,
        })
    }

    /// Gives `sink` all records of good blocks, as written.
    ///
    /// Each call reads from the start to the end that the file had at the call.
    pub fn replay(&mut self, sink: &mut dyn RecordSink) -> Result<ReplaySummary, ReadError> {
        self.replay_with(sink, &mut |_| ControlFlow::Continue(()))
    }

    /// [`Self::replay`] that calls `progress` after each block, which may end it.
    pub fn replay_with(
        &mut self,
        sink: &mut dyn RecordSink,
        progress: &mut dyn FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplaySummary, ReadError> {
        let total = self.length()?;
        let block_reader =
            BlockReader::new().map_err(|source| ReadError::Decompressor { source })?;
        Replay {
            path: &self.path,
            window: &mut self.window,
            recording: &mut self.recording,
            is_begun: false,
            total,
            block_reader,
            decoder: RecordDecoder::new(total),
            tally: DecodeCounts::default(),
            next_block: 0,
            next_record: 0,
            in_damage: false,
            search_left: MAX_SEARCH_BYTES + 4 * total,
            summary: ReplaySummary {
                version: self.version,
                bytes: total,
                ..ReplaySummary::default()
            },
        }
        .run(sink, progress)
    }
}

fn unreadable(path: &Path, why: WindowError, offset: u64, expected: u64) -> ReadError {
    let path = path.to_owned();
    match why {
        WindowError::Failed(source) => ReadError::Read { path, offset, source },
        WindowError::Shrunk(bytes) => ReadError::Shrunk { path, bytes, expected },
    }
}

struct Replay<'a> {
    path: &'a Path,
    window: &'a mut TraceWindow,
    recording: &'a mut Option<u64>,
    is_begun: bool,
    total: u64,
    block_reader: BlockReader,
    decoder: RecordDecoder,
    tally: DecodeCounts,
    /// Expected number if no block is missing.
    next_block: u64,
    next_record: u64,
    /// Damage was noted since the last good block.
    in_damage: bool,
    /// Bytes that false block starts may still cost.
    search_left: u64,
    summary: ReplaySummary,
}

enum ScanResult {
    /// Compressed bytes, with matching checksum.
    Block(usize),
    /// Shorter than its length says, before no good block.
    Unfinished,
    Damage(&'static str),
}

impl Replay<'_> {
    fn run(
        mut self,
        sink: &mut dyn RecordSink,
        progress: &mut dyn FnMut(ReplayProgress) -> ControlFlow<()>,
    ) -> Result<ReplaySummary, ReadError> {
        let mut at = FILE_HEAD as u64;
        while at < self.total && self.tally.end.is_none() {
            match self.scan_at(at)? {
                ScanResult::Block(length) => {
                    self.block(at, length, sink)?;
                    at += (BLOCK_HEAD + length) as u64;
                }
                ScanResult::Unfinished => break,
                ScanResult::Damage(why) => {
                    self.damaged(at, why);
                    match self.next_block_after(at)? {
                        Some(next) => at = next,
                        None => {
                            if self.search_left == 0 {
                                self.damaged(at, GIVEN_UP);
                            }
                            break;
                        }
                    }
                }
            }
            let now = ReplayProgress { bytes: at, total: self.total, records: self.tally.records };
            if progress(now).is_break() {
                self.summary.stopped = true;
                break;
            }
        }
        self.summary.unfinished_bytes = match self.summary.stopped {
            true => 0,
            false => self.total - at,
        };
        self.summary.records = self.tally.records;
        self.summary.unknown_tags = self.tally.unknown_tags;
        self.summary.dropped_records = self.tally.dropped;
        self.summary.complete = self.tally.end.is_some();
        self.summary.end = self.tally.end;
        Ok(self.summary)
    }

    fn bytes(&mut self, offset: u64, length: usize) -> Result<&[u8], ReadError> {
        self.window
            .bytes(offset, length, self.total)
            .map_err(|why| unreadable(self.path, why, offset, self.total))
    }

    /// `None`: incomplete or impossible.
    fn header_at(&mut self, at: u64) -> Result<Option<BlockHeader>, ReadError> {
        let mut head = [0; BLOCK_HEAD];
        head.copy_from_slice(self.bytes(at, BLOCK_HEAD)?);
        Ok(BlockHeader::read(head))
    }

    fn scan_at(&mut self, at: u64) -> Result<ScanResult, ReadError> {
        let left = self.total - at;
        if left < BLOCK_HEAD as u64 {
            return Ok(ScanResult::Unfinished);
        }
        let Some(claim) = self.header_at(at)? else {
            return Ok(ScanResult::Damage("a block states an impossible length"));
        };
        let body = at + BLOCK_HEAD as u64;
        if claim.length as u64 > self.total - body {
            // Before a good block this one is not unfinished: its length is wrong.
            return Ok(match self.next_block_after(at)? {
                Some(_) => ScanResult::Damage("a block states a length beyond the file's end"),
                None if self.search_left == 0 => ScanResult::Damage(GIVEN_UP),
                None => ScanResult::Unfinished,
            });
        }
        Ok(match claim.holds(self.bytes(body, claim.length)?) {
            true => ScanResult::Block(claim.length),
            false => ScanResult::Damage("a block's checksum does not match its bytes"),
        })
    }

    fn next_block_after(&mut self, at: u64) -> Result<Option<u64>, ReadError> {
        let overlap = SYNC.len() as u64 - 1;
        // A block begins after `at`, its zstd magic after its header.
        let mut from = at + 1 + BLOCK_HEAD as u64;
        while from + SYNC.len() as u64 <= self.total {
            let length = (STRIDE + overlap).min(self.total - from) as usize;
            let mut skip = 0;
            while let Some(found) = self
                .bytes(from, length)?
                .get(skip..)
                .and_then(|rest| rest.windows(SYNC.len()).position(|w| w == SYNC))
            {
                let body = from + (skip + found) as u64;
                let start = body - BLOCK_HEAD as u64;
                if let Some(claim) = self.header_at(start)?
                    && claim.length as u64 <= self.total - body
                {
                    if claim.holds(self.bytes(body, claim.length)?) {
                        return Ok(Some(start));
                    }
                    let cost = (claim.length as u64).max(STRIDE);
                    self.search_left = self.search_left.saturating_sub(cost);
                    if self.search_left == 0 {
                        return Ok(None);
                    }
                }
                skip += found + 1;
            }
            from += STRIDE;
        }
        Ok(None)
    }

    fn damaged(&mut self, offset: u64, why: &'static str) {
        self.in_damage = true;
        self.summary.damaged_places += 1;
        self.summary.first_damage.get_or_insert(DamagedPlace { offset, why });
    }

    fn block(
        &mut self,
        at: u64,
        length: usize,
        sink: &mut dyn RecordSink,
    ) -> Result<(), ReadError> {
        let body = at + BLOCK_HEAD as u64;
        let compressed = self
            .window
            .bytes(body, length, self.total)
            .map_err(|why| unreadable(self.path, why, body, self.total))?;
        let payload = match self.block_reader.read(compressed) {
            Ok(payload) => payload,
            Err(BlockError(why)) => {
                self.damaged(at, why);
                return Ok(());
            }
        };
        let mut cursor = PayloadCursor(payload);
        let (head, recording) = match RecordDecoder::head(&mut cursor) {
            Ok(head) => head,
            Err(v1::MalformedPayload(why)) => {
                self.damaged(at, why);
                return Ok(());
            }
        };
        if !self.is_begun {
            self.is_begun = true;
            *self.recording = recording;
        } else if *self.recording != recording {
            self.damaged(at, "here is a block of another recording");
            return Ok(());
        }
        if head.number < self.next_block || head.records < self.next_record {
            self.damaged(at, "a block comes after a later one");
            return Ok(());
        }
        let before = self.tally.clone();
        let outcome = self.decoder.records(&head, length, cursor, sink, &mut self.tally);
        let is_gap = head.number > self.next_block || head.records > self.next_record;
        if is_gap && !self.in_damage {
            let are_blocks = head.number > self.next_block;
            self.damaged(at, if are_blocks { MISSING_BLOCKS } else { MISSING_RECORDS });
        }
        self.in_damage = false;
        self.summary.lost_blocks += head.number - self.next_block;
        self.summary.lost_records += head.records - self.next_record;
        self.next_block = head.number.saturating_add(1);
        let read = |t: &DecodeCounts| t.records + t.dropped + t.unknown_tags;
        self.next_record = head.records.saturating_add(read(&self.tally) - read(&before));
        match outcome {
            Ok(()) => self.summary.blocks += 1,
            Err(DecodeStop::Sink(source)) => return Err(ReadError::Sink { source }),
            Err(DecodeStop::Malformed(v1::MalformedPayload(why))) => self.damaged(at, why),
        }
        Ok(())
    }
}
