//! Keyframes: the state inherited from a dropped earlier part of a recording.
//!
//! To keep only the last minutes, let a profile read all records, ask it for [`Profile::keyframe`]
//! between two segments, and put that before the next one. A profile that starts there attributes
//! every block as the first would.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Profile;
use crate::analysis::attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::exact::SourceTable;
use crate::analysis::profile::device::DeviceProfile;
use crate::model::{
    AllocationSource, AttributionShare, Keyframe, KeyframeBlock, KeyframeMemory, MemoryKind, Nanos,
    OwnerPaths, Pool, Record, StackTable,
};

impl Profile {
    /// Whether all allocated blocks are attributed, so that a cut here loses nothing. Call
    /// [`Profile::finish`] first.
    pub fn is_settled(&self) -> bool {
        match self.exact() {
            Some(exact) => exact.is_settled(),
            None => self.profiles.values().all(DeviceProfile::is_settled),
        }
    }

    /// Live memory, for a recording that begins at `time`.
    pub fn keyframe(&self, time: Nanos) -> Keyframe {
        let mut allocation_sources = SourceTable::default();
        let mut memory = Vec::new();
        match self.exact() {
            Some(exact) => {
                exact.add_to_keyframe(&self.stacks, &mut allocation_sources, &mut memory)
            }
            None => self.add_sampled(&mut allocation_sources, &mut memory),
        }
        Keyframe { time, allocation_sources: allocation_sources.list, memory }
    }

    fn add_sampled(&self, sources: &mut SourceTable, memory: &mut Vec<KeyframeMemory>) {
        for (&device, profile) in &self.profiles {
            let Some(mapped) = profile.last_snapshot_time() else { continue };
            let mut blocks: Vec<KeyframeBlock> = Vec::new();
            for (address, kind, charge) in profile.live_blocks() {
                blocks.push(KeyframeBlock {
                    address,
                    size: kind.size,
                    requested: kind.requested,
                    stands_for: kind.size,
                    allocated_at: Nanos(charge.map_or(0, |charge| charge.allocated_at)),
                    small: kind.pool == Pool::Small,
                    allocation_source: sources.index(
                        charge.map_or(AllocationSource::Before, |charge| {
                            allocation_source(charge, &self.stacks)
                        }),
                    ),
                });
            }
            blocks.sort_unstable_by_key(|block| block.address);
            memory.push(KeyframeMemory {
                memory_kind: MemoryKind::Torch(device),
                mapped: Some(mapped),
                levels: None,
                freed_since: 0,
                blocks,
            });
        }
    }

    /// Records to put before the keyframe, numbered as in [`Profile::stacks`]. The caller adds
    /// definitions and sources.
    pub fn state_records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.start().cloned().map(Record::Start));
        records.extend(self.runtime().cloned().map(Record::Runtime));
        records.extend(self.devices().iter().cloned().map(Record::Device));
        records.extend(self.exact().map(|exact| Record::ExactSettings(exact.exact().clone())));
        records.extend(self.usage().values().map(|usage| Record::Usage(usage.last.clone())));
        for device in self.gpus() {
            let counters = self.profiles.get(&device).and_then(|p| p.counters.as_ref());
            if let Some((time, counters)) = counters {
                let (time, counters) = (*time, counters.clone());
                records.push(Record::Counters { time, device, counters });
            }
        }
        records
    }

    pub(super) fn on_keyframe(&mut self, inherited: &Keyframe) {
        self.finish();
        let continues = std::mem::take(&mut self.after_gap);
        if !continues {
            self.begins = Some(inherited.time);
        }
        self.last_time = self.last_time.max(inherited.time);
        if let Some(exact) = &mut self.exact {
            exact.restore(inherited, &mut self.stacks, continues);
            return;
        }
        let paths = &mut self.stacks.owners;
        let mut charges: FxHashMap<(u32, u64), Arc<BlockAttribution>> = FxHashMap::default();
        for memory in &inherited.memory {
            let (MemoryKind::Torch(device), Some(mapped)) = (memory.memory_kind, memory.mapped)
            else {
                continue;
            };
            let blocks = memory.blocks.iter().map(|block| {
                let charge = charges
                    .entry((block.allocation_source, block.allocated_at.0))
                    .or_insert_with(|| {
                        let allocation_source =
                            inherited.allocation_sources.get(block.allocation_source as usize);
                        allocation_source.map_or_else(
                            BlockAttribution::before,
                            |allocation_source| {
                                block_attribution(allocation_source, block.allocated_at.0, paths)
                            },
                        )
                    });
                (*block, charge.clone())
            });
            self.profiles.entry(device).or_default().restore(mapped, blocks, continues);
        }
    }
}

fn allocation_source(charge: &Arc<BlockAttribution>, table: &StackTable) -> AllocationSource {
    if let [(AllocationOrigin::Before, _)] = charge.shares[..] {
        return AllocationSource::Before;
    }
    if charge.is_before() {
        let owner = |&(origin, weight): &(AllocationOrigin, u64)| match origin {
            AllocationOrigin::BeforeOwned(owner) => (table.owners.texts(owner).into(), weight),
            _ => ([].into(), weight),
        };
        return AllocationSource::BeforeOwned(charge.shares.iter().map(owner).collect());
    }
    let share = |&(origin, weight): &(AllocationOrigin, u64)| match origin {
        AllocationOrigin::Stack(thread, stack) | AllocationOrigin::Below(thread, stack) => {
            AttributionShare { by: Some((thread, stack)), weight }
        }
        AllocationOrigin::Before
        | AllocationOrigin::BeforeOwned(_)
        | AllocationOrigin::NoStack
        | AllocationOrigin::NotSeen => AttributionShare { by: None, weight },
    };
    AllocationSource::Observed {
        shares: charge.shares.iter().map(share).collect(),
        span: charge.span.map(Nanos),
        contested: charge.contested || charge.doubted,
    }
}

fn block_attribution(
    allocation_source: &AllocationSource,
    born: u64,
    paths: &mut OwnerPaths,
) -> Arc<BlockAttribution> {
    if let AllocationSource::BeforeOwned(owners) = allocation_source {
        let owners: Option<Vec<_>> =
            owners.iter().map(|(path, weight)| Some((paths.intern(path)?, *weight))).collect();
        let owners = owners.filter(|owners| owners.iter().any(|owner| owner.1 > 0));
        return owners.map_or_else(BlockAttribution::before, |owners| {
            BlockAttribution::before_owned(&owners)
        });
    }
    let &AllocationSource::Observed { ref shares, span, contested } = allocation_source else {
        return BlockAttribution::before();
    };
    let origin = |share: &AttributionShare| match share.by {
        Some((thread, stack)) => (AllocationOrigin::Stack(thread, stack), share.weight),
        // The trace does not say whether a stack was read; `NotSeen` is true either way.
        None => (AllocationOrigin::NotSeen, share.weight),
    };
    let mut shares: Vec<(AllocationOrigin, u64)> = shares.iter().map(origin).collect();
    if shares.iter().all(|share| share.1 == 0) {
        shares = vec![(AllocationOrigin::NoStack, 1)];
    }
    Arc::new(BlockAttribution {
        shares,
        span: span.map(|span| span.0),
        allocated_at: born,
        certain: false,
        contested,
        doubted: false,
    })
}
