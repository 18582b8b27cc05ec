//! Compares a snapshot with the blocks known from events.

use super::super::extent::{BlockSizes, BlockStatistics};
use super::super::live_blocks::{BEFORE, NO_EVENT, TrackedBlock};
use super::{TorchDevice, TorchPeak, UNDER_WAY, UNSETTLED};
use crate::model::{AllocatorSnapshot, BlockState, Nanos, Segment, SnapshotConsistency};
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
        if first {
            self.first_snapshot = Some(snapshot.time);
        }
        let settled = snapshot.time.0.saturating_sub(UNSETTLED);
        let present = self.add_found_blocks(snapshot, first.then_some(freed_early), settled);
        let too_early_to_say = self.remove_gone_blocks(&present, snapshot.time, settled);
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
                account: None,
            });
        }
        for (address, block) in too_early_to_say {
            self.ledger.restore(address, block);
        }
        self.excess = self
            .excess
            .max(self.ledger.total.saturating_sub(snapshot.allocated() + self.unsettled(settled)));
    }

    /// Compares the snapshot's allocated blocks with those known; returns their addresses.
    fn add_found_blocks(
        &mut self,
        snapshot: &AllocatorSnapshot,
        freed_early: Option<&FxHashMap<u64, u64>>,
        settled: u64,
    ) -> FxHashSet<u64> {
        let mut suspects = FxHashSet::default();
        let mut present = FxHashSet::default();
        for (segment, block) in snapshot.blocks().filter(|(_, b)| b.state == BlockState::Allocated)
        {
            let (address, extent) = (block.address, extent(segment, block));
            present.insert(address);
            if let Some(known) = self.ledger.live.get(&address) {
                // If the request differs, the address was reused since the snapshot.
                if known.size != block.size && known.requested == block.requested {
                    let known = known.extent();
                    self.held.subtract(&BlockStatistics::new(known));
                    self.held.add(&BlockStatistics::new(BlockSizes { size: block.size, ..known }));
                    self.has_corrected = true;
                    self.ledger.resize(address, block.size);
                }
            } else if let Some(freed_early) = freed_early {
                let freed = freed_early.get(&address);
                if freed < Some(&settled) {
                    if freed.is_some() {
                        self.doubtful.insert(address);
                    }
                    self.ledger.find(address, extent, BEFORE);
                }
            } else if self.suspects.contains(&address) {
                self.found += 1;
                self.knows_held = false;
                self.ledger.find(address, extent, NO_EVENT);
            } else {
                // The event may only be late.
                suspects.insert(address);
            }
        }
        self.suspects = suspects;
        present
    }

    /// Removes the blocks that the snapshot lacks. Where it shows the frees, returns those of which
    /// it cannot say whether they are freed or younger.
    fn remove_gone_blocks(
        &mut self,
        present: &FxHashSet<u64>,
        time: Nanos,
        settled: u64,
    ) -> Vec<(u64, TrackedBlock)> {
        let live = self.ledger.live.iter().filter(|(address, _)| !present.contains(address));
        let absent: Vec<(u64, TrackedBlock)> = live.map(|(at, block)| (*at, *block)).collect();
        let mut too_early_to_say = Vec::new();
        // On a busy machine, threads wait long inside a free. If one did while the probes were
        // placed, its block was still in the first snapshots.
        let since = self.first_snapshot.map_or(u64::MAX, |first| time.0.saturating_sub(first.0));
        let is_beginning = self.snapshots == 2 || since <= UNDER_WAY;
        for (address, block) in absent {
            let was_being_freed =
                is_beginning && block.account as usize == BEFORE && !self.frees_from_snapshots;
            if self.doubtful.remove(&address) || was_being_freed {
                if let Some(block) = self.ledger.free(address, time.0) {
                    self.ledger.remove_from_peak(block);
                }
            } else if block.allocated_at < settled {
                self.gone += u64::from(!self.frees_from_snapshots);
                self.knows_held = false;
                self.ledger.free(address, time.0);
            } else if self.frees_from_snapshots {
                let block = self.ledger.free(address, time.0);
                too_early_to_say.extend(block.map(|block| (address, block)));
            }
        }
        too_early_to_say
    }
}

fn extent(segment: &Segment, block: &crate::model::Block) -> BlockSizes {
    BlockSizes { size: block.size, requested: block.requested, small: segment.small }
}
