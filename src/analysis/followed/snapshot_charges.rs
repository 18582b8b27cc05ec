//! Whom the blocks of a snapshot are charged to, by the deltas up to it.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup, PerPool};
use crate::analysis::followed::follow_replay::{
    FollowReplay, GroupAddresses, ReplayResult, SnapshotBlock,
};
use crate::analysis::followed::followed_states::{
    AliveKinds, FollowedStretch, alike_kinds, charge_alike, rested_part,
};
use crate::analysis::followed::free_sites::{FreeChoice, FreeSite};
use crate::analysis::followed::highest_moment::HighestMoment;
use crate::analysis::followed::repeated_steps::LiveBytes;
use crate::analysis::followed::{FollowedSteps, UntilMap};

/// A block that so many maps before had in its place, and the map that ends the replay still has,
/// was most likely never freed.
const LASTING: usize = 2;
/// Maps of which is remembered when they were read.
const MAX_MAPS: usize = 1 << 12;

impl FollowedSteps {
    /// Charges the blocks of a map: `before` has those of the map before, `blocks` this one's by
    /// group. `lived_on` are the bytes that have a maker already. A map that is not complete
    /// teaches nothing: a block that it does not have may be alive. Gives the moments before the
    /// map that were highest, too, if they are higher than `above` bytes.
    pub(crate) fn charge(
        &mut self,
        until: &Arc<UntilMap>,
        before: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
        blocks: FxHashMap<BlockGroup, GroupAddresses>,
        lived_on: PerPool,
        (is_complete, above): (bool, u64),
    ) -> (FxHashMap<u64, Arc<BlockAttribution>>, Option<HighestMoment>) {
        let known: FxHashSet<(BlockGroup, u64)> = blocks
            .iter()
            .flat_map(|(group, of_group)| of_group.known.iter().map(|(at, _)| (*group, *at)))
            .collect();
        let before = before.map(|(group, address, attribution)| {
            let is_gone = !known.contains(&(group, address));
            let batch = self.maps.partition_point(|map| *map < attribution.allocated_at);
            let lasts = self.maps.len() - batch >= LASTING;
            SnapshotBlock { group, address, attribution, batch, lasts, is_gone }
        });
        let before: Vec<SnapshotBlock> = before.collect();
        // Without addresses too many frees are guessed in the midst of an iteration.
        let is_kept = is_complete && until.steps.iter().any(|step| step.addresses.is_some());
        let stretch = is_kept.then(|| FollowedStretch::new(Arc::clone(until), before.clone()));
        let before = before.into_iter();
        let mut replay = FollowReplay::new(before, &self.sites);
        let above = is_complete.then_some(above);
        let mut highest = until.replay(&mut replay, above);
        if let Some(moment) = &mut highest {
            let time = moment.time;
            moment.keep_proven(|size| self.proof.none_freed(size, time));
        }
        let ReplayResult { mut attributions, unexplained, freed, choices, checked } =
            replay.finish(blocks);
        if is_complete {
            self.learn(until, freed, choices);
            self.sites.youngest.join(checked);
        }
        if let Some(stretch) = stretch {
            self.states.keep(stretch);
        }
        if !unexplained.is_empty() {
            let mut left: FxHashMap<BlockGroup, Vec<u64>> = FxHashMap::default();
            for (group, address) in unexplained {
                left.entry(group).or_default().push(address);
            }
            let addresses: Vec<u64> = left.values().flatten().copied().collect();
            until.charge_left(left, lived_on, &mut attributions);
            for address in addresses.iter().filter(|_| self.are_of_threads()) {
                attributions.entry(*address).and_modify(|charge| *charge = charge.in_doubt());
            }
        }
        (attributions, highest.and_then(HighestMoment::add_up))
    }

    /// Charges the blocks of a complete map as those that were alive where the program was in an
    /// iteration that was followed, if polls rested on the way to it (`followed_states.rs`); `live`
    /// are the bytes in the small and in the large pool. Gives what is changed.
    pub(crate) fn charge_as_followed(
        &mut self,
        until: &UntilMap,
        live: LiveBytes,
        blocks: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
    ) -> Vec<(u64, Arc<BlockAttribution>)> {
        let Some(rested) = rested_part(&until.steps) else { return Vec::new() };
        let mut by_kind: FxHashMap<BlockGroup, Vec<(u64, Arc<BlockAttribution>)>> =
            FxHashMap::default();
        for (kind, address, attribution) in blocks {
            by_kind.entry(kind).or_default().push((address, attribution));
        }
        let counts = by_kind.iter().map(|(kind, blocks)| (*kind, blocks.len())).collect();
        let Some(alive) = self.alive_at_level(live, rested, &counts) else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        for (kind, blocks) in by_kind {
            let alike = alive.get(&kind).filter(|alive| alive.len() == blocks.len());
            if let Some(charged) = alike.and_then(|alive| charge_alike(&blocks, alive)) {
                changed.extend(charged);
                self.sites.settle(kind);
            }
        }
        changed
    }

    /// The blocks alive at a moment that was followed at which so much was.
    fn alive_at_level(
        &mut self,
        live: LiveBytes,
        rested: f64,
        counts: &FxHashMap<BlockGroup, usize>,
    ) -> Option<Arc<AliveKinds>> {
        if let Some(known) = self.states.known(live) {
            return known;
        }
        let moment = self.states.moment(live, rested).and_then(|(stretch, at)| {
            let blocks = stretch.blocks.iter().cloned();
            let mut replay = FollowReplay::new(blocks, &self.sites);
            stretch.until.alive_at(at, &mut replay)
        });
        let alive = moment.and_then(|alive| alike_kinds(alive, counts)).map(Arc::new);
        self.states.remember(live, alive.clone());
        alive
    }

    /// Learns from the changes between two complete maps.
    fn learn(
        &mut self,
        until: &UntilMap,
        freed: Vec<(BlockGroup, FreeSite, AllocationOrigin)>,
        choices: Vec<(BlockGroup, FreeChoice)>,
    ) {
        for step in &until.steps {
            if let Some(kind) = step.allocated {
                self.sites.allocate(kind, &step.charge, step.to);
            }
        }
        if self.maps.len() == MAX_MAPS {
            self.maps.pop_front();
        }
        self.maps.extend(until.steps.last().map(|step| step.to));
        for (group, site, origin) in freed {
            self.sites.add(group, &site, origin);
        }
        for (group, choice) in choices {
            self.sites.remember(group, choice);
        }
    }

    /// Puts right what was taken for freed while it was not known yet what each line frees.
    pub(crate) fn correct(
        &mut self,
        blocks: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
    ) -> Vec<(u64, Arc<BlockAttribution>)> {
        let mut open: FxHashMap<BlockGroup, Vec<(u64, Arc<BlockAttribution>)>> =
            self.sites.open_groups().map(|group| (*group, Vec::new())).collect();
        for (group, address, attribution) in blocks {
            if let Some(of_group) = open.get_mut(&group) {
                of_group.push((address, attribution));
            }
        }
        let correct = |(group, blocks)| self.sites.correct(group, blocks);
        open.into_iter().flat_map(correct).collect()
    }
}
