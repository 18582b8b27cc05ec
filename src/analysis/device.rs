//! One device over a recording: counters, peak, timeline, living blocks and the moments kept.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::births::{Between, Kind, charge_births, hidden_deaths};
use super::charge::{Charge, Origin};
use super::high_water::HighWater;
use super::ledger::{Interval, Ledger, PerPool};
use super::line_bounds::Around;
use super::timeline::{Timeline, TimelinePoint};
use crate::model::{
    AllocatorCounters, BlockMap, BlockState, Consistency, InheritedBlock, Nanos, Pool,
};

/// Which moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The highest block map recorded.
    Peak,
    /// The last block map recorded.
    End,
}

/// A device's memory at the moment of one block map, with the charge of every block.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When.
    pub time: Nanos,
    /// Bytes allocated: the sum of the blocks, or the counter's value where the map is degraded and
    /// the counter is greater.
    pub allocated: u64,
    /// Sum of the allocated blocks in the map, in bytes.
    pub in_blocks: u64,
    /// Sum of the segments, in bytes.
    pub reserved: u64,
    /// Bytes freed by the program that another stream may still use.
    pub pending_free: u64,
    /// Size of the largest free block, in bytes; 0 when there is none.
    pub largest_free: u64,
    /// Whether the map is one instant's truth.
    pub consistency: Consistency,
    /// Bytes of blocks that were there when the recording began.
    pub before_recording: u64,
    pub(crate) blocks: Vec<(u64, Arc<Charge>)>,
}

impl Snapshot {
    /// Bytes in the allocator's cache: reserved, but neither allocated nor waiting to be freed.
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.in_blocks).saturating_sub(self.pending_free)
    }

    /// Bytes whose birth the recording saw, and the height to decide between equals.
    fn explains(&self) -> (u64, u64) {
        let explained = self.rank().saturating_sub(self.before_recording);
        (explained, self.rank())
    }

    /// Height for comparison: a degraded map has to be 1 % higher than a consistent one to win.
    fn rank(&self) -> u64 {
        match self.consistency {
            Consistency::Consistent => self.allocated,
            Consistency::Degraded { .. } => self.allocated - self.allocated / 100,
        }
    }
}

/// An allocated block known from a map.
#[derive(Debug, Clone)]
struct Living {
    kind: Kind,
    charge: Option<Arc<Charge>>,
}

/// A map's allocated blocks by address, and the sums of the rest.
#[derive(Debug)]
pub(crate) struct Seen {
    time: Nanos,
    blocks: FxHashMap<u64, Living>,
    reserved: u64,
    pending_free: u64,
    largest_free: u64,
    consistency: Consistency,
}

impl Seen {
    pub(crate) fn of(map: &BlockMap) -> Seen {
        let mut seen = Seen {
            time: map.time,
            blocks: FxHashMap::default(),
            reserved: map.reserved(),
            pending_free: 0,
            largest_free: 0,
            consistency: map.consistency,
        };
        for (segment, block) in map.blocks() {
            match block.state {
                BlockState::Allocated => {
                    let pool = if segment.small { Pool::Small } else { Pool::Large };
                    let kind = Kind { size: block.size, requested: block.requested, pool };
                    // A torn map may show an address twice; the later block counts.
                    seen.blocks.insert(block.address, Living { kind, charge: None });
                }
                BlockState::PendingFree => seen.pending_free += block.size,
                BlockState::Inactive => seen.largest_free = seen.largest_free.max(block.size),
            }
        }
        seen
    }
}

/// What is known of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceProfile {
    pub(crate) counters: Option<(Nanos, Box<AllocatorCounters>)>,
    pub(crate) allocated: Option<HighWater>,
    pub(crate) reserved: Option<HighWater>,
    pub(crate) timeline: Timeline,
    pub(crate) peak: Option<Arc<Snapshot>>,
    pub(crate) end: Option<Arc<Snapshot>>,
    pub(crate) maps_consistent: u64,
    pub(crate) maps_degraded: u64,
    /// Grows by one whenever the counters change.
    pub(crate) version: u64,
    /// What the counters did around the last look at the stacks; `None` when they stood still.
    pub(crate) around: Option<Box<Around>>,
    ledger: Ledger,
    living: FxHashMap<u64, Living>,
    /// Blocks that a degraded map did not show; they may only have been overlooked.
    overlooked: FxHashMap<u64, Living>,
    last_map: Option<Nanos>,
    /// Height of the highest map.
    top: u64,
    before: Option<Arc<Charge>>,
}

impl DeviceProfile {
    /// A device that had no allocator at `time`: all its counters were 0, and no block is older.
    pub(crate) fn from_zero(time: Nanos) -> DeviceProfile {
        DeviceProfile {
            counters: Some((time, Box::default())),
            allocated: Some(HighWater::from_zero(time)),
            reserved: Some(HighWater::from_zero(time)),
            last_map: Some(time),
            ..DeviceProfile::default()
        }
    }

    /// Takes new counters, seen at `now`; `from` is the look before. Returns the old ones.
    pub(crate) fn step(
        &mut self,
        from: Nanos,
        now: Nanos,
        new: &AllocatorCounters,
        seen: &[(Origin, u64)],
    ) -> Option<Box<AllocatorCounters>> {
        self.version += 1;
        self.timeline.add(TimelinePoint {
            time: now,
            allocated: new.allocated(),
            reserved: new.reserved(),
        });
        let old = self.counters.replace((now, Box::new(*new)));
        let Some((_, old)) = old else {
            self.allocated = Some(HighWater::first(new.allocated(), new.max_allocated()));
            self.reserved = Some(HighWater::first(new.reserved(), new.max_reserved()));
            return None;
        };
        if let Some(high) = &mut self.allocated {
            high.next(old.max_allocated(), new.max_allocated(), new.allocated(), from, now);
        }
        if let Some(high) = &mut self.reserved {
            high.next(old.max_reserved(), new.max_reserved(), new.reserved(), from, now);
        }
        self.ledger.step((from.0, now.0), &old, new, seen);
        Some(old)
    }

    /// Takes a map: finds births, charges them, keeps the moment if it is the highest. `seen_last`
    /// is who was seen at the tick of the map.
    pub(crate) fn take_map(&mut self, mut map: Seen, tick: Nanos, seen_last: &[(Origin, u64)]) {
        match map.consistency {
            Consistency::Consistent => self.maps_consistent += 1,
            Consistency::Degraded { .. } => self.maps_degraded += 1,
        }
        let first = self.last_map.is_none();
        let lived_on = self.find_living(&mut map.blocks);
        if first {
            let before = self.before.get_or_insert_with(Charge::before).clone();
            for block in map.blocks.values_mut() {
                block.charge = Some(before.clone());
            }
        } else {
            self.charge_born(&mut map, lived_on, tick, seen_last);
        }
        self.keep_moment(&map);

        if let Consistency::Degraded { .. } = map.consistency {
            for (address, block) in self.living.drain() {
                if !map.blocks.contains_key(&address) {
                    self.overlooked.insert(address, block);
                }
            }
            // A block overlooked now and seen next time may have been born before this map.
            self.ledger.forget_before(self.last_map.map_or(map.time.0, |t| t.0));
        } else {
            self.overlooked.clear();
            self.ledger.clear();
        }
        self.living = map.blocks;
        self.last_map = Some(map.time);
    }

    /// Whether nothing was allocated since the last map.
    pub(crate) fn is_settled(&self) -> bool {
        self.last_map.is_none() || self.ledger.intervals.is_empty()
    }

    /// When the last map was read.
    pub(crate) fn last_map(&self) -> Option<Nanos> {
        self.last_map
    }

    /// The blocks of the last map with whom they are charged to.
    pub(crate) fn living(&self) -> impl Iterator<Item = (u64, Kind, Option<&Arc<Charge>>)> + '_ {
        self.living.iter().map(|(&address, block)| (address, block.kind, block.charge.as_ref()))
    }

    /// Goes on from the map that an earlier part of the recording read last, at `mapped`.
    pub(crate) fn inherit(
        &mut self,
        mapped: Nanos,
        blocks: impl Iterator<Item = (InheritedBlock, Arc<Charge>)>,
    ) {
        self.living.clear();
        for (block, charge) in blocks {
            let pool = if block.small { Pool::Small } else { Pool::Large };
            let kind = Kind { size: block.size, requested: block.requested, pool };
            self.living.insert(block.address, Living { kind, charge: Some(charge) });
        }
        self.last_map = Some(mapped);
        // What the counters did before it has been charged already.
        self.ledger.clear();
        (self.maps_consistent, self.maps_degraded, self.top) = (0, 0, 0);
        self.peak = None;
        // The last map stands before the inheritance, without makers: now they are known.
        if let Some(last) = self.end.take() {
            self.keep_moment(&Seen {
                time: last.time,
                blocks: self.living.clone(),
                reserved: last.reserved,
                pending_free: last.pending_free,
                largest_free: last.largest_free,
                consistency: last.consistency,
            });
        }
    }

    /// Gives the blocks known from the map before their charge; returns their bytes.
    fn find_living(&mut self, blocks: &mut FxHashMap<u64, Living>) -> PerPool {
        let mut lived_on = [0; 3];
        for (address, block) in blocks {
            let known = [&self.living, &self.overlooked]
                .into_iter()
                .find_map(|known| known.get(address).filter(|k| k.kind == block.kind));
            if let Some(known) = known {
                block.charge.clone_from(&known.charge);
                lived_on[0] += block.kind.size as i64;
                lived_on[block.kind.pool as usize] += block.kind.size as i64;
            }
        }
        lived_on
    }

    fn charge_born(
        &mut self,
        map: &mut Seen,
        mut lived_on: PerPool,
        tick: Nanos,
        seen_last: &[(Origin, u64)],
    ) {
        self.find_reborn(&mut map.blocks, &mut lived_on);
        let mut born: FxHashMap<Kind, u64> = FxHashMap::default();
        let mut in_blocks: PerPool = [0; 3];
        for block in map.blocks.values() {
            in_blocks[0] += block.kind.size as i64;
            in_blocks[block.kind.pool as usize] += block.kind.size as i64;
            if block.charge.is_none() {
                *born.entry(block.kind).or_default() += 1;
            }
        }
        if born.is_empty() {
            return;
        }
        self.book_rest(in_blocks, tick, map.time, seen_last);
        let between =
            Between { lived_on, from: self.last_map.map_or(0, |t| t.0), to: map.time.0, seen_last };
        let charges = charge_births(&self.ledger, &born, &between);
        for block in map.blocks.values_mut() {
            if block.charge.is_none() {
                block.charge = charges.get(&block.kind).cloned();
            }
        }
    }

    /// Takes the charge from blocks that must have been freed and allocated again (rule 2).
    fn find_reborn(&self, blocks: &mut FxHashMap<u64, Living>, lived_on: &mut PerPool) {
        let mut hidden = hidden_deaths(&self.ledger, *lived_on);
        if hidden.iter().all(|&h| h == 0) {
            return;
        }
        let mut youngest: Vec<(u64, u64)> = blocks
            .iter()
            .filter_map(|(&address, b)| Some((b.charge.as_ref()?.born, address)))
            .filter(|&(born, _)| born > 0)
            .collect();
        youngest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, address) in youngest {
            let Some(block) = blocks.get_mut(&address) else {
                continue;
            };
            let size = block.kind.size as i64;
            let pool = block.kind.pool as usize;
            let pool_or_all = if self.ledger.unpooled { 0 } else { pool };
            if size <= hidden[pool_or_all] {
                hidden[pool_or_all] -= size;
                block.charge = None;
                lived_on[0] -= size;
                lived_on[pool] -= size;
            }
        }
    }

    /// Adds what the map shows beyond the counters of its tick: allocated after they were read.
    fn book_rest(&mut self, in_blocks: PerPool, tick: Nanos, time: Nanos, seen: &[(Origin, u64)]) {
        let Some((_, counters)) = &self.counters else {
            return;
        };
        let current = super::ledger::per_pool(|p| {
            counters.stat(crate::model::Metric::AllocatedBytes, p).current
        });
        let mut bytes = [0; 3];
        for p in 0..3 {
            bytes[p] = (in_blocks[p] - current[p]).max(0);
        }
        if bytes[0] > 0 {
            self.ledger.push(Interval {
                from: tick.0.min(time.0),
                to: time.0.max(tick.0),
                bytes,
                count: [0; 3],
                requested: [0; 3],
                low_after: in_blocks,
                open: true,
                seen: seen.to_vec(),
            });
        }
    }

    fn keep_moment(&mut self, map: &Seen) {
        let in_blocks = map.blocks.values().map(|b| b.kind.size).sum();
        let before = self.before.get_or_insert_with(Charge::before).clone();
        let mut before_recording = 0;
        let mut blocks: Vec<(u64, Arc<Charge>)> = Vec::with_capacity(map.blocks.len());
        for block in map.blocks.values() {
            let charge = block.charge.as_ref().unwrap_or(&before).clone();
            if charge.born == 0 {
                before_recording += block.kind.size;
            }
            blocks.push((block.kind.size, charge));
        }
        let allocated = match map.consistency {
            Consistency::Consistent => in_blocks,
            Consistency::Degraded { allocated_counter, .. } => allocated_counter.max(in_blocks),
        };
        let snapshot = Arc::new(Snapshot {
            time: map.time,
            allocated,
            in_blocks,
            reserved: map.reserved,
            pending_free: map.pending_free,
            largest_free: map.largest_free,
            consistency: map.consistency,
            before_recording,
            blocks,
        });
        // The first map explains nothing: every block was there before. So of all maps at most
        // 0.4 % below the highest the one is kept that explains the most.
        self.top = self.top.max(snapshot.rank());
        let floor = self.top - self.top / 256;
        let better = |kept: &Arc<Snapshot>| {
            snapshot.rank() >= floor
                && (kept.rank() < floor || snapshot.explains() > kept.explains())
        };
        if self.peak.as_ref().is_none_or(better) {
            self.peak = Some(snapshot.clone());
        }
        self.end = Some(snapshot);
    }
}
