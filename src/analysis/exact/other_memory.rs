//! Memory outside PyTorch's allocator, by its kind.

use super::live_blocks::{BlockOwner, LiveBlocks};
use super::{ExactProfile, kind_of};
use crate::analysis::folded::MemoryGroup;
use crate::model::{AddressSpace, Event, EventKind, Nanos, StackTable};

#[derive(Debug)]
pub(super) struct OtherMemory {
    pub(super) ledger: LiveBlocks,
    pub(super) peak: u64,
    pub(super) peak_time: Nanos,
}

impl OtherMemory {
    fn new(min_lifetime: u64) -> OtherMemory {
        OtherMemory { ledger: LiveBlocks::new(min_lifetime), peak: 0, peak_time: Nanos(0) }
    }

    fn allocate(&mut self, time: Nanos, address: u64, size: u64, owner: BlockOwner) {
        self.ledger.allocate(address, size, owner, time.0);
        if self.ledger.total > self.peak {
            self.record_peak(time);
        }
    }

    /// The present level is the highest.
    pub(super) fn record_peak(&mut self, time: Nanos) {
        (self.peak, self.peak_time) = (self.ledger.total, time);
        self.ledger.record_peak(time.0);
    }
}

impl ExactProfile {
    pub(super) fn other_memory(&mut self, kind: MemoryGroup) -> &mut OtherMemory {
        let min_lifetime = self.min_lifetime;
        self.others.entry(kind).or_insert_with(|| OtherMemory::new(min_lifetime))
    }

    pub(super) fn allocate_elsewhere(&mut self, event: &Event, table: &StackTable) {
        let EventKind::Allocated { memory_kind, address, size, .. } = event.change else { return };
        let Some(kind) = kind_of(memory_kind) else { return };
        let owner = self.owner(event.site, size, table);
        self.other_memory(kind).allocate(event.time, address, size, owner);
    }

    pub(super) fn free_elsewhere(&mut self, space: AddressSpace, address: u64, time: Nanos) {
        let kinds: &[MemoryGroup] = match space {
            AddressSpace::Driver => &[MemoryGroup::Driver, MemoryGroup::Managed],
            AddressSpace::Physical => &[MemoryGroup::Physical],
            AddressSpace::PinnedHost => &[MemoryGroup::Pinned],
            AddressSpace::Mapping | AddressSpace::Torch => &[],
        };
        // Unknown blocks are older than the recording.
        for kind in kinds {
            if let Some(other) = self.others.get_mut(kind)
                && other.ledger.free(address, time.0).is_some()
            {
                break;
            }
        }
    }
}
