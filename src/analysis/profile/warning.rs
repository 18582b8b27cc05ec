//! What stands at the head of every report on a recording: what of it is missing, torn or in doubt.

use crate::analysis::exact::ByteBalance;
use crate::model::{CudaIndex, RecordingGap};

/// What is missing, torn or in doubt. The text is that of `render`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingWarning {
    /// What the reader of its file found, in its words.
    File(String),
    /// It has no end: it ended abruptly, or goes on.
    NoEnd,
    /// Records are missing.
    Gap(RecordingGap),
    /// So many more gaps.
    MoreGaps(u64),
    /// Only threads that hold the GIL were asked for, and none was seen to hold it.
    NoGilSeen,
    /// So many definitions could not be used.
    BadDefinitions(u64),
    /// So many events were lost.
    LostEvents(u64),
    /// Blocks came or went without an event.
    WithoutEvent {
        /// The device.
        device: CudaIndex,
        /// How many were allocated.
        allocated: u64,
        /// How many were freed.
        freed: u64,
    },
    /// Known blocks exceed what the allocator counts.
    Excess {
        /// The device.
        device: CudaIndex,
        /// By at most so many bytes.
        bytes: u64,
    },
    /// The bytes of blocks differ from the allocator's counters.
    Unbalanced {
        /// The device.
        device: CudaIndex,
        /// By how much.
        balance: ByteBalance,
    },
    /// The first blocks came before the counters could be read, and were not compared with them later.
    NotCompared {
        /// The device.
        device: CudaIndex,
    },
    /// Snapshots were read while the job changed them.
    TornSnapshots {
        /// The device.
        device: CudaIndex,
        /// How many.
        torn: u64,
        /// Of how many.
        all: u64,
    },
    /// So many blocks were freed whose allocation was not seen.
    UnknownFrees(u64),
    /// Snapshots of owners failed.
    FailedOwners {
        /// How many.
        count: u64,
        /// Why most of them did.
        why: String,
    },
    /// The allocator's counters differed from the events.
    CountersDiffer {
        /// The device.
        device: CudaIndex,
        /// In how many comparisons.
        differing: u64,
        /// Of how many.
        checks: u64,
        /// By how many allocations at last.
        allocations: i64,
        /// By how many bytes at last.
        bytes: i64,
    },
}
