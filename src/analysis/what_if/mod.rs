//! A recording's allocations as events that PyTorch's allocator can replay, and replays compared.

mod builder;
mod comparison;
mod deferred;
mod event_writer;
mod placement;
mod start;
#[cfg(test)]
mod tests;

pub use builder::ReplayBuilder;
pub use comparison::{
    ReplayCounts, ReplayMoment, ReplayOutcome, ReplayedSegment, ReplayedSetting, SettingComparison,
};

use crate::model::CudaIndex;

/// What a replay does next. Blocks, streams and private pools are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEvent {
    /// Allocates a block of this many bytes.
    Allocate {
        /// Its number, free until now.
        block: u32,
        /// Requested bytes.
        size: u64,
    },
    /// Frees a block.
    Free {
        /// Its number.
        block: u32,
    },
    /// Later allocations are on this stream; 0 is the default one.
    Stream(u32),
    /// Later allocations are in this private pool; 0: in none.
    Pool(u32),
    /// The program emptied the cache.
    EmptyCache,
    /// A training step ended.
    Step,
    /// The recording's reserved peak.
    Peak,
}

/// Memory that is older than the recording, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OlderMemory {
    /// Of live blocks.
    pub live: u64,
    /// Of those that were still live at the peak.
    pub live_at_peak: u64,
    /// In PyTorch's cache.
    pub cached: u64,
}

/// What a replay cannot know of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayGaps {
    /// Events that were lost.
    pub lost: u64,
    /// Allocations of streams that no snapshot and no stack tells.
    pub unplaced: u64,
    /// Allocations in private pools.
    pub private: u64,
    /// Bytes at most that waited for another stream, and were replayed as freed at once.
    pub undeferred: u64,
}

/// One device's allocations, as a recording has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedAllocations {
    /// The device's number in the job.
    pub device: CudaIndex,
    /// The job's PyTorch.
    pub torch: Option<String>,
    /// The allocator's settings, as far as its counters and segments show them.
    pub settings: String,
    /// Makes what was live before the recording.
    pub start: Vec<ReplayEvent>,
    /// The same, with the cache of then.
    pub start_with_cache: Vec<ReplayEvent>,
    /// The recording's own.
    pub events: Vec<ReplayEvent>,
    /// How many of them allocate.
    pub allocations: u64,
    /// How many numbers of blocks are in use.
    pub blocks: u32,
    /// How many numbers of streams are in use, with the default one.
    pub streams: u32,
    /// Bytes and place of PyTorch's segments, in the order in which the driver gave them. Of equal
    /// free blocks PyTorch takes the lowest, so places matter.
    pub segments: Vec<(u64, u64)>,
    /// Training steps that ended.
    pub steps: u64,
    /// PyTorch's highest reserved bytes.
    pub reserved_peak: u64,
    /// PyTorch's highest allocated bytes.
    pub allocated_peak: u64,
    /// Memory that is older.
    pub older: OlderMemory,
    /// The card's memory, if recorded.
    pub memory: Option<u64>,
    /// Bytes of the card that were not PyTorch's at the job's highest use, if recorded.
    pub outside: Option<u64>,
    /// What is not known.
    pub gaps: ReplayGaps,
}
