//! Which lines allocate at all, whatever the kind of block and whoever called them: for a block of a kind that was seen only once or twice.
//!
//! A call that is written over several lines is at each of them in turn, and so is a function on its way to the line that allocates. Of two
//! lines of one call beside an allocation, one that often stood on both sides of others made it rather than one that never did.

use rustc_hash::FxHashMap;

use super::stack_calls::StackCalls;
use super::stack_votes::{CLEARLY, stood};
use crate::analysis::attribution::{AllocationOrigin, BlockAttribution};
use crate::model::{FollowedChange, FrameId};

/// So many allocations tell that a line makes blocks, or that it makes none though it was seen beside them.
const MIN_SEEN: u32 = 3;
/// So many tell what size of blocks a line makes.
const MIN_MADE: u32 = 8;
/// A line whose largest block is smaller by this factor makes no such blocks.
const FAR_SMALLER: u64 = 16;
/// Lines remembered.
const MAX_LINES: usize = 1 << 16;

/// What is known of each line.
#[derive(Debug, Default)]
pub(super) struct LineVotes(FxHashMap<FrameId, LineVote>);

#[derive(Debug, Clone, Copy, Default)]
struct LineVote {
    /// How often it stood before an allocation, and how often after one.
    sides: [u32; 2],
    /// How many blocks were allocated while it stood on both sides, and the bytes of the largest.
    made: u32,
    largest: u64,
}

impl LineVotes {
    /// Takes an allocation of so many bytes whose two polls were close.
    pub(super) fn add(
        &mut self,
        size: u64,
        charge: &BlockAttribution,
        change: &FollowedChange,
        calls: &StackCalls,
    ) {
        for &(origin, _) in &charge.shares {
            let Some(line) = calls.line(origin) else { continue };
            if self.0.len() >= MAX_LINES && !self.0.contains_key(&line) {
                continue;
            }
            let vote = self.0.entry(line).or_default();
            let sides = stood(origin, change);
            for (count, is_there) in vote.sides.iter_mut().zip(sides) {
                *count = count.saturating_add(u32::from(is_there));
            }
            if sides == [true; 2] {
                vote.made = vote.made.saturating_add(1);
                vote.largest = vote.largest.max(size);
            }
        }
    }

    /// The only line of those beside an allocation that makes blocks, where all are lines of one call, or the thread did not leave one of them.
    pub(super) fn maker(
        &self,
        charge: &BlockAttribution,
        calls: &StackCalls,
    ) -> Option<AllocationOrigin> {
        let [first, _, ..] = charge.shares[..] else { return None };
        let of_one_call = || {
            let call = calls.call(first.0);
            call.is_some() && charge.shares.iter().all(|share| calls.call(share.0) == call)
        };
        if !of_one_call() && calls.stayed_on(&charge.shares).is_none() {
            return None;
        }
        let seen = |share: &(AllocationOrigin, u64)| self.on_both_sides(share.0, calls);
        let most = charge.shares.iter().map(seen).max()?;
        let makes = |share: &&(AllocationOrigin, u64)| seen(share) > most / CLEARLY;
        let mut makers = charge.shares.iter().filter(makes);
        let (&maker, None) = (makers.next()?, makers.next()) else { return None };
        (most >= MIN_SEEN).then_some(maker.0)
    }

    /// In how many allocations the line stood before, and in how many after, whichever is less.
    pub(super) fn on_both_sides(&self, origin: AllocationOrigin, calls: &StackCalls) -> u32 {
        self.vote(origin, calls).map_or(0, |vote| vote.sides[0].min(vote.sides[1]))
    }

    /// Whether the line makes blocks, but far smaller ones than one of so many bytes.
    pub(super) fn makes_smaller(
        &self,
        origin: AllocationOrigin,
        size: u64,
        calls: &StackCalls,
    ) -> bool {
        self.vote(origin, calls).is_some_and(|vote| {
            vote.made >= MIN_MADE && vote.largest.saturating_mul(FAR_SMALLER) <= size
        })
    }

    fn vote(&self, origin: AllocationOrigin, calls: &StackCalls) -> Option<&LineVote> {
        calls.line(origin).and_then(|line| self.0.get(&line))
    }
}
