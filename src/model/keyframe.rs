//! What a recording without its beginning still knows of it: the blocks that lived at its first moment, and who made them.
//!
//! A recorder that keeps only the last minutes drops what came before. The memory held since then is what
//! its user asks about, so who made it is concluded once, before the records it follows from are dropped.

use std::sync::Arc;

use super::events::{CounterSnapshot, MemoryKind, SiteId};
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// The memory held at the first whole moment of a recording. What stands before it in the recording only says
/// how things were at that moment; everything that happened since stands behind it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keyframe {
    /// The moment.
    pub time: Nanos,
    /// Who made the blocks.
    pub allocation_sources: Vec<AllocationSource>,
    /// The blocks, by kind of memory and device.
    pub memory: Vec<KeyframeMemory>,
}

/// Who made a block, as far as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AllocationSource {
    /// It was there before anything was recorded.
    Before,
    /// It was there before anything was recorded, and the first snapshot of owners told whose it was: the path of each owner,
    /// from the outermost step to the innermost, and its weight.
    BeforeOwned(Vec<(Arc<[Arc<str>]>, u64)>),
    /// It was found in a snapshot, and no event told of it.
    NoEvent,
    /// Its site was lost.
    Lost,
    /// It was too small to have its stack taken.
    NotTaken,
    /// A place in the program, by its exact event.
    Site(SiteId),
    /// Those who were seen while it was born, and for how long that may have been.
    Observed {
        /// Who, and with what weight.
        shares: Vec<AttributionShare>,
        /// Length of the time in which the birth lies.
        span: Option<Nanos>,
    },
}

/// A part of the blame for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributionShare {
    /// Whose; `None` when no stack was seen.
    pub by: Option<(ThreadId, StackId)>,
    /// How much, relative to the others.
    pub weight: u64,
}

/// One kind of memory at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyframeMemory {
    /// Which kind, and for PyTorch's which device.
    pub memory_kind: MemoryKind,
    /// When the last snapshot before was read; `None` when there was none.
    pub mapped: Option<Nanos>,
    /// PyTorch's counters as the last event before told them; `None` without exact events.
    pub levels: Option<CounterSnapshot>,
    /// Bytes freed since that event.
    pub freed_since: u64,
    /// Living blocks, by address.
    pub blocks: Vec<KeyframeBlock>,
}

/// A living block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyframeBlock {
    /// Address, or handle.
    pub address: u64,
    /// Bytes it takes.
    pub size: u64,
    /// Bytes asked for; 0 where that is not known.
    pub requested: u64,
    /// Bytes that it stands for where only some allocations have a stack; else its size.
    pub stands_for: u64,
    /// When it was born, at the latest; 0 when before anything was recorded.
    pub allocated_at: Nanos,
    /// Whether it is known to lie in the pool of small blocks.
    pub small: bool,
    /// Index of its maker in [`Keyframe::allocation_sources`].
    pub allocation_source: u32,
}

/// That a condition came true for which the recording was waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerFired {
    /// When it was seen.
    pub time: Nanos,
    /// The condition, as its user wrote it.
    pub condition: String,
    /// What was seen.
    pub seen: String,
}
