//! One device of PyTorch over an exact recording: true block sizes, the peak, and what no event explains.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::ledger::{BEFORE, Block, Ledger, NO_EVENT, Owner};
use crate::model::{BlockMap, BlockState, Consistency, Levels, Nanos};

/// The allocator's unit: kMinBlockSize (c10/cuda/CUDACachingAllocator.cpp).
const UNIT: u64 = 512;
/// Up to here blocks come from the pool in which every remainder is split off (kSmallSize).
const SMALL_POOL: u64 = 1 << 20;
/// The greatest remainder that is not split off a larger block (`should_split`: kSmallSize).
const REMAINDER: u64 = 1 << 20;
/// What happened so shortly before a map may not be in it yet, in nanoseconds.
const UNSETTLED: u64 = 5_000_000;

/// The highest moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Height {
    pub(crate) time: Nanos,
    /// Bytes allocated, by the allocator's counter where it is known.
    pub(crate) bytes: u64,
    /// `reserved` and `active` then, where known.
    pub(crate) levels: Option<Levels>,
}

/// Freed blocks remembered: half a second's of a busy job.
const MOST_LATELY: usize = 1 << 15;

/// A block that has been freed.
#[derive(Debug, Clone, Copy)]
struct Freed {
    address: u64,
    died: Nanos,
    block: Block,
}

/// What is known of one device.
#[derive(Debug)]
pub(crate) struct TorchDevice {
    pub(crate) ledger: Ledger,
    pub(crate) height: Option<Height>,
    /// The counters at the last event.
    pub(crate) levels: Option<Levels>,
    /// Greatest level that events told of, or a `levels.peak` that rose between two of them.
    pub(crate) counted_peak: Option<i64>,
    /// Bytes freed since the last event with levels.
    freed_since: u64,
    /// Freed lately: who held memory at a moment is told some time after it.
    lately: VecDeque<Freed>,
    pub(super) deaths_from_maps: bool,
    suspects: FxHashSet<u64>,
    pub(crate) maps: u64,
    /// When the last of them was read; also one of an earlier part of the recording.
    pub(crate) last_map: Option<Nanos>,
    /// Blocks gone without an event, and found without one.
    pub(crate) gone: u64,
    pub(crate) found: u64,
    /// Greatest amount by which known blocks exceeded a map, in bytes.
    pub(crate) excess: u64,
    /// Largest free block at the last map, in bytes.
    pub(crate) largest_free: u64,
    /// Maps that are not one instant's truth, which are not compared with.
    pub(crate) maps_degraded: u64,
}

impl TorchDevice {
    pub(crate) fn new(least_life: u64, deaths_from_maps: bool) -> TorchDevice {
        TorchDevice {
            ledger: Ledger::new(least_life),
            height: None,
            levels: None,
            counted_peak: None,
            freed_since: 0,
            lately: VecDeque::new(),
            deaths_from_maps,
            suspects: FxHashSet::default(),
            maps: 0,
            last_map: None,
            gone: 0,
            found: 0,
            excess: 0,
            largest_free: 0,
            maps_degraded: 0,
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        let suspects = self.suspects.len() * 16;
        self.ledger.memory() + (self.lately.len() * size_of::<Freed>() + suspects) as u64
    }

    /// A block was allocated; returns its size.
    pub(crate) fn allocate(
        &mut self,
        time: Nanos,
        address: u64,
        requested: u64,
        levels: Option<Levels>,
        owner: Owner,
    ) {
        let least = requested.max(1).next_multiple_of(UNIT);
        let size = match (self.levels, levels) {
            (Some(before), Some(now)) => {
                let grown = now.allocated - before.allocated + self.freed_since as i64;
                // `roundup_power2_divisions` at most doubles what was asked for.
                let most = 2 * least + if least > SMALL_POOL { REMAINDER } else { 0 };
                let fits = grown % UNIT as i64 == 0 && grown >= least as i64;
                if fits && grown as u64 <= most { grown as u64 } else { least }
            }
            _ => least,
        };
        if let Some(now) = levels {
            if let Some(before) = self.levels
                && now.peak > before.peak
            {
                self.counted_peak = self.counted_peak.max(Some(now.peak));
            }
            self.counted_peak = self.counted_peak.max(Some(now.allocated));
            self.levels = Some(now);
            self.freed_since = 0;
        }
        if let Some(replaced) = self.ledger.allocate(address, size, owner, time.0) {
            // A block found in a map may only have been ahead of its event.
            self.gone += u64::from(replaced.born > 0 && !self.deaths_from_maps);
            let age = time.0.saturating_sub(self.last_map.unwrap_or_default().0);
            if replaced.account as usize == BEFORE && self.maps == 1 && age < UNSETTLED {
                self.ledger.was_not_before(replaced);
            }
        }
        if !self.deaths_from_maps {
            let bytes = levels.map_or(self.ledger.total, |l| l.allocated.max(0) as u64);
            self.reach(Height { time, bytes, levels });
        }
    }

    /// Counters read by themselves, before the first event that brings them.
    pub(crate) fn begin(&mut self, levels: Levels) {
        self.levels.get_or_insert(levels);
    }

    /// A block is being freed.
    pub(crate) fn free(&mut self, time: Nanos, address: u64) -> Option<Block> {
        let freed = self.ledger.free(address, time.0)?;
        self.freed_since += freed.size;
        if self.lately.len() == MOST_LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back(Freed { address, died: time, block: freed });
        Some(freed)
    }

    /// The accounts of the blocks that lived at a moment not long ago, by address: of those that were freed since, and of
    /// all that live.
    pub(crate) fn accounts_at(&self, time: Nanos) -> FxHashMap<u64, usize> {
        let freed = self.lately.iter().filter(|freed| freed.died > time);
        let freed = freed.map(|freed| (freed.address, freed.block));
        let live = self.ledger.live.iter().map(|(address, block)| (*address, *block));
        let born = live.chain(freed).filter(|(_, block)| block.born <= time.0);
        born.map(|(address, block)| (address, block.account as usize)).collect()
    }

    /// `allocated_bytes` by the last counters and what was freed since.
    pub(crate) fn allocated_now(&self) -> Option<i64> {
        Some(self.levels?.allocated - self.freed_since as i64)
    }

    /// Bytes freed since the counters were last known.
    pub(crate) fn freed_since(&self) -> u64 {
        self.freed_since
    }

    /// Goes on from where an earlier part of the recording ended.
    pub(crate) fn inherit(
        &mut self,
        mapped: Option<Nanos>,
        levels: Option<Levels>,
        freed_since: u64,
    ) {
        self.last_map = mapped;
        if levels.is_some() {
            self.levels = levels;
            self.freed_since = freed_since;
        }
    }

    pub(super) fn reach(&mut self, height: Height) {
        if self.height.is_none_or(|before| height.bytes > before.bytes) {
            self.height = Some(height);
            self.ledger.reach(height.time.0);
        }
    }

    /// Compares with what the allocator has.
    ///
    /// `freed_early` has the frees of unknown blocks before the first map, with their times.
    pub(crate) fn take_map(&mut self, map: &BlockMap, freed_early: &FxHashMap<u64, u64>) {
        let free = map.blocks().filter(|(_, b)| b.state == BlockState::Inactive);
        self.largest_free = free.map(|(_, b)| b.size).max().unwrap_or(0);
        if map.consistency != Consistency::Consistent {
            self.maps_degraded += 1;
            return;
        }
        self.maps += 1;
        let first = self.last_map.is_none();
        self.last_map = Some(map.time);
        let settled = map.time.0.saturating_sub(UNSETTLED);
        let allocated =
            || map.blocks().map(|(_, b)| b).filter(|b| b.state == BlockState::Allocated);
        let mut suspects = FxHashSet::default();
        let mut present: FxHashSet<u64> = FxHashSet::default();
        for block in allocated() {
            present.insert(block.address);
            match self.ledger.live.get(&block.address) {
                Some(known) if known.size != block.size => {
                    self.ledger.resize(block.address, block.size);
                }
                Some(_) => {}
                None if first && freed_early.get(&block.address) >= Some(&settled) => {}
                None if first => {
                    self.ledger.find(block.address, block.size, BEFORE);
                }
                None if self.suspects.contains(&block.address) => {
                    self.found += 1;
                    self.ledger.find(block.address, block.size, NO_EVENT);
                }
                // Its event may only be late.
                None => {
                    suspects.insert(block.address);
                }
            }
        }
        self.suspects = suspects;
        let absent: Vec<(u64, bool)> = self
            .ledger
            .live
            .iter()
            .filter(|(address, _)| !present.contains(address))
            .map(|(&address, block)| (address, block.born < settled))
            .collect();
        let mut too_early_to_say = Vec::new();
        for (address, is_gone) in absent {
            if is_gone {
                self.gone += u64::from(!self.deaths_from_maps);
                self.ledger.free(address, map.time.0);
            } else if self.deaths_from_maps {
                // Not part of what this map shows, whether it is dead or its map is a moment older.
                let block = self.ledger.free(address, map.time.0);
                too_early_to_say.extend(block.map(|block| (address, block)));
            }
        }
        if first
            && let Some(height) = &mut self.height
            && height.levels.is_none()
        {
            // What the first moments lacked was there before.
            height.bytes = height.bytes.max(self.ledger.held);
        }
        if first || self.deaths_from_maps {
            self.reach(Height { time: map.time, bytes: map.allocated(), levels: self.levels });
        }
        for (address, block) in too_early_to_say {
            self.ledger.restore(address, block);
        }
        self.excess = self
            .excess
            .max(self.ledger.total.saturating_sub(map.allocated() + self.unsettled(settled)));
    }

    /// By how many bytes the blocks known exceeded the counter at the height.
    pub(crate) fn excess_at_height(&self) -> u64 {
        self.height.map_or(0, |height| self.ledger.held.saturating_sub(height.bytes))
    }

    /// Bytes of blocks too young to be sure of.
    fn unsettled(&self, settled: u64) -> u64 {
        self.ledger.live.values().filter(|b| b.born >= settled).map(|b| b.size).sum()
    }
}
