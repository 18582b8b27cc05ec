//! A keyframe: the live blocks and their allocation sites at the first moment of a recording
//! without its beginning.
//!
//! A recorder that keeps only the last minutes drops earlier records. Its user asks about memory
//! that is still live, so the sites are concluded before the records are dropped.

use std::sync::Arc;

use super::events::{CounterSnapshot, MemoryKind, SiteId};
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Live memory at the first whole moment of a recording. Records before it describe the state at
/// that moment; later observations come after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keyframe {
    /// The moment.
    pub time: Nanos,
    /// Where the blocks come from.
    pub allocation_sources: Vec<AllocationSource>,
    /// The blocks, by kind of memory and device.
    pub memory: Vec<KeyframeMemory>,
}

/// Where a block comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AllocationSource {
    /// It is older than the recording.
    Before,
    /// It is older than the recording; its owners are those in the first ownership snapshot: each
    /// owner's path, outermost step first, and its weight.
    BeforeOwned(Vec<(Arc<[Arc<str>]>, u64)>),
    /// A snapshot has it, no event does.
    NoEvent,
    /// Its site was lost.
    Lost,
    /// It was too small to get a stack.
    NotTaken,
    /// The site of its exact event.
    Site(SiteId),
    /// Stacks seen at its allocation.
    Observed {
        /// The stacks with their weights.
        shares: Vec<AttributionShare>,
        /// Duration of the interval that contains the allocation.
        span: Option<Nanos>,
        /// Whether the stacks seen do not say which of them allocated.
        contested: bool,
    },
}

/// A share in the attribution of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributionShare {
    /// Thread and stack; `None`: no stack was seen.
    pub by: Option<(ThreadId, StackId)>,
    /// Weight relative to the other shares.
    pub weight: u64,
}

/// One kind of memory at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyframeMemory {
    /// The kind, and PyTorch's device.
    pub memory_kind: MemoryKind,
    /// When the last snapshot was read; `None`: never.
    pub mapped: Option<Nanos>,
    /// PyTorch's counters after the last event; `None` without exact events.
    pub levels: Option<CounterSnapshot>,
    /// Bytes freed since that event.
    pub freed_since: u64,
    /// Live blocks, by address.
    pub blocks: Vec<KeyframeBlock>,
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyframeBlock {
    /// Address, or handle.
    pub address: u64,
    /// Bytes it takes.
    pub size: u64,
    /// Bytes requested; 0: unknown.
    pub requested: u64,
    /// Bytes that it represents if only some allocations have stacks; else its size.
    pub stands_for: u64,
    /// Latest time of its allocation; 0: before the recording.
    pub allocated_at: Nanos,
    /// Whether it is known to be in the small pool.
    pub small: bool,
    /// Index in [`Keyframe::allocation_sources`].
    pub allocation_source: u32,
}

/// A condition of the recording was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerFired {
    /// When it was seen.
    pub time: Nanos,
    /// The condition in the user's words.
    pub condition: String,
    /// The observation that met it.
    pub seen: String,
}
