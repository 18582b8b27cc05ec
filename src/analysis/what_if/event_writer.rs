//! Numbers blocks, and puts frees where PyTorch took the memory back.

use rustc_hash::FxHashMap;

use super::ReplayEvent;
use super::deferred::{DeferredFrees, NumberedFree};
use super::placement::BlockPlace;
use super::start::{StartEvents, move_to};
use crate::model::{Nanos, SiteId, block_size};

/// A block is at most this much larger than what was asked for (`kLargeBuffer`).
const MAX_REST: u64 = 20 << 20;

/// PyTorch's counters after an allocation.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLevels {
    /// Bytes of allocated blocks.
    pub(super) allocated: u64,
    /// Bytes that wait for a stream.
    pub(super) waits: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum CollectedKind {
    /// `block`: its bytes, if read; `range`: a number of memory of the driver; `place`: if known.
    Allocated {
        address: u64,
        size: u64,
        block: Option<u64>,
        levels: Option<BlockLevels>,
        site: Option<SiteId>,
        range: Option<u32>,
        place: Option<BlockPlace>,
    },
    Freed {
        address: u64,
    },
    EmptyCache,
    Step,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CollectedEvent {
    pub(super) time: Nanos,
    pub(super) kind: CollectedKind,
}

#[derive(Debug, Clone, Copy)]
struct NumberedBlock {
    number: u32,
    size: u64,
    is_older: bool,
}

/// Writes one event after the other.
pub(super) struct EventWriter {
    pub(super) events: Vec<ReplayEvent>,
    live: FxHashMap<u64, NumberedBlock>,
    /// Bytes of the older blocks that are live.
    older: u64,
    pub(super) older_at_peak: u64,
    spare: Vec<u32>,
    /// Allocated bytes after the last allocation, if all frees since are known.
    allocated: Option<u64>,
    /// Freed since.
    freed: u64,
    pub(super) numbers: u32,
    pub(super) deferred: DeferredFrees,
    at: BlockPlace,
    pub(super) allocations: u64,
    pub(super) steps: u64,
    pub(super) private: u64,
}

impl EventWriter {
    pub(super) fn new(start: &StartEvents) -> EventWriter {
        let blocks = start.blocks.iter().zip(0..);
        let live = blocks.map(|(block, number)| {
            (block.address, NumberedBlock { number, size: block.size, is_older: true })
        });
        EventWriter {
            events: Vec::new(),
            live: live.collect(),
            older: start.live_bytes,
            older_at_peak: 0,
            allocated: None,
            freed: 0,
            spare: (start.blocks.len() as u32..start.numbers).collect(),
            numbers: start.numbers,
            deferred: DeferredFrees::default(),
            at: BlockPlace::default(),
            allocations: 0,
            steps: 0,
            private: 0,
        }
    }

    pub(super) fn write(&mut self, event: CollectedEvent) {
        match event.kind {
            CollectedKind::Allocated { address, size, block, levels, place, .. } => {
                // Its free was lost.
                self.free(address, false);
                let freed = self.deferred.taken_back(levels.map(|levels| levels.waits));
                self.take_back(freed);
                self.move_to(place);
                let block = self.block_size(size, block, levels);
                self.allocate(address, size, block);
            }
            CollectedKind::Freed { address } => self.free(address, true),
            CollectedKind::EmptyCache => {
                let freed = self.deferred.take_all();
                self.take_back(freed);
                self.events.push(ReplayEvent::EmptyCache);
            }
            CollectedKind::Step => {
                self.steps += 1;
                self.events.push(ReplayEvent::Step);
            }
        }
    }

    fn allocate(&mut self, address: u64, size: u64, block: u64) {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        });
        self.live.insert(address, NumberedBlock { number, size: block, is_older: false });
        self.events.push(ReplayEvent::Allocate { block: number, size });
        self.allocations += 1;
    }

    /// A block may be larger than what was asked for: its rest was too small to split. The counters
    /// tell.
    fn block_size(&mut self, size: u64, read: Option<u64>, levels: Option<BlockLevels>) -> u64 {
        let least = block_size(size);
        let now = levels.map(|levels| levels.allocated);
        let before = std::mem::replace(&mut self.allocated, now);
        let freed = std::mem::take(&mut self.freed);
        let counted =
            now.zip(before).and_then(|(now, before)| now.saturating_add(freed).checked_sub(before));
        let is_possible = |bytes: &u64| (least..=least.saturating_add(MAX_REST)).contains(bytes);
        read.or(counted.filter(is_possible)).unwrap_or(least)
    }

    /// `is_told`: by the recording. A block that is not live is of another device, or older than
    /// the first snapshot.
    fn free(&mut self, address: u64, is_told: bool) {
        match self.live.remove(&address) {
            Some(block) => {
                if block.is_older {
                    self.older = self.older.saturating_sub(block.size);
                }
                self.freed = self.freed.saturating_add(block.size);
                self.deferred.free(NumberedFree { block: block.number, size: block.size });
            }
            None if is_told => self.allocated = None,
            None => {}
        }
    }

    fn take_back(&mut self, freed: Vec<NumberedFree>) {
        for freed in freed {
            self.events.push(ReplayEvent::Free { block: freed.block });
            self.spare.push(freed.block);
        }
    }

    fn move_to(&mut self, place: Option<BlockPlace>) {
        let Some(place) = place else { return };
        self.private += u64::from(place.pool != 0);
        move_to(&mut self.events, self.at, place);
        self.at = place;
    }

    pub(super) fn peak(&mut self) {
        self.older_at_peak = self.older;
        self.events.push(ReplayEvent::Peak);
    }
}
