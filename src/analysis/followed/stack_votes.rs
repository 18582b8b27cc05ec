//! How often each stack stood beside the allocations of one kind, or of one place, and who made these by that.

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution};
use crate::model::{FollowedChange, FollowedThread, StackReading};

/// Polls at most so far apart tell on which side of an allocation a stack stood, in nanoseconds: a loop that sleeps takes longer to come round.
const VOTES_WITHIN: u64 = 30_000;
/// Stacks that are remembered of one kind or place.
const MAX_MAKERS: usize = 16;
/// Allocations at a place after which it counts more than all of the kind.
pub(super) const MIN_AT_PLACE: u32 = 3;
/// A stack seen so many times as often as every other, on both sides of the allocations of a place, is the place.
pub(super) const CLEARLY: u32 = 4;

/// The stacks that came into question for the allocations of one kind, or of one place.
#[derive(Debug, Default)]
pub(super) struct StackVotes {
    /// Allocations with a candidate.
    pub(super) all: u32,
    pub(super) of: Vec<StackVote>,
}

/// In how many allocations of a kind a stack came into question.
#[derive(Debug, Clone, Copy)]
pub(super) struct StackVote {
    pub(super) origin: AllocationOrigin,
    all: u32,
    /// In how many it stood at the poll before, and at the poll after, where the polls were close.
    before: u32,
    after: u32,
}

impl StackVote {
    fn new(origin: AllocationOrigin) -> StackVote {
        StackVote { origin, all: 0, before: 0, after: 0 }
    }

    /// In the allocations of one place, the stacks that stand before are at or ahead of it, those that stand after at or behind
    /// it: one seen on both sides is the place.
    pub(super) fn on_both_sides(&self) -> u32 {
        self.before.min(self.after)
    }
}

/// Whether the two polls were so close that no thread can have come back to where it stood, as in a loop that sleeps.
pub(super) fn polls_were_near(charge: &BlockAttribution) -> bool {
    charge.span.is_some_and(|span| span <= VOTES_WITHIN)
}

/// Whether a stack stood before a change, and whether it stood after it.
pub(super) fn stood(origin: AllocationOrigin, change: &FollowedChange) -> [bool; 2] {
    let sides: [fn(&FollowedThread) -> StackReading; 2] =
        [|thread| thread.before, |thread| thread.after];
    sides.map(|side| {
        change.threads.iter().any(|thread| {
            let stack = side(thread).stack();
            stack.is_some_and(|stack| AllocationOrigin::Stack(thread.thread, stack) == origin)
        })
    })
}

impl StackVotes {
    pub(super) fn add(&mut self, charge: &BlockAttribution, change: &FollowedChange) {
        let near = u32::from(polls_were_near(charge));
        self.all = self.all.saturating_add(1);
        for &(origin, _) in &charge.shares {
            let [before, after] = stood(origin, change).map(u32::from);
            let index = self.of.iter().position(|vote| vote.origin == origin);
            let index = index.unwrap_or(self.of.len());
            if index == self.of.len() && index < MAX_MAKERS {
                self.of.push(StackVote::new(origin));
            }
            if let Some(vote) = self.of.get_mut(index) {
                vote.all = vote.all.saturating_add(1);
                vote.before = vote.before.saturating_add(before * near);
                vote.after = vote.after.saturating_add(after * near);
            }
        }
    }

    /// The stack seen both before and after most of these allocations, if one is clear. It need not
    /// be seen beside each.
    pub(super) fn clear_origin(&self) -> Option<AllocationOrigin> {
        let best = self.of.iter().max_by_key(|vote| vote.on_both_sides())?;
        let both = best.on_both_sides();
        let mut others = self.of.iter().filter(|vote| vote.origin != best.origin);
        let is_clear =
            both >= MIN_AT_PLACE && others.all(|vote| vote.on_both_sides() <= both / CLEARLY);
        is_clear.then_some(best.origin)
    }

    /// The one that came into question for most of these allocations, if that is clear.
    fn most(&self) -> Option<AllocationOrigin> {
        let most = self.of.iter().max_by_key(|vote| vote.all)?;
        let all = self.of.iter().map(|vote| vote.all).fold(0, u32::saturating_add).min(self.all);
        let is_clear = most.all > all / 2
            && self.of.iter().all(|v| v.origin == most.origin || v.all <= most.all / 2);
        is_clear.then_some(most.origin)
    }

    /// Whose an allocation with this charge is, if that is clear.
    pub(super) fn origin(&self, charge: &BlockAttribution) -> Option<AllocationOrigin> {
        match charge.shares[..] {
            [(AllocationOrigin::NotSeen, _)] => self.most(),
            [_] => None,
            _ => {
                let is_candidate = |vote: &&StackVote| {
                    charge.shares.iter().any(|(origin, _)| *origin == vote.origin)
                };
                let candidates: Vec<&StackVote> = self.of.iter().filter(is_candidate).collect();
                let best = candidates.iter().max_by_key(|v| (v.on_both_sides(), v.after))?;
                let mut others = candidates.iter().filter(|v| v.origin != best.origin);
                let both = best.on_both_sides();
                let is_clear = both > 0 && others.all(|v| v.on_both_sides() <= both / 2);
                is_clear.then_some(best.origin)
            }
        }
    }
}
