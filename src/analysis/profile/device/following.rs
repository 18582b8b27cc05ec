//! Attributes a followed device's blocks by counter deltas.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{DeviceProfile, LiveBlock, SnapshotBlocks};
use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, HostStacks, PerPool,
};
use crate::analysis::autograd::EngineFrames;
use crate::analysis::followed::{
    AllocatedTotals, DecodedDeltas, FollowedSteps, GroupAddresses, ProgramText,
};
use crate::model::{FollowedChange, Pool, SnapshotConsistency, StackTable};

impl DeviceProfile {
    /// Takes a counter delta, after the definitions of its stacks.
    pub(crate) fn follow(
        &mut self,
        change: &FollowedChange,
        text: ProgramText<'_>,
        engine: &EngineFrames,
        host_only: &HostStacks,
        decoded: Option<&Arc<DecodedDeltas>>,
    ) {
        let blocks = self.living.iter().map(|(&at, block)| (at, block.kind));
        let followed = self
            .followed
            .get_or_insert_with(|| FollowedSteps::begin(change, blocks, decoded.cloned()));
        if followed.push(change, text, engine, host_only) {
            self.doubt_last_snapshot();
        }
    }

    /// The last snapshot may show a later delta: not all that was proven there still is.
    fn doubt_last_snapshot(&mut self) {
        let Some(followed) = &self.followed else { return };
        let mut doubted: FxHashSet<(u64, Option<AllocationOrigin>)> = FxHashSet::default();
        for (at, block) in &mut self.living {
            let charge = block.attribution.as_ref().filter(|charge| charge.certain);
            if let Some(charge) = charge.filter(|_| !followed.is_proven(*at)) {
                doubted.insert((block.kind.size, charge.certain_origin()));
                block.attribution = Some(charge.uncertain());
            }
        }
        let moments = [&mut self.peak, &mut self.end].into_iter().flatten();
        for moment in moments.filter(|moment| Some(moment.time) == self.last_snapshot) {
            for (size, charge) in &mut Arc::make_mut(moment).blocks {
                if charge.certain && doubted.contains(&(*size, charge.certain_origin())) {
                    *charge = charge.uncertain();
                }
            }
        }
    }

    /// Takes a counter delta of a first reading.
    pub(crate) fn gather(
        &mut self,
        change: &FollowedChange,
        stacks: &StackTable,
        engine: &EngineFrames,
        host_only: &HostStacks,
    ) {
        let followed = self.followed.get_or_insert_default();
        followed.gather(change, stacks, engine, host_only);
    }

    pub(crate) fn into_decoded(self) -> Option<DecodedDeltas> {
        self.followed.map(FollowedSteps::decode)
    }

    pub(crate) fn follow_level(&mut self, change: &FollowedChange) {
        if !change.counters_torn {
            self.saw_level(change.live[0].saturating_add(change.live[1]), change.after);
        }
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.followed.is_some()
    }

    pub(crate) fn followed_totals(&self) -> Option<AllocatedTotals> {
        self.followed.as_ref().map(FollowedSteps::allocated)
    }

    pub(super) fn keep_complete(&mut self, snapshot: &SnapshotBlocks) {
        let is_complete = snapshot.consistency == SnapshotConsistency::Consistent;
        match &self.followed {
            Some(followed) if !is_complete && !followed.is_long() => {
                if self.complete.is_none() && self.overlooked.is_empty() {
                    self.complete = Some(std::mem::take(&mut self.living));
                }
            }
            _ if is_complete => self.complete = None,
            _ => {
                self.living =
                    self.complete.take().unwrap_or_else(|| std::mem::take(&mut self.living))
            }
        }
    }

    /// Drops the deltas that the snapshot has explained.
    pub(super) fn forget_changes(&mut self, snapshot: &SnapshotBlocks) {
        let Some(followed) = &mut self.followed else { return };
        match snapshot.consistency {
            SnapshotConsistency::Consistent => {
                let until = followed.until_map(snapshot.time.0, live_bytes(&snapshot.blocks));
                followed.forget(&until);
            }
            // The last consistent snapshot will explain the next one.
            SnapshotConsistency::Degraded { .. } if self.complete.is_some() => {}
            // A block missing now and listed next time may be older than this snapshot.
            SnapshotConsistency::Degraded { .. } => {
                followed.forget_before(self.last_snapshot.map_or(snapshot.time.0, |t| t.0));
            }
        }
    }

    pub(super) fn charge_followed(&mut self, snapshot: &mut SnapshotBlocks, text: ProgramText<'_>) {
        let Some(followed) = &mut self.followed else { return };
        followed.decode_last();
        followed.settle(text);
        let live = live_bytes(&snapshot.blocks);
        let until = Arc::new(followed.until_map(snapshot.time.0, live));
        let is_complete = snapshot.consistency == SnapshotConsistency::Consistent;
        // A consistent snapshot lists all blocks: those only in later snapshots came after it.
        let overlooked = self.complete.is_none().then_some(&self.overlooked);
        let old = self.complete.as_ref().unwrap_or(&self.living).iter();
        let old = old.chain(overlooked.into_iter().flatten());
        let before = old.filter_map(|(&address, block)| {
            Some((block.kind, address, block.attribution.clone()?))
        });
        let mut groups: FxHashMap<BlockGroup, GroupAddresses> = FxHashMap::default();
        let mut kept: PerPool = [0; 3];
        for (&address, block) in &snapshot.blocks {
            let group = groups.entry(block.kind).or_default();
            match &block.attribution {
                Some(attribution) => {
                    group.known.push((address, attribution.clone()));
                    kept[0] += block.kind.size as i64;
                    kept[block.kind.pool as usize] += block.kind.size as i64;
                }
                None => group.new.push(address),
            }
        }
        let above = snapshot.allocated().max(self.top).max(self.between.above());
        let (charges, highest) =
            followed.charge(&until, before, groups, kept, (is_complete, above));
        if let Some(highest) = highest {
            self.between.keep(highest);
        }
        take_charges(snapshot, charges);
        let proven = self.prove(snapshot);
        let Some(followed) = &mut self.followed else { return };
        if !is_complete {
            return;
        }
        let charged = snapshot.blocks.iter().filter_map(|(&address, block)| {
            Some((block.kind, address, block.attribution.clone()?))
        });
        let corrected = followed.correct(charged);
        take_charges(snapshot, corrected);
        let charged = snapshot.blocks.iter().map(|(&address, block)| {
            let before = || BlockAttribution::before();
            (block.kind, address, block.attribution.clone().unwrap_or_else(before))
        });
        let as_followed = followed.charge_as_followed(&until, live, charged);
        take_charges(snapshot, as_followed);
        take_proofs(snapshot, &proven);
    }

    /// Calls proven what is, and nothing else. Only consistent snapshots prove anything.
    pub(super) fn prove(
        &mut self,
        snapshot: &mut SnapshotBlocks,
    ) -> FxHashMap<u64, AllocationOrigin> {
        let Some(followed) = &mut self.followed else { return Default::default() };
        let blocks = snapshot.blocks.iter().map(|(&at, block)| (at, block.kind));
        let proven = match snapshot.consistency {
            SnapshotConsistency::Consistent => followed.prove(snapshot.time.0, blocks),
            SnapshotConsistency::Degraded { .. } => Default::default(),
        };
        take_proofs(snapshot, &proven);
        proven
    }
}

fn take_proofs(snapshot: &mut SnapshotBlocks, proven: &FxHashMap<u64, AllocationOrigin>) {
    for (at, block) in &mut snapshot.blocks {
        let origin = proven.get(at).copied();
        match (&block.attribution, origin) {
            (Some(charge), None) if charge.certain => block.attribution = Some(charge.uncertain()),
            (Some(charge), Some(origin)) if charge.certain_origin() != Some(origin) => {
                block.attribution = Some(charge.proven_of(origin));
            }
            (None, Some(origin)) => {
                block.attribution = Some(BlockAttribution::before().proven_of(origin));
            }
            _ => {}
        }
    }
}

fn take_charges(
    snapshot: &mut SnapshotBlocks,
    charges: impl IntoIterator<Item = (u64, Arc<BlockAttribution>)>,
) {
    for (address, attribution) in charges {
        if let Some(block) = snapshot.blocks.get_mut(&address) {
            block.attribution = Some(attribution);
        }
    }
}

fn live_bytes(blocks: &FxHashMap<u64, LiveBlock>) -> [i64; 2] {
    let of = |pool| {
        let sizes = blocks.values().filter(|b| b.kind.pool == pool).map(|b| b.kind.size as i64);
        sizes.sum()
    };
    [of(Pool::Small), of(Pool::Large)]
}
