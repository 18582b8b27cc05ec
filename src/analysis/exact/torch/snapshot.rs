//! Compares a snapshot of the allocator with the blocks known from events.

use super::super::extent::{BlockSizes, BlockStatistics};
use super::super::live_blocks::{BEFORE, NO_EVENT, TrackedBlock};
use super::{TorchDevice, TorchPeak, UNSETTLED};
use crate::model::{AllocatorSnapshot, BlockState, Segment, SnapshotConsistency};
use rustc_hash::{FxHashMap, FxHashSet};

impl TorchDevice {
    /// `freed_early`: frees of unknown blocks before the first snapshot, with their times.
    pub(crate) fn on_snapshot(
        &mut self,
        snapshot: &AllocatorSnapshot,
        freed_early: &FxHashMap<u64, u64>,
    ) {
        let free = snapshot.blocks().filter(|(_, b)| b.state == BlockState::Inactive);
        self.largest_free = free.map(|(_, b)| b.size).max().unwrap_or(0);
        if snapshot.consistency != SnapshotConsistency::Consistent {
            self.snapshots_degraded += 1;
            return;
        }
        self.snapshots += 1;
        let first = self.last_snapshot.is_none();
        self.last_snapshot = Some(snapshot.time);
        let settled = snapshot.time.0.saturating_sub(UNSETTLED);
        let allocated = || snapshot.blocks().filter(|(_, b)| b.state == BlockState::Allocated);
        let mut suspects = FxHashSet::default();
        let mut present: FxHashSet<u64> = FxHashSet::default();
        for (segment, block) in allocated() {
            let extent = extent(segment, block);
            present.insert(block.address);
            match self.ledger.live.get(&block.address) {
                // If the request differs, the address was reused since the snapshot.
                Some(known) if known.size != block.size && known.requested == block.requested => {
                    let known = known.extent();
                    self.held.subtract(&BlockStatistics::new(known));
                    self.held.add(&BlockStatistics::new(BlockSizes { size: block.size, ..known }));
                    self.has_corrected = true;
                    self.ledger.resize(block.address, block.size);
                }
                Some(_) => {}
                None if first && freed_early.get(&block.address) >= Some(&settled) => {}
                None if first => {
                    if freed_early.contains_key(&block.address) {
                        self.doubtful.insert(block.address);
                    }
                    self.ledger.find(block.address, extent, BEFORE);
                }
                None if self.suspects.contains(&block.address) => {
                    self.found += 1;
                    self.knows_held = false;
                    self.ledger.find(block.address, extent, NO_EVENT);
                }
                // The event may only be late.
                None => {
                    suspects.insert(block.address);
                }
            }
        }
        self.suspects = suspects;
        let absent: Vec<(u64, TrackedBlock)> = self
            .ledger
            .live
            .iter()
            .filter(|(address, _)| !present.contains(address))
            .map(|(&address, block)| (address, *block))
            .collect();
        let mut too_early_to_say = Vec::new();
        for (address, block) in absent {
            let is_gone = block.allocated_at < settled;
            // On a busy machine, threads wait long inside a free. If one did while the probes were
            // placed, its block was still in the first snapshot.
            let began_before = self.snapshots == 2 && block.account as usize == BEFORE;
            if self.doubtful.remove(&address) || (began_before && !self.frees_from_snapshots) {
                if let Some(block) = self.ledger.free(address, snapshot.time.0) {
                    self.ledger.remove_from_peak(block);
                }
            } else if is_gone {
                self.gone += u64::from(!self.frees_from_snapshots);
                self.knows_held = false;
                self.ledger.free(address, snapshot.time.0);
            } else if self.frees_from_snapshots {
                // Not in this snapshot: already freed, or younger than it.
                let block = self.ledger.free(address, snapshot.time.0);
                too_early_to_say.extend(block.map(|block| (address, block)));
            }
        }
        if first
            && let Some(peak) = &mut self.peak
            && peak.levels.is_none()
        {
            // The first moments lacked the blocks from before the recording.
            peak.bytes = peak.bytes.max(self.ledger.held);
        }
        if first || self.frees_from_snapshots {
            self.record_peak(TorchPeak {
                time: snapshot.time,
                bytes: snapshot.allocated(),
                levels: self.levels,
            });
        }
        for (address, block) in too_early_to_say {
            self.ledger.restore(address, block);
        }
        self.excess = self
            .excess
            .max(self.ledger.total.saturating_sub(snapshot.allocated() + self.unsettled(settled)));
    }
}

fn extent(segment: &Segment, block: &crate::model::Block) -> BlockSizes {
    BlockSizes { size: block.size, requested: block.requested, small: segment.small }
}
