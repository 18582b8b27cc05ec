//! One device over a recording.

mod between_maps;
mod following;
mod sampled;
mod torn_map;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::{
    AllocationOrigin, AttributedSnapshot, BlockAttribution, BlockGroup, CounterIntervals, PerPool,
    WaitingPlaces,
};
use crate::analysis::followed::{FollowedSteps, ProgramText};
use crate::analysis::owners::{BlockOwners, OwnedBlocks};
use crate::analysis::profile::bounds::CounterBracket;
use crate::analysis::profile::device::between_maps::{ABOUT, HighestBetween};
use crate::analysis::profile::device::sampled::new_blocks;
use crate::analysis::profile::high_water::{HighWater, SeenLevel};
use crate::analysis::profile::timeline::{Timeline, TimelinePoint};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, BlockState, KeyframeBlock, Nanos, Pool,
    SnapshotConsistency,
};

#[derive(Debug, Clone)]
struct LiveBlock {
    kind: BlockGroup,
    attribution: Option<Arc<BlockAttribution>>,
    /// By samples, if the polls missed it.
    sampled: Option<Arc<BlockAttribution>>,
}

impl LiveBlock {
    fn new(kind: BlockGroup) -> LiveBlock {
        LiveBlock { kind, attribution: None, sampled: None }
    }

    /// Attribution by polls, else by samples.
    fn charge(&self) -> Option<&Arc<BlockAttribution>> {
        let seen = self.attribution.as_ref();
        match &self.sampled {
            Some(sampled) if seen.is_some_and(|seen| seen.is_not_seen()) => Some(sampled),
            _ => seen,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SnapshotBlocks {
    time: Nanos,
    blocks: FxHashMap<u64, LiveBlock>,
    reserved: u64,
    pending_free: u64,
    largest_free: u64,
    consistency: SnapshotConsistency,
}

impl SnapshotBlocks {
    pub(crate) fn new(snapshot: &AllocatorSnapshot) -> SnapshotBlocks {
        let mut seen = SnapshotBlocks {
            time: snapshot.time,
            blocks: FxHashMap::default(),
            reserved: snapshot.reserved(),
            pending_free: 0,
            largest_free: 0,
            consistency: snapshot.consistency,
        };
        for (segment, block) in snapshot.blocks() {
            match block.state {
                BlockState::Allocated => {
                    let pool = if segment.small { Pool::Small } else { Pool::Large };
                    let kind = BlockGroup { size: block.size, requested: block.requested, pool };
                    // An inconsistent snapshot may repeat an address.
                    seen.blocks.insert(block.address, LiveBlock::new(kind));
                }
                BlockState::PendingFree => seen.pending_free += block.size,
                BlockState::Inactive => seen.largest_free = seen.largest_free.max(block.size),
            }
        }
        seen
    }

    /// The counter's value if the snapshot is inconsistent.
    fn allocated(&self) -> u64 {
        match self.consistency {
            SnapshotConsistency::Consistent => self.blocks.values().map(|b| b.kind.size).sum(),
            SnapshotConsistency::Degraded { allocated_counter, .. } => allocated_counter,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct DeviceProfile {
    pub(crate) counters: Option<(Nanos, Box<AllocatorCounters>)>,
    pub(crate) allocated: Option<HighWater>,
    pub(crate) reserved: Option<HighWater>,
    pub(crate) timeline: Timeline,
    pub(crate) peak: Option<Arc<AttributedSnapshot>>,
    pub(crate) end: Option<Arc<AttributedSnapshot>>,
    /// Kept only if higher than all snapshots.
    between: HighestBetween,
    pub(crate) snapshots_consistent: u64,
    pub(crate) snapshots_degraded: u64,
    /// Incremented when counters change.
    pub(crate) version: u64,
    /// Changes of the counters around the last sample.
    pub(crate) around: Option<Box<CounterBracket>>,
    ledger: CounterIntervals,
    followed: Option<FollowedSteps>,
    living: FxHashMap<u64, LiveBlock>,
    /// Missing in an inconsistent snapshot, but perhaps live.
    overlooked: FxHashMap<u64, LiveBlock>,
    /// The last consistent snapshot, while later ones are inconsistent (followed recordings).
    complete: Option<FxHashMap<u64, LiveBlock>>,
    last_snapshot: Option<Nanos>,
    top: u64,
    /// Highest level by deltas and snapshots; `allocated` has that of counter records.
    seen: Option<SeenLevel>,
    /// See `torn_map.rs`.
    surplus: FxHashSet<u64>,
    before: Option<Arc<BlockAttribution>>,
    /// Records are missing since the last counters, and the last snapshot.
    counters_interrupted: bool,
    snapshot_interrupted: bool,
}

impl DeviceProfile {
    /// Allocations and frees in the gap are unknown.
    pub(crate) fn interrupt(&mut self) {
        (self.counters_interrupted, self.snapshot_interrupted) = (true, true);
        self.around = None;
        self.ledger.clear();
        self.overlooked.clear();
        self.complete = None;
    }

    /// No allocator existed at `time`, so all counters were 0.
    pub(crate) fn from_zero(time: Nanos) -> DeviceProfile {
        DeviceProfile {
            counters: Some((time, Box::default())),
            allocated: Some(HighWater::from_zero(time)),
            reserved: Some(HighWater::from_zero(time)),
            last_snapshot: Some(time),
            ..DeviceProfile::default()
        }
    }

    /// Returns the old counters.
    pub(crate) fn step(
        &mut self,
        from: Nanos,
        now: Nanos,
        new: &AllocatorCounters,
        seen: &[(AllocationOrigin, u64)],
    ) -> Option<Box<AllocatorCounters>> {
        self.version += 1;
        self.timeline.add(TimelinePoint {
            time: now,
            allocated: new.allocated(),
            reserved: new.reserved(),
        });
        let old = self.counters.replace((now, Box::new(*new)));
        let Some((_, old)) = old else {
            self.allocated = Some(HighWater::first(new.allocated(), new.max_allocated(), now));
            self.reserved = Some(HighWater::first(new.reserved(), new.max_reserved(), now));
            return None;
        };
        if let Some(high) = &mut self.allocated {
            high.next(old.max_allocated(), new.max_allocated(), new.allocated(), from, now);
        }
        if let Some(high) = &mut self.reserved {
            high.next(old.max_reserved(), new.max_reserved(), new.reserved(), from, now);
        }
        if std::mem::take(&mut self.counters_interrupted) {
            return None;
        }
        self.ledger.step((from.0, now.0), &old, new, seen);
        Some(old)
    }

    pub(crate) fn leave_out_waits(&mut self, places: &WaitingPlaces) {
        self.ledger.leave_out(places);
    }

    /// Attributes new blocks; keeps the moment if it is the highest. `seen_last`: stacks of its
    /// tick. Returns the work; above `max_work`, nothing is attributed.
    pub(crate) fn on_snapshot(
        &mut self,
        mut snapshot: SnapshotBlocks,
        tick: Nanos,
        seen_last: &[(AllocationOrigin, u64)],
        max_work: u64,
        text: ProgramText<'_>,
    ) -> u64 {
        let mut work = 0;
        match snapshot.consistency {
            SnapshotConsistency::Consistent => self.snapshots_consistent += 1,
            SnapshotConsistency::Degraded { .. } => self.snapshots_degraded += 1,
        }
        if std::mem::take(&mut self.snapshot_interrupted) {
            self.begin_again(snapshot);
            return work;
        }
        // Followed from the beginning: no block is older.
        let began_empty = self.followed.as_ref().is_some_and(FollowedSteps::began_empty);
        let first = self.last_snapshot.is_none() && !began_empty;
        let survived = self.find_living(&mut snapshot.blocks);
        if first {
            let before = self.before.get_or_insert_with(BlockAttribution::before).clone();
            for block in snapshot.blocks.values_mut() {
                block.attribution = Some(before.clone());
            }
            self.prove(&mut snapshot);
        } else {
            work = self.attribute_allocated(
                &mut snapshot,
                survived,
                (tick, seen_last),
                max_work,
                text,
            );
        }
        self.keep_moment(&snapshot);
        self.keep_complete(&snapshot);
        self.forget_changes(&snapshot);

        if let SnapshotConsistency::Degraded { .. } = snapshot.consistency {
            for (address, block) in self.living.drain() {
                if !snapshot.blocks.contains_key(&address) {
                    self.overlooked.insert(address, block);
                }
            }
            // A block missing now and listed next time may be older.
            self.ledger.forget_before(self.last_snapshot.map_or(snapshot.time.0, |t| t.0));
        } else {
            self.overlooked.clear();
            self.ledger.clear();
        }
        self.living = snapshot.blocks;
        self.last_snapshot = Some(snapshot.time);
        work
    }

    /// After a gap: blocks allocated in it cannot be distinguished.
    fn begin_again(&mut self, mut snapshot: SnapshotBlocks) {
        let lost = Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::NoStack, 1)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
            doubted: false,
        });
        self.find_living(&mut snapshot.blocks);
        for block in snapshot.blocks.values_mut() {
            block.attribution.get_or_insert_with(|| lost.clone());
        }
        self.keep_moment(&snapshot);
        self.ledger.clear();
        if let Some(followed) = &mut self.followed {
            followed.clear();
        }
        self.living = snapshot.blocks;
        self.last_snapshot = Some(snapshot.time);
    }

    pub(crate) fn memory(&self) -> u64 {
        let moments = [&self.peak, &self.end].into_iter().flatten().map(|moment| &**moment);
        let moments = moments.chain(self.between.kept());
        let listed: usize = moments.map(|moment| moment.blocks.len()).sum();
        let blocks = (self.living.len() + self.overlooked.len()) * 4 * size_of::<LiveBlock>();
        self.ledger.memory() + (blocks + listed * size_of::<(u64, Arc<BlockAttribution>)>()) as u64
    }

    /// No allocation since the last snapshot.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = match &self.followed {
            Some(followed) => followed.is_settled(),
            None => self.ledger.intervals.is_empty(),
        };
        self.last_snapshot.is_none() || settled
    }

    pub(crate) fn last_snapshot_time(&self) -> Option<Nanos> {
        self.last_snapshot
    }

    pub(crate) fn mark(&self) -> Option<HighWater> {
        match (self.allocated, self.seen) {
            (Some(counted), Some(seen)) => Some(counted.with_level(seen)),
            (counted, seen) => counted.or(seen.map(HighWater::of_level)),
        }
    }

    pub(super) fn saw_level(&mut self, bytes: i64, time: Nanos) {
        if self.seen.is_none_or(|seen| bytes > seen.bytes) {
            self.seen = Some(SeenLevel { bytes, from: time, to: time });
        }
        self.timeline.raise(time, bytes);
    }

    pub(crate) fn is_surplus(&self, address: u64) -> bool {
        self.surplus.contains(&address)
    }

    pub(crate) fn live_blocks(
        &self,
    ) -> impl Iterator<Item = (u64, BlockGroup, Option<&Arc<BlockAttribution>>)> + '_ {
        self.living.iter().map(|(&address, block)| (address, block.kind, block.charge()))
    }

    /// Continues from the last snapshot of an earlier part.
    pub(crate) fn restore(
        &mut self,
        mapped: Nanos,
        blocks: impl Iterator<Item = (KeyframeBlock, Arc<BlockAttribution>)>,
        continues: bool,
    ) {
        self.living.clear();
        self.complete = None;
        for (block, charge) in blocks {
            let pool = if block.small { Pool::Small } else { Pool::Large };
            let kind = BlockGroup { size: block.size, requested: block.requested, pool };
            let live = LiveBlock { attribution: Some(charge), ..LiveBlock::new(kind) };
            self.living.insert(block.address, live);
        }
        self.last_snapshot = Some(mapped);
        // Earlier intervals are attributed already.
        self.ledger.clear();
        if let Some(followed) = &mut self.followed {
            followed.clear();
        }
        self.snapshot_interrupted = false;
        if !continues {
            (self.snapshots_consistent, self.snapshots_degraded, self.top) = (0, 0, 0);
            (self.peak, self.between) = (None, HighestBetween::default());
            self.seen = None;
        }
        // The last snapshot precedes the inherited attributions.
        if let Some(last) = self.end.take() {
            self.keep_moment(&SnapshotBlocks {
                time: last.time,
                blocks: self.living.clone(),
                reserved: last.reserved.unwrap_or_default(),
                pending_free: last.pending_free,
                largest_free: last.largest_free,
                consistency: last.consistency,
            });
        }
    }

    /// Copies known attributions; returns the bytes of these blocks.
    fn find_living(&mut self, blocks: &mut FxHashMap<u64, LiveBlock>) -> PerPool {
        let mut survived = [0; 3];
        for (address, block) in blocks {
            let known = [self.complete.as_ref().unwrap_or(&self.living), &self.overlooked]
                .into_iter()
                .find_map(|known| known.get(address).filter(|k| k.kind == block.kind));
            if let Some(known) = known {
                block.attribution.clone_from(&known.attribution);
                block.sampled.clone_from(&known.sampled);
                survived[0] += block.kind.size as i64;
                survived[block.kind.pool as usize] += block.kind.size as i64;
            }
        }
        survived
    }

    fn attribute_allocated(
        &mut self,
        snapshot: &mut SnapshotBlocks,
        mut survived: PerPool,
        (tick, seen_last): (Nanos, &[(AllocationOrigin, u64)]),
        max_work: u64,
        text: ProgramText<'_>,
    ) -> u64 {
        if self.followed.is_some() {
            let new = new_blocks(&snapshot.blocks);
            self.charge_followed(snapshot, text);
            self.charge_unseen(snapshot, new, survived, (tick, seen_last), max_work);
            return snapshot.blocks.len() as u64;
        }
        self.find_reused(&mut snapshot.blocks, &mut survived);
        let (charges, work) =
            self.charges_by_samples(snapshot, None, survived, (tick, seen_last), max_work);
        for block in snapshot.blocks.values_mut() {
            if block.attribution.is_none() {
                block.attribution = charges.get(&block.kind).cloned();
            }
        }
        work
    }

    /// Also sets them in the kept moments. False if no snapshot has shown these blocks.
    pub(crate) fn set_older_owners(&mut self, owned: &OwnedBlocks) -> bool {
        if self.last_snapshot.is_none() {
            return false;
        }
        let mut known: FxHashMap<&BlockOwners, Arc<BlockAttribution>> = FxHashMap::default();
        let mut given: FxHashMap<u64, (u64, Arc<BlockAttribution>)> = FxHashMap::default();
        for (&address, block) in &mut self.living {
            let is_ownerless = |charge: &Arc<BlockAttribution>| {
                matches!(charge.shares[..], [(AllocationOrigin::Before, _)])
            };
            let size = block.kind.size;
            if block.attribution.as_ref().is_some_and(is_ownerless)
                && let Some(owners) = owned.get(&address)
                && owners.iter().map(|(_, bytes)| bytes).sum::<u64>() == size
            {
                let attribution = known
                    .entry(owners)
                    .or_insert_with(|| BlockAttribution::before_owned(owners))
                    .clone();
                given.insert(address, (size, attribution.clone()));
                block.attribution = Some(attribution);
            }
        }
        let same = match (&self.peak, &self.end) {
            (Some(peak), Some(end)) => Arc::ptr_eq(peak, end),
            _ => false,
        };
        let moments = [&mut self.peak, &mut self.end].into_iter().flatten();
        for moment in moments.chain(self.between.kept_mut()) {
            Arc::make_mut(moment).set_owners(&given);
        }
        if same {
            self.end.clone_from(&self.peak);
        }
        true
    }

    pub(crate) fn highest(&self) -> Option<&Arc<AttributedSnapshot>> {
        // At about equal levels, a snapshot knows more.
        let above = self.top + self.top / ABOUT;
        let between = self.between.best().filter(|between| between.allocated > above);
        between.or(self.peak.as_ref())
    }

    fn keep_moment(&mut self, snapshot: &SnapshotBlocks) {
        let before = self.before.get_or_insert_with(BlockAttribution::before).clone();
        let allocated = snapshot.allocated();
        self.surplus = torn_map::surplus(&snapshot.blocks, allocated);
        self.saw_level(allocated as i64, snapshot.time);
        let surplus = &self.surplus;
        let blocks = || snapshot.blocks.iter().filter(|(at, _)| !surplus.contains(at));
        let in_blocks = blocks().map(|(_, block)| block.kind.size).sum();
        let mut kept = AttributedSnapshot {
            time: snapshot.time,
            allocated,
            in_blocks,
            reserved: Some(snapshot.reserved),
            pending_free: snapshot.pending_free,
            largest_free: snapshot.largest_free,
            consistency: snapshot.consistency,
            before_recording: 0,
            followed: self.followed.is_some(),
            blocks: Vec::with_capacity(snapshot.blocks.len()),
            addresses: Vec::new(),
            ownerless: Vec::new(),
        };
        for (&address, block) in blocks() {
            let charge = block.charge().unwrap_or(&before).clone();
            kept.push(Some(address), block.kind.size, charge);
        }
        let snapshot = Arc::new(kept);
        // The first snapshot attributes nothing: within 0.4 % of the highest, keep the best
        // attributed.
        self.top = self.top.max(snapshot.rank());
        let floor = self.top - self.top / ABOUT;
        let better = |kept: &Arc<AttributedSnapshot>| {
            snapshot.rank() >= floor
                && (kept.rank() < floor || snapshot.explains() > kept.explains())
        };
        if self.peak.as_ref().is_none_or(better) {
            self.peak = Some(snapshot.clone());
        }
        self.end = Some(snapshot);
    }
}
