//! Keyframes of exact recordings: live blocks with their sites.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::extent::BlockSizes;
use super::live_blocks::{
    BEFORE, LiveBlocks, NO_EVENT, NO_SITE, OWNED, SITES, SMALL, ScaledBytes, TrackedBlock,
};
use super::torch::{TorchDevice, TorchPeak};
use super::{EarlyEvents, ExactProfile, kind_of, span};
use crate::analysis::folded::MemoryGroup;
use crate::model::{
    AllocationSource, CounterSnapshot, CudaIndex, FreeTracking, Keyframe, KeyframeBlock,
    KeyframeMemory, MemoryKind, Nanos, OwnerId, SiteId, StackTable,
};

/// Allocation sources, each listed once.
#[derive(Debug, Default)]
pub(crate) struct SourceTable {
    pub(in crate::analysis) list: Vec<AllocationSource>,
    known: FxHashMap<AllocationSource, u32>,
}

impl SourceTable {
    pub(crate) fn index(&mut self, allocation_source: AllocationSource) -> u32 {
        let list = &mut self.list;
        *self.known.entry(allocation_source).or_insert_with_key(|allocation_source| {
            list.push(allocation_source.clone());
            list.len() as u32 - 1
        })
    }
}

impl ExactProfile {
    pub(crate) fn add_to_keyframe(
        &self,
        table: &StackTable,
        allocation_sources: &mut SourceTable,
        memory: &mut Vec<KeyframeMemory>,
    ) {
        for (&device, torch) in &self.torch {
            memory.push(KeyframeMemory {
                memory_kind: MemoryKind::Torch(device),
                mapped: torch.last_snapshot,
                levels: torch.levels,
                freed_since: torch.freed_since(),
                blocks: self.blocks(&torch.ledger, table, allocation_sources),
            });
        }
        for (&kind, other) in &self.others {
            let memory_kind = match kind {
                MemoryGroup::Driver => MemoryKind::Driver(None),
                MemoryGroup::Physical => MemoryKind::Physical(None),
                MemoryGroup::Managed => MemoryKind::Managed,
                MemoryGroup::Pinned => MemoryKind::PinnedHost,
                MemoryGroup::Torch => continue,
            };
            memory.push(KeyframeMemory {
                memory_kind,
                mapped: None,
                levels: None,
                freed_since: 0,
                blocks: self.blocks(&other.ledger, table, allocation_sources),
            });
        }
    }

    /// Starts from a keyframe; or continues with it after a gap, and keeps the earlier results.
    pub(crate) fn restore(
        &mut self,
        inherited: &Keyframe,
        table: &mut StackTable,
        continues: bool,
    ) {
        self.interrupted = false;
        self.last = self.last.max(inherited.time);
        self.forget_blocks(continues);
        let accounts: Vec<usize> = inherited
            .allocation_sources
            .iter()
            .map(|source| self.restored_account(source, table))
            .collect();
        for memory in &inherited.memory {
            let blocks = tracked_blocks(memory, &accounts);
            match (memory.memory_kind, kind_of(memory.memory_kind)) {
                (MemoryKind::Torch(device), _) => {
                    for (address, block) in blocks {
                        self.device(device).ledger.insert_restored(address, block);
                        self.device_of.insert(address, device);
                    }
                    self.begin_at(device, memory, inherited.time);
                }
                (_, Some(kind)) => {
                    let other = self.other_memory(kind);
                    for (address, block) in blocks {
                        other.ledger.insert_restored(address, block);
                    }
                    if !continues || other.ledger.total > other.peak {
                        other.record_peak(inherited.time);
                    }
                }
                (_, None) => {}
            }
        }
        // The stacks of the sites determine which thread's lines they count for.
        for allocation_source in &inherited.allocation_sources {
            if let AllocationSource::Site(site) = allocation_source {
                let _ = self.counts_to(*site, table);
            }
        }
    }

    /// `continues`: keeps the earlier results.
    fn forget_blocks(&mut self, continues: bool) {
        // An earlier snapshot has no sites.
        self.device_of.clear();
        self.freed_early.clear();
        // The allocator's earlier events are not in the recording.
        (self.starts_empty, self.early) = (false, EarlyEvents::default());
        if continues {
            let torch = self.torch.values_mut().map(|torch| &mut torch.ledger);
            let others = self.others.values_mut().map(|other| &mut other.ledger);
            torch.chain(others).for_each(LiveBlocks::forget_living);
            return;
        }
        self.lines.iter_mut().for_each(BTreeMap::clear);
        let (min_lifetime, from_snapshots) =
            (self.min_lifetime, self.exact.frees == FreeTracking::Snapshots);
        for torch in self.torch.values_mut() {
            let largest_free = torch.largest_free;
            *torch = TorchDevice::new(min_lifetime, from_snapshots);
            torch.largest_free = largest_free;
        }
    }

    fn restored_account(&mut self, source: &AllocationSource, table: &mut StackTable) -> usize {
        let AllocationSource::BeforeOwned(owners) = source else { return account(source) };
        let owners =
            owners.iter().filter_map(|(path, weight)| Some((table.owners.intern(path)?, *weight)));
        let owners: Vec<(OwnerId, u64)> = owners.collect();
        match owners.is_empty() {
            true => BEFORE,
            false => self.before_owners.account(&owners.into()),
        }
    }

    fn begin_at(&mut self, device: CudaIndex, memory: &KeyframeMemory, time: Nanos) {
        let freed = memory.freed_since as i64;
        let torch = self.device(device);
        torch.restore(memory.mapped, memory.levels, memory.freed_since);
        let now = memory.levels.map(|levels| CounterSnapshot {
            allocated: levels.allocated - freed,
            active: levels.active - freed,
            ..levels
        });
        let bytes = now.map_or(torch.ledger.total, |levels| levels.allocated.max(0) as u64);
        if !torch.frees_from_snapshots {
            torch.record_peak(TorchPeak { time, bytes, levels: now, account: None });
        }
        if let Some(now) = now
            && let Some(lines) = self.lines(device)
        {
            lines.on_counters(span(now, None));
        }
    }
}

impl ExactProfile {
    fn blocks(
        &self,
        ledger: &LiveBlocks,
        table: &StackTable,
        allocation_sources: &mut SourceTable,
    ) -> Vec<KeyframeBlock> {
        let mut blocks: Vec<KeyframeBlock> = Vec::with_capacity(ledger.live.len());
        for (&address, block) in &ledger.live {
            let ScaledBytes { bytes, stands_for } = block.amount();
            let allocation_source = match block.account as usize {
                BEFORE => AllocationSource::Before,
                NO_EVENT => AllocationSource::NoEvent,
                NO_SITE => AllocationSource::Lost,
                SMALL => AllocationSource::NotTaken,
                owned @ OWNED.. => match self.before_owners.get(owned - OWNED) {
                    Some(owners) => AllocationSource::BeforeOwned(
                        owners
                            .iter()
                            .map(|(id, weight)| (table.owners.texts(*id).into(), *weight))
                            .collect(),
                    ),
                    None => AllocationSource::Before,
                },
                site => AllocationSource::Site(SiteId((site - SITES) as u32)),
            };
            blocks.push(KeyframeBlock {
                address,
                size: bytes,
                requested: block.requested,
                stands_for,
                allocated_at: Nanos(block.allocated_at),
                small: block.small,
                allocation_source: allocation_sources.index(allocation_source),
            });
        }
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }
}

fn account(allocation_source: &AllocationSource) -> usize {
    match allocation_source {
        AllocationSource::Before | AllocationSource::BeforeOwned(_) => BEFORE,
        AllocationSource::NoEvent => NO_EVENT,
        AllocationSource::Lost | AllocationSource::Observed { .. } => NO_SITE,
        AllocationSource::NotTaken => SMALL,
        AllocationSource::Site(site) => SITES + site.0 as usize,
    }
}

/// By address.
fn tracked_blocks(
    memory: &KeyframeMemory,
    accounts: &[usize],
) -> impl Iterator<Item = (u64, TrackedBlock)> {
    memory.blocks.iter().map(|block| {
        let &KeyframeBlock { size, requested, small, stands_for, allocated_at, .. } = block;
        let account = accounts.get(block.allocation_source as usize).copied().unwrap_or(NO_SITE);
        let sizes = BlockSizes { size, requested, small };
        (block.address, TrackedBlock::new(sizes, stands_for, account, allocated_at.0))
    })
}
