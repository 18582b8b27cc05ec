//! What was alive at a moment of the program, known from an iteration in which every change was
//! followed.
//!
//! Polls of a busy job rest for most of the time (`sampler/follow/slices.rs`). A change is dozens
//! of blocks then, and which of blocks that are alike it freed is a guess. But the program has been
//! where it is now: in an earlier iteration as many bytes were alive in both pools, in as many
//! blocks of each kind. Who had made these is known better, for their changes were seen one by one.
//! So the blocks of a map at the end of such a time are charged as they were there, kind by kind.
//! That is likely, never certain.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{BlockAttribution, BlockGroup};
use crate::analysis::followed::UntilMap;
use crate::analysis::followed::follow_replay::SnapshotBlock;
use crate::analysis::followed::followed_step::FollowedStep;
use crate::analysis::followed::highest_moment::{AliveBlock, FreeSign};
use crate::analysis::followed::repeated_steps::LiveBytes;

/// Changes kept, and blocks of the maps ahead of them.
const MAX_STEPS: usize = 1 << 17;
const MAX_BLOCKS: usize = 1 << 18;
/// Moments kept: a loop comes to the same few levels when maps are read.
const MAX_KNOWN: usize = 32;
/// A change that allocates more than this was not followed: polls are 300 µs apart while they rest.
const FOLLOWED_ALLOCATIONS: i64 = 3;
/// So many blocks are the last ones.
const LAST_ALLOCATED: i64 = 1024;
/// If less than this part of the last blocks came in changes that were not followed, polls did not
/// rest.
const LEAST_RESTED: f64 = 0.02;
/// If more, the moment tells nothing of others.
const MOST_RESTED: f64 = 0.2;
/// Least part of the bytes that have to be of kinds of which as many blocks were alive.
const LEAST_ALIKE: f64 = 0.5;

/// The blocks alive at a moment, by kind.
pub(super) type AliveKinds = FxHashMap<BlockGroup, Vec<AliveBlock>>;

/// The last times between two maps, most of all those in which every change was followed.
#[derive(Debug, Default)]
pub(super) struct FollowedStates {
    stretches: VecDeque<FollowedStretch>,
    /// Moments asked for before, the last one last.
    known: VecDeque<(LiveBytes, Option<Arc<AliveKinds>>)>,
}

/// The changes between two maps, and the blocks of the first.
#[derive(Debug)]
pub(super) struct FollowedStretch {
    pub(super) until: Arc<UntilMap>,
    pub(super) blocks: Vec<SnapshotBlock>,
    /// Whether polls rested for much of it.
    has_rested: bool,
}

impl FollowedStretch {
    pub(super) fn new(until: Arc<UntilMap>, blocks: Vec<SnapshotBlock>) -> FollowedStretch {
        let all = until.steps.iter().map(allocated).fold(0, i64::saturating_add);
        let rested = rested_before(&until.steps).last().copied().unwrap_or(0);
        let has_rested = rested as f64 > all as f64 * MOST_RESTED;
        FollowedStretch { until, blocks, has_rested }
    }
}

/// The part of the last blocks allocated in these changes that came while polls rested; `None`
/// where they did not.
pub(super) fn rested_part(steps: &[FollowedStep]) -> Option<f64> {
    let (mut all, mut rested) = (0_i64, 0_i64);
    for step in steps.iter().rev() {
        all = all.saturating_add(allocated(step));
        rested = rested.saturating_add(allocated_at_rest(step));
        if all >= LAST_ALLOCATED {
            break;
        }
    }
    Some(rested as f64 / all.max(1) as f64).filter(|part| *part >= LEAST_RESTED)
}

impl FollowedStates {
    /// Keeps the changes between two maps; where there is no room for more, those are forgotten
    /// first in which polls rested.
    pub(super) fn keep(&mut self, stretch: FollowedStretch) {
        if !stretch.has_rested {
            // What was not known may be known now.
            self.known.retain(|(_, alive)| alive.is_some());
        }
        self.stretches.push_back(stretch);
        let sum = |of: fn(&FollowedStretch) -> usize| self.stretches.iter().map(of).sum::<usize>();
        let (mut steps, mut blocks) = (sum(|of| of.until.steps.len()), sum(|of| of.blocks.len()));
        while (steps > MAX_STEPS || blocks > MAX_BLOCKS) && self.stretches.len() > 1 {
            let at = self.stretches.iter().position(|of| of.has_rested).unwrap_or(0);
            let Some(dropped) = self.stretches.remove(at) else { return };
            steps -= dropped.until.steps.len();
            blocks -= dropped.blocks.len();
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = FollowedStates::default();
    }

    /// What was asked for before at this level.
    pub(super) fn known(&self, live: LiveBytes) -> Option<Option<Arc<AliveKinds>>> {
        let (_, alive) = self.known.iter().rfind(|(level, _)| *level == live)?;
        Some(alive.clone())
    }

    /// Remembers what was found.
    pub(super) fn remember(&mut self, live: LiveBytes, alive: Option<Arc<AliveKinds>>) {
        if self.known.len() == MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back((live, alive));
    }

    /// Where so much was alive: after which change of which time between two maps. `rested` is the
    /// part of the last blocks of which it is asked. It is where polls rested least since the map,
    /// for what a replay takes for alive by mistake stays so; of such ones the last.
    pub(super) fn moment(&self, live: LiveBytes, rested: f64) -> Option<(&FollowedStretch, usize)> {
        let most = (rested / 2.0).min(MOST_RESTED);
        let mut best: Option<(i64, &FollowedStretch, usize)> = None;
        for stretch in &self.stretches {
            let steps = &stretch.until.steps;
            if !steps.iter().any(|step| step.live == live) {
                continue;
            }
            let rested = rested_before(steps);
            let is_followed = |at: &usize| {
                steps[*at].live == live && rested_part(&steps[..=*at]).unwrap_or(0.0) <= most
            };
            for at in stretch.until.known_moments().filter(is_followed) {
                let rested = rested[at] / LAST_ALLOCATED;
                if best.is_none_or(|(least, ..)| rested <= least) {
                    best = Some((rested, stretch, at));
                }
            }
        }
        best.map(|(_, stretch, at)| (stretch, at))
    }
}

/// For each change, how many blocks were allocated up to it while polls rested.
fn rested_before(steps: &[FollowedStep]) -> Vec<i64> {
    let add = |sum: &mut i64, step| {
        *sum = sum.saturating_add(allocated_at_rest(step));
        Some(*sum)
    };
    steps.iter().scan(0, add).collect()
}

fn allocated(step: &FollowedStep) -> i64 {
    step.allocations().max(0)
}

/// The same of a change that came while polls rested, else 0.
fn allocated_at_rest(step: &FollowedStep) -> i64 {
    let allocated = allocated(step);
    if allocated > FOLLOWED_ALLOCATIONS { allocated } else { 0 }
}

/// The blocks alive at a moment, of kinds of which the map has as many: `None` if these are too few
/// bytes.
pub(super) fn alike_kinds(
    alive: Vec<AliveBlock>,
    in_map: &FxHashMap<BlockGroup, usize>,
) -> Option<AliveKinds> {
    let mut kinds = AliveKinds::default();
    for block in alive {
        kinds.entry(block.kind).or_default().push(block);
    }
    for (kind, blocks) in &mut kinds {
        let wanted = in_map.get(kind).copied().unwrap_or(0);
        // What a replay has alive although it was freed.
        for sign in [FreeSign::NoAddress, FreeSign::Gone] {
            let mut over = blocks.len().saturating_sub(wanted);
            blocks.retain(|block| {
                let goes = over > 0 && block.sign == sign;
                over -= usize::from(goes);
                !goes
            });
        }
    }
    kinds.retain(|kind, blocks| in_map.get(kind) == Some(&blocks.len()));
    let bytes = |kind: &BlockGroup, count: usize| kind.size as f64 * count as f64;
    let all: f64 = in_map.iter().map(|(kind, count)| bytes(kind, *count)).sum();
    let alike: f64 = kinds.iter().map(|(kind, of)| bytes(kind, of.len())).sum();
    (alike >= all * LEAST_ALIKE).then_some(kinds)
}

/// Charges the blocks of one kind in a map as those that were alive at such a moment; gives what is
/// changed, `None` where they cannot be the same. Blocks that are older than the recording become
/// fewer, never more: those of which the moment had fewer were freed since the map before.
pub(super) fn charge_alike(
    blocks: &[(u64, Arc<BlockAttribution>)],
    alive: &[AliveBlock],
) -> Option<Vec<(u64, Arc<BlockAttribution>)>> {
    let mut left: Vec<&Arc<BlockAttribution>> =
        alive.iter().map(|block| &block.attribution).collect();
    let mut others = Vec::new();
    for (address, own) in blocks {
        let is_same = |other: &&Arc<BlockAttribution>| match own.only_stack() {
            Some(origin) => other.only_stack() == Some(origin),
            None => own.is_before() && other.is_before(),
        };
        match left.iter().position(is_same) {
            Some(at) => drop(left.swap_remove(at)),
            None if own.certain => return None,
            None => others.push((*address, own)),
        }
    }
    if left.iter().any(|charge| charge.is_before()) {
        return None;
    }
    left.sort_by_key(|charge| charge.allocated_at);
    others.sort_by_key(|(address, own)| (own.allocated_at, *address));
    let known = others.into_iter().zip(left).filter(|(_, charge)| !charge.is_not_seen());
    let charged = known.map(|((address, own), charge)| {
        let shares = charge.shares.clone();
        // When is unknown of a block older than the recording, and it is none.
        let allocated_at = if own.is_before() { charge.allocated_at } else { own.allocated_at };
        (address, Arc::new(BlockAttribution { shares, allocated_at, certain: false, ..**charge }))
    });
    Some(charged.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::followed::highest_moment::tests::moment_of;

    /// Blocks that these stacks made, of so many bytes each; stack 0 is the time before the
    /// recording.
    fn alive(blocks: &[(u32, u64)]) -> Vec<AliveBlock> {
        moment_of(7, blocks, 0).blocks
    }

    /// The same in a map, at addresses 0, 1 and so on.
    fn in_map(blocks: &[(u32, u64)]) -> Vec<(u64, Arc<BlockAttribution>)> {
        (0..).zip(alive(blocks)).map(|(address, block)| (address, block.attribution)).collect()
    }

    fn counts(blocks: &[(u32, u64)]) -> FxHashMap<BlockGroup, usize> {
        let mut counts = FxHashMap::default();
        for block in alive(blocks) {
            *counts.entry(block.kind).or_default() += 1;
        }
        counts
    }

    #[test]
    fn blocks_whose_maker_was_alive_there_keep_it_and_the_others_get_what_is_left() {
        let map = in_map(&[(1, 8), (2, 8), (1, 8), (0, 8)]);
        let charged = charge_alike(&map, &alive(&[(3, 8), (1, 8), (0, 8), (1, 8)])).unwrap();
        let charged: Vec<_> =
            charged.iter().map(|(at, of)| (*at, of.only_stack(), of.certain)).collect();
        let third = in_map(&[(3, 8)])[0].1.only_stack();
        assert_eq!(charged, [(1, third, false)]);
        assert!(charge_alike(&map, &alive(&[(0, 8), (2, 8), (1, 8), (1, 8)])).unwrap().is_empty());
    }

    #[test]
    fn nothing_is_charged_against_what_is_certain_and_no_block_becomes_older() {
        let mut map = in_map(&[(1, 8), (2, 8)]);
        let there = alive(&[(1, 8), (3, 8)]);
        assert_eq!(charge_alike(&map, &there).unwrap().len(), 1);
        let sure = BlockAttribution { shares: map[1].1.shares.clone(), certain: true, ..*map[1].1 };
        map[1].1 = Arc::new(sure);
        assert!(charge_alike(&map, &there).is_none());
        let newer = charge_alike(&in_map(&[(1, 8), (0, 8)]), &there).unwrap();
        assert_eq!((newer[0].0, newer.len()), (1, 1));
        assert!(!newer[0].1.is_before(), "it was freed, and another one made");
        assert!(newer[0].1.allocated_at > 0, "within the recording");
        assert!(charge_alike(&in_map(&[(1, 8), (2, 8)]), &alive(&[(1, 8), (0, 8)])).is_none());
    }

    #[test]
    fn a_moment_tells_of_kinds_of_which_as_many_blocks_were_alive() {
        let map = counts(&[(1, 8), (1, 8), (1, 4)]);
        let kinds = |alive: Vec<AliveBlock>| {
            let kinds = alike_kinds(alive, &map)?;
            let mut sizes: Vec<_> = kinds.iter().map(|(k, of)| (k.size, of.len())).collect();
            sizes.sort_unstable();
            Some(sizes)
        };
        assert_eq!(kinds(alive(&[(1, 4), (2, 8), (3, 8)])), Some(vec![(4, 1), (8, 2)]));
        let most = alive(&[(4, 8), (4, 8), (4, 2)]);
        assert_eq!(kinds(most), Some(vec![(8, 2)]), "most of the bytes");
        assert_eq!(kinds(alive(&[(1, 8), (1, 4)])), None, "too few are alike");
        let mut more = alive(&[(1, 4), (2, 8), (3, 8), (5, 8)]);
        assert_eq!(kinds(more.clone()), None);
        more[3].sign = FreeSign::NoAddress;
        assert_eq!(kinds(more), Some(vec![(4, 1), (8, 2)]), "it was freed");
    }
}
