//! A keyframe: live blocks and their allocation sites where a recording begins late.
//!
//! A recorder of only the last minutes attributes memory before it drops the records.

use std::sync::Arc;

use super::events::{CounterSnapshot, MemoryKind, SiteId};
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Live memory at the first whole moment of a recording. Records before it give the state then;
/// later observations follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keyframe {
    /// The moment.
    pub time: Nanos,
    /// Sources of the blocks.
    pub allocation_sources: Vec<AllocationSource>,
    /// Blocks by kind of memory and device.
    pub memory: Vec<KeyframeMemory>,
}

/// A block's source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AllocationSource {
    /// Older than the recording.
    Before,
    /// Older than the recording, with its first owners: path (outermost step first) and weight.
    BeforeOwned(Vec<(Arc<[Arc<str>]>, u64)>),
    /// In a snapshot, without an event.
    NoEvent,
    /// Site lost.
    Lost,
    /// Too small for a stack.
    NotTaken,
    /// Site of its exact event.
    Site(SiteId),
    /// Stacks seen when it was allocated.
    Observed {
        /// Weighted stacks.
        shares: Vec<AttributionShare>,
        /// Length of the interval that contains the allocation.
        span: Option<Nanos>,
        /// The stacks do not say which of them allocated.
        contested: bool,
    },
}

/// A share in a block's attribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributionShare {
    /// Thread and stack, if seen.
    pub by: Option<(ThreadId, StackId)>,
    /// Relative weight.
    pub weight: u64,
}

/// A kind of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyframeMemory {
    /// The kind, with PyTorch's device.
    pub memory_kind: MemoryKind,
    /// Time of the last snapshot, if any.
    pub mapped: Option<Nanos>,
    /// PyTorch's counters after the last exact event, if any.
    pub levels: Option<CounterSnapshot>,
    /// Bytes freed since that event.
    pub freed_since: u64,
    /// By address.
    pub blocks: Vec<KeyframeBlock>,
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyframeBlock {
    /// Address, or handle.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes requested; 0: unknown.
    pub requested: u64,
    /// Bytes that it represents if stacks are sampled, else its size.
    pub stands_for: u64,
    /// Latest possible allocation time; 0: before the recording.
    pub allocated_at: Nanos,
    /// It surely is of the small pool.
    pub small: bool,
    /// Index in [`Keyframe::allocation_sources`].
    pub allocation_source: u32,
}

/// A condition of the recording was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerFired {
    /// When it was seen.
    pub time: Nanos,
    /// In the user's words.
    pub condition: String,
    /// The observation that met it.
    pub seen: String,
}
