//! The result of replaying a trace.

use crate::model::RecordingEnd;

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Format version.
    pub version: u16,
    /// Records given to the sink.
    pub records: u64,
    /// Good blocks read.
    pub blocks: u64,
    /// File size in bytes when the replay began.
    pub bytes: u64,
    /// Records skipped because a later memspy wrote their tag.
    pub unknown_tags: u64,
    /// Damaged places: bytes before the last good block that are no good block, or bytes after it
    /// that are no unfinished block.
    pub damaged_places: u64,
    /// Blocks known to be missing there, each of at most about a second.
    pub lost_blocks: u64,
    /// Records known to be missing with them.
    pub lost_records: u64,
    /// Readable records left out because they use a lost definition.
    pub dropped_records: u64,
    /// The first damage.
    pub first_damage: Option<TraceDamage>,
    /// Bytes after the last good block: an unfinished block of a dead or running recorder.
    pub unfinished_bytes: u64,
    /// Whether the trailer was seen; `false` if the recording ended abruptly or goes on.
    pub complete: bool,
    /// The trailer.
    pub end: Option<RecordingEnd>,
    /// Whether the caller ended the replay.
    pub stopped: bool,
}

impl ReplaySummary {
    /// Whether every written record was given to the sink.
    pub fn is_whole(&self) -> bool {
        self.complete
            && self.damaged_places == 0
            && self.unknown_tags == 0
            && self.dropped_records == 0
    }
}

/// A damaged place in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceDamage {
    /// Byte offset in the file.
    pub offset: u64,
    /// The kind of damage.
    pub why: &'static str,
}

/// Progress of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes of the file.
    pub total: u64,
    /// Records given to the sink.
    pub records: u64,
}
