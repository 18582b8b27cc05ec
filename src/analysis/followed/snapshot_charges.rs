//! Whom the blocks of a map are charged to, by the changes up to it: rules 5, 6 and 8.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::counter_intervals::PerPool;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::dropped_variables::ProgramText;
use crate::analysis::followed::follow_replay::{
    FollowReplay, GroupAddresses, ReplayResult, SnapshotBlock,
};
use crate::analysis::followed::free_sites::{FreeChoice, FreeSite};
use crate::analysis::followed::highest_moment::HighestMoment;
use crate::analysis::followed::replayed_group::Stays;
use crate::analysis::followed::{FollowedSteps, UntilMap};

/// A block that so many maps before had in its place, and the map that ends the replay still has, was most likely never freed.
const LASTING: usize = 2;
/// Maps of which is remembered when they were read.
const MAX_MAPS: usize = 1 << 12;

impl FollowedSteps {
    /// Charges the blocks of a map (rules 5, 6 and 8): `before` has those of the map before, `blocks` this one's by group.
    /// `lived_on` are the bytes that have a maker already. A map that is not complete teaches nothing: a block that it does
    /// not have may be alive. Gives the moments before the map that were highest, too, if they are higher than `above` bytes.
    pub(crate) fn charge(
        &mut self,
        until: &UntilMap,
        before: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
        blocks: FxHashMap<BlockGroup, GroupAddresses>,
        lived_on: PerPool,
        (is_complete, above): (bool, u64),
        text: ProgramText<'_>,
    ) -> (FxHashMap<u64, Arc<BlockAttribution>>, Vec<HighestMoment>) {
        let known: FxHashSet<(BlockGroup, u64)> = blocks
            .iter()
            .flat_map(|(group, of_group)| of_group.known.iter().map(|(at, _)| (*group, *at)))
            .collect();
        let remade = until.remade();
        let before = before.map(|(group, address, attribution)| {
            let is_gone = !known.contains(&(group, address));
            let batch = self.maps.partition_point(|map| *map < attribution.allocated_at);
            let maps = self.maps.len() - batch;
            let stays = match (remade.has_another(group, &attribution), maps >= LASTING) {
                (Some(true) | None, false) => Stays::Unknown,
                (Some(true), true) => Stays::Seldom,
                (Some(false), false) => Stays::Likely,
                (Some(false) | None, true) => Stays::Always,
            };
            let number = self.numbers.get(&address).copied();
            SnapshotBlock { group, address, attribution, batch, stays, is_gone, number }
        });
        let mut replay =
            FollowReplay::new(before, &self.sites, &self.gradients, &mut self.dropped, text);
        let above = is_complete.then_some(above);
        let mut highest = until.replay(&mut replay, &self.allocation_sources, above);
        let ReplayResult { mut attributions, unexplained, freed, choices, numbers } =
            replay.finish(blocks);
        self.numbers = numbers;
        if is_complete {
            self.learn(until, freed, choices);
        }
        if !unexplained.is_empty() {
            let mut left: FxHashMap<BlockGroup, Vec<u64>> = FxHashMap::default();
            for (group, address) in unexplained {
                left.entry(group).or_default().push(address);
            }
            until.charge_left(left, lived_on, &mut attributions);
        }
        for block in highest.iter_mut().flat_map(|moment| &mut moment.blocks) {
            if let Some(likely) = self.likely(block.kind, &block.attribution) {
                block.attribution = likely;
            }
        }
        (attributions, highest.into_iter().filter_map(HighestMoment::add_up).collect())
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
