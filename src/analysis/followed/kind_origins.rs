//! Which stacks allocate blocks of one kind, learned over the recording: rule 7.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup, WaitingPlaces};
use crate::analysis::followed::allocation_places::ReachSums;
use crate::analysis::followed::line_votes::LineVotes;
use crate::analysis::followed::lock_holders::LockHolders;
use crate::analysis::followed::stack_calls::StackCalls;
use crate::analysis::followed::stack_votes::{MIN_AT_PLACE, StackVotes, polls_were_near};
use crate::model::FollowedChange;

/// Kinds and places of which the stacks are remembered.
const MAX_KINDS: usize = 1 << 16;

/// How often each stack came into question for the allocations of a kind, since the recording began.
#[derive(Debug, Default)]
pub(in crate::analysis) struct KindOrigins {
    by_kind: FxHashMap<BlockGroup, StackVotes>,
    /// The same by place, and those before that were too many.
    by_place: FxHashMap<u64, StackVotes>,
    older: FxHashMap<u64, StackVotes>,
    /// Who allocates at all.
    pub(super) locks: LockHolders,
    /// Where nobody allocates.
    pub(super) places: WaitingPlaces,
    /// In which calls the stacks stand that came into question.
    pub(super) calls: StackCalls,
    lines: LineVotes,
}

/// How an allocation was seen.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analysis) struct Sighting {
    /// Whether another stack than those that are charged may have made it.
    pub(super) is_doubtful: bool,
    /// The place right behind the last few blocks (`MakerSequence`).
    pub(super) sequence: Option<u64>,
    /// Where the thread stood before it and after it, as far as its stacks could be read.
    pub(super) sides: [Option<AllocationOrigin>; 2],
}

impl KindOrigins {
    pub(in crate::analysis) fn saw(
        &mut self,
        kind: BlockGroup,
        places: &ReachSums,
        behind: [Option<u64>; 2],
        charge: &BlockAttribution,
        change: &FollowedChange,
    ) {
        let may_vote = |share: &&(AllocationOrigin, u64)| self.locks.may_vote(share.0);
        let voting;
        let charge = if charge.shares.iter().all(|share| may_vote(&share)) {
            charge
        } else {
            let shares = charge.shares.iter().filter(may_vote).copied().collect();
            voting = BlockAttribution { shares, ..*charge };
            &voting
        };
        if matches!(charge.shares[..], [] | [(AllocationOrigin::NotSeen, _)]) {
            return;
        }
        if polls_were_near(charge) {
            self.lines.add(kind.size, charge, change, &self.calls);
        }
        if self.by_kind.len() < MAX_KINDS || self.by_kind.contains_key(&kind) {
            self.by_kind.entry(kind).or_default().add(charge, change);
        }
        for &place in places.iter().chain(&behind).flatten() {
            if self.by_place.len() >= MAX_KINDS {
                self.older = std::mem::take(&mut self.by_place);
            }
            let votes = self.by_place.entry(place);
            votes
                .or_insert_with(|| self.older.remove(&place).unwrap_or_default())
                .add(charge, change);
        }
    }

    /// Whether such a block was allocated by itself before.
    pub(super) fn knows(&self, kind: BlockGroup) -> bool {
        self.by_kind.contains_key(&kind)
    }

    /// Who usually makes the next block at this place ([`place_behind`]), and how often it was seen; only where the thread that is charged was in
    /// the same call, or nobody was seen.
    ///
    /// [`place_behind`]: super::allocation_places::place_behind
    pub(super) fn usual(
        &self,
        place: u64,
        charge: &BlockAttribution,
    ) -> Option<(AllocationOrigin, u32)> {
        let votes = self.votes(place)?;
        let likely = votes.clear_origin()?;
        let call = self.calls.call(likely)?;
        let is_there = |&(origin, _): &(AllocationOrigin, u64)| {
            origin == AllocationOrigin::NotSeen || self.calls.call(origin) == Some(call)
        };
        charge.shares.iter().any(is_there).then_some((likely, votes.all))
    }

    fn votes(&self, place: u64) -> Option<&StackVotes> {
        self.by_place.get(&place).or_else(|| self.older.get(&place))
    }

    /// A better charge for a block of this kind of which only that is known, if there is one.
    pub(super) fn likely_anywhere(
        &self,
        kind: BlockGroup,
        charge: &BlockAttribution,
    ) -> Option<Arc<BlockAttribution>> {
        self.likely(kind, &ReachSums::default(), charge, Sighting::default())
    }

    /// A better charge for a block of this kind, if there is one (rule 7).
    pub(in crate::analysis) fn likely(
        &self,
        kind: BlockGroup,
        places: &ReachSums,
        charge: &BlockAttribution,
        sighting: Sighting,
    ) -> Option<Arc<BlockAttribution>> {
        if charge.certain {
            return None;
        }
        let fitting = self.fitting(kind, charge);
        // The thread went from one line to another; that it did not make the block by the one does not say that it did by the other.
        let is_doubtful = sighting.is_doubtful || fitting.is_some();
        let sighting = Sighting { is_doubtful, ..sighting };
        let charge = fitting.as_deref().unwrap_or(charge);
        self.likelier(kind, places, charge, sighting).or(fitting)
    }

    /// A charge without the lines that make far smaller blocks only. `None` where that is the same, or nobody is left.
    fn fitting(
        &self,
        kind: BlockGroup,
        charge: &BlockAttribution,
    ) -> Option<Arc<BlockAttribution>> {
        if charge.shares.len() < 2 {
            return None;
        }
        let fits = |share: &&(AllocationOrigin, u64)| {
            !self.lines.makes_smaller(share.0, kind.size, &self.calls)
        };
        let shares: Vec<_> = charge.shares.iter().filter(fits).copied().collect();
        let is_other = !shares.is_empty() && shares.len() < charge.shares.len();
        is_other.then(|| Arc::new(BlockAttribution { shares, ..*charge }))
    }

    /// Who makes the blocks at these places, or behind the last makers, if that is clear.
    fn maker_by_places(
        &self,
        by_place: &[&StackVotes],
        sequence: Option<u64>,
    ) -> Option<AllocationOrigin> {
        let at_place = by_place.iter().find_map(|votes| votes.clear_origin());
        at_place.or_else(|| self.votes(sequence?)?.clear_origin())
    }

    fn likelier(
        &self,
        kind: BlockGroup,
        places: &ReachSums,
        charge: &BlockAttribution,
        sighting: Sighting,
    ) -> Option<Arc<BlockAttribution>> {
        if charge.shares.len() > 1 && charge.shares.iter().all(|(_, weight)| *weight > 1) {
            return None;
        }
        let by_place: Vec<&StackVotes> =
            places.iter().flatten().filter_map(|place| self.votes(*place)).collect();
        let of_kind = self.by_kind.get(&kind)?;
        let is_near = |maker: &AllocationOrigin| {
            charge.shares.iter().any(|share| self.calls.are_near(*maker, share.0))
        };
        let clear = || self.maker_by_places(&by_place, sighting.sequence).filter(is_near);
        let known = by_place.iter().copied().filter(|votes| votes.all >= MIN_AT_PLACE);
        let mut at_place = known.filter_map(|votes| votes.origin(charge));
        let [before, after] = sighting.sides;
        // A line that the thread had not reached yet, or had left.
        let is_elsewhere = |maker: AllocationOrigin| {
            after.is_some_and(|after| self.calls.is_ahead(after, maker))
                || before.is_some_and(|before| self.calls.is_ahead(maker, before))
        };
        let may_be = |maker: &AllocationOrigin| {
            self.calls.may_be_between(*maker, &charge.shares) && !is_elsewhere(*maker)
        };
        let clear = sighting.is_doubtful.then(clear).flatten().filter(may_be);
        let origin = clear
            .or_else(|| at_place.find(may_be))
            .or_else(|| of_kind.origin(charge))
            .or_else(|| self.lines.maker(charge, &self.calls));
        let shares = vec![(origin?, 1)];
        Some(Arc::new(BlockAttribution { shares, certain: false, ..*charge }))
    }
}

#[cfg(test)]
#[path = "kind_origins_tests.rs"]
mod tests;
