//! Warnings at the head of a report.

use crate::analysis::exact::ByteBalance;
use crate::model::{CudaIndex, RecordingGap};

/// A warning. `render` has the text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingWarning {
    /// From the file's reader.
    File(String),
    /// The recording ended abruptly, or lasts.
    NoEnd,
    /// Records are missing.
    Gap(RecordingGap),
    /// Further gaps.
    MoreGaps(u64),
    /// Only threads with the GIL were asked for, and none had it.
    NoGilSeen,
    /// Unusable definitions.
    BadDefinitions(u64),
    /// Lost events.
    LostEvents(u64),
    /// Blocks without an event.
    WithoutEvent {
        /// The device.
        device: CudaIndex,
        /// Blocks allocated.
        allocated: u64,
        /// Blocks freed.
        freed: u64,
    },
    /// Known blocks exceed the counter.
    Excess {
        /// The device.
        device: CudaIndex,
        /// Greatest excess in bytes.
        bytes: u64,
    },
    /// Bytes differ from the counters.
    Unbalanced {
        /// The device.
        device: CudaIndex,
        /// Difference.
        balance: ByteBalance,
    },
    /// Early sizes were never confirmed by counters.
    NotCompared {
        /// The device.
        device: CudaIndex,
    },
    /// Snapshots changed during the read.
    TornSnapshots {
        /// The device.
        device: CudaIndex,
        /// Number of inconsistent snapshots.
        torn: u64,
        /// Number of all snapshots.
        all: u64,
    },
    /// Frees without an allocation.
    UnknownFrees(u64),
    /// Snapshots of owners failed.
    FailedOwners {
        /// Number of failures.
        count: u64,
        /// Most frequent reason.
        why: String,
    },
    /// Events differ from the counters.
    CountersDiffer {
        /// The device.
        device: CudaIndex,
        /// Comparisons with a difference.
        differing: u64,
        /// Comparisons.
        checks: u64,
        /// Difference in allocations, at the last one.
        allocations: i64,
        /// Difference in bytes, at the last one.
        bytes: i64,
    },
}
