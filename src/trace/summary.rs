//! Result of replaying a trace.

use crate::model::RecordingEnd;

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Format version.
    pub version: u16,
    /// Records given to the sink.
    pub records: u64,
    /// Good blocks.
    pub blocks: u64,
    /// The file's length when the replay began.
    pub bytes: u64,
    /// Records skipped: tags of a later memspy.
    pub unknown_tags: u64,
    /// Places outside good blocks, except an unfinished last one.
    pub damaged_places: u64,
    /// Known missing blocks, of at most about a second each.
    pub lost_blocks: u64,
    /// Known missing records.
    pub lost_records: u64,
    /// Records left out: they use a lost definition.
    pub dropped_records: u64,
    /// The first damage.
    pub first_damage: Option<DamagedPlace>,
    /// Bytes of an unfinished last block.
    pub unfinished_bytes: u64,
    /// There is a trailer; else the recording ended abruptly or goes on.
    pub complete: bool,
    /// The trailer.
    pub end: Option<RecordingEnd>,
    /// The caller ended the replay.
    pub stopped: bool,
}

impl ReplaySummary {
    /// Whether the sink got every written record.
    pub fn is_whole(&self) -> bool {
        self.complete
            && self.damaged_places == 0
            && self.unknown_tags == 0
            && self.dropped_records == 0
    }
}

/// A damaged place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPlace {
    /// In bytes.
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
