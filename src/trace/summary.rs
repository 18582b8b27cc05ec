//! What became of a trace's bytes when it was replayed.

use crate::model::RecordingEnd;

/// What a replay found, for the lines a report prints about its source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Format version of the file.
    pub version: u16,
    /// Records given to the sink.
    pub records: u64,
    /// Whole good blocks read.
    pub blocks: u64,
    /// Size of the file in bytes when the replay began.
    pub bytes: u64,
    /// Records skipped because this version does not know their tag (written by a later memspy).
    pub unknown_tags: u64,
    /// Places at which something other than a good block stood before the last good block, or stands
    /// where no unfinished block could.
    pub damaged_places: u64,
    /// Blocks known to be missing there (each of at most about a second).
    pub lost_blocks: u64,
    /// Records known to have been in them.
    pub lost_records: u64,
    /// Records that could be read but left out, because they use a definition lost in a damaged block.
    pub dropped_records: u64,
    /// The first damage.
    pub first_damage: Option<TraceDamage>,
    /// Bytes after the last good block: a block not finished when the recorder died, or being written.
    pub unfinished_bytes: u64,
    /// Whether the trailer was seen; `false` when the recording ended abruptly or goes on.
    pub complete: bool,
    /// The trailer.
    pub end: Option<RecordingEnd>,
    /// Whether the caller ended the replay.
    pub stopped: bool,
}

impl ReplaySummary {
    /// Whether every record written was given to the sink.
    pub fn is_whole(&self) -> bool {
        self.complete
            && self.damaged_places == 0
            && self.unknown_tags == 0
            && self.dropped_records == 0
    }
}

/// A place where a trace is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceDamage {
    /// Where in the file, in bytes from its start.
    pub offset: u64,
    /// What is wrong there.
    pub why: &'static str,
}

/// How far a replay has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Bytes of the file behind it.
    pub bytes: u64,
    /// Bytes of the file in all.
    pub total: u64,
    /// Records given to the sink.
    pub records: u64,
}
