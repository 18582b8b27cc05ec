//! Which stacks allocate blocks of one kind, learned over the recording: rule 7.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::allocation_places::ReachSums;
use crate::analysis::followed::follow_replay::uncertain;
use crate::analysis::followed::line_votes::LineVotes;
use crate::analysis::followed::lock_holders::LockHolders;
use crate::analysis::followed::stack_calls::StackCalls;
use crate::model::{FollowedChange, FollowedThread, StackReading};

/// Polls at most so far apart tell on which side of an allocation a stack stood, in nanoseconds: a loop that sleeps takes longer to come round.
const VOTES_WITHIN: u64 = 30_000;
/// Kinds and places of which the stacks are remembered, and how many of each.
const MAX_KINDS: usize = 1 << 16;
const MAX_MAKERS: usize = 16;
/// Allocations of a kind after which one that always stands after them is likely to have made them.
const MIN_AFTER: u32 = 3;
/// Allocations at a place after which it counts more than all of the kind.
const MIN_AT_PLACE: u32 = 3;
/// A stack seen so many times as often as every other, on both sides of the allocations of a place, is the place.
pub(super) const CLEARLY: u32 = 4;

/// So many allocations of one stack in a row are a loop.
const MIN_IN_A_ROW: u32 = 4;
/// Allocations after which a line is known to make such blocks.
const MIN_CLEAR: u32 = 8;
/// Lines of one call that make blocks of one kind: with more it is not known which of them made one.
const MAX_MAKERS_IN_CALL: usize = 2;

/// How often each stack came into question for the allocations of a kind, since the recording began.
#[derive(Debug, Default)]
pub(in crate::analysis) struct KindOrigins {
    by_kind: FxHashMap<BlockGroup, StackVotes>,
    /// The same by place, and those before that were too many.
    by_place: FxHashMap<u64, StackVotes>,
    older: FxHashMap<u64, StackVotes>,
    /// Who allocates at all.
    pub(super) locks: LockHolders,
    /// In which calls the stacks stand that came into question.
    pub(super) calls: StackCalls,
    lines: LineVotes,
}

#[derive(Debug, Default)]
struct StackVotes {
    /// Allocations with a candidate.
    all: u32,
    of: Vec<StackVote>,
    /// The only candidate of the last allocations, and of how many.
    last: Option<(AllocationOrigin, u32)>,
}

/// How an allocation was seen.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analysis) struct Sighting {
    /// Whether another stack than those that are charged may have made it.
    pub(super) is_doubtful: bool,
    /// Whether the thread had made nothing yet on the line where it was seen before.
    pub(super) has_arrived: bool,
    /// Who made all of the last allocations at its place ([`KindOrigins::recent`]).
    pub(super) recent: Option<AllocationOrigin>,
    /// The place right behind the block before it (`place_behind`).
    pub(super) follows: Option<u64>,
    /// Where the program was seen last, if nobody was seen beside this one.
    pub(super) seen_last: Option<AllocationOrigin>,
    /// Where the thread stood before it and after it, as far as its stacks could be read.
    pub(super) sides: [Option<AllocationOrigin>; 2],
    /// Whether the program did something new: the change before it was like none of an earlier iteration.
    pub(super) is_new: bool,
}

/// In how many allocations of a kind a stack came into question.
#[derive(Debug, Clone, Copy)]
struct StackVote {
    origin: AllocationOrigin,
    all: u32,
    /// In how many it stood at the poll before, and at the poll after, where the polls were close.
    before: u32,
    after: u32,
    /// The same, however far apart they were.
    any_before: u32,
    any_after: u32,
}

impl StackVote {
    fn new(origin: AllocationOrigin) -> StackVote {
        StackVote { origin, all: 0, before: 0, after: 0, any_before: 0, any_after: 0 }
    }

    /// In the allocations of one place, the stacks that stand before are at or ahead of it, those that stand after at or behind
    /// it: one seen on both sides is the place.
    fn on_both_sides(&self) -> u32 {
        self.before.min(self.after)
    }
}

impl StackVote {
    /// Its share of blocks that one of several lines made. It is more than 1, which are the parts of the two ends of a change, of which more may be
    /// found out later.
    fn share(&self) -> u64 {
        1 + u64::from(self.on_both_sides())
    }
}

/// Whether the two polls were so close that no thread can have come back to where it stood, as in a loop that sleeps.
fn polls_were_near(charge: &BlockAttribution) -> bool {
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
    fn add(&mut self, charge: &BlockAttribution, change: &FollowedChange) {
        self.all = self.all.saturating_add(1);
        self.last = match (self.last, &charge.shares[..]) {
            (Some((last, count)), [(origin, _)]) if last == *origin => {
                Some((last, count.saturating_add(1)))
            }
            (_, &[(origin, _)]) => Some((origin, 1)),
            (last, shares) => {
                last.filter(|(last, _)| shares.iter().any(|(origin, _)| origin == last))
            }
        };
        for &(origin, _) in &charge.shares {
            let [before, after] = stood(origin, change).map(u32::from);
            let near = u32::from(polls_were_near(charge));
            let index = self.of.iter().position(|vote| vote.origin == origin);
            let index = index.unwrap_or(self.of.len());
            if index == self.of.len() && index < MAX_MAKERS {
                self.of.push(StackVote::new(origin));
            }
            if let Some(vote) = self.of.get_mut(index) {
                vote.all = vote.all.saturating_add(1);
                vote.before = vote.before.saturating_add(before * near);
                vote.after = vote.after.saturating_add(after * near);
                vote.any_before = vote.any_before.saturating_add(before);
                vote.any_after = vote.any_after.saturating_add(after);
            }
        }
    }

    /// Who makes these allocations, whoever was seen beside one of them, if that is clear: who stood on both sides, else who stood after them
    /// twice as often as any other, and not before. Who comes later is seen after them as well, where a poll is late.
    fn clear_origin(&self, of_kind: &StackVotes) -> Option<AllocationOrigin> {
        let best = self.of.iter().max_by_key(|vote| vote.on_both_sides())?;
        let both = best.on_both_sides();
        let mut others = self.of.iter().filter(|vote| vote.origin != best.origin);
        if both >= MIN_AT_PLACE && others.all(|vote| vote.on_both_sides() <= both / CLEARLY) {
            return Some(best.origin);
        }
        let first = self.of.iter().max_by_key(|vote| vote.after)?;
        let mut later = self.of.iter().filter(|vote| vote.origin != first.origin);
        let came = both <= first.after / CLEARLY
            && later.all(|vote| vote.after <= first.after / 2)
            && self.came_often(first, of_kind);
        came.then_some(first.origin)
    }

    /// Whose an allocation with this charge is, wherever it was: where a thread went from one line that makes such blocks to another, it made
    /// this one by the line that it came to. The memory comes first there, and then what fills it. Not so where it
    /// had made nothing yet on the line that it came from.
    fn origin_anywhere(
        &self,
        charge: &BlockAttribution,
        has_arrived: bool,
    ) -> Option<AllocationOrigin> {
        if let [
            (before @ AllocationOrigin::Stack(thread, _), _),
            (after @ AllocationOrigin::Stack(of, _), _),
        ] = charge.shares[..]
            && thread == of
        {
            let both = |&(origin, _): &(AllocationOrigin, u64)| self.on_both_sides(origin);
            if charge.shares.iter().all(|share| both(share) > 0) {
                return Some(if has_arrived { before } else { after });
            }
        }
        self.origin(charge, self)
    }

    /// In how many allocations a stack stood before, and in how many after, whichever is less.
    fn on_both_sides(&self, origin: AllocationOrigin) -> u32 {
        self.vote(origin).map_or(0, StackVote::on_both_sides)
    }

    fn vote(&self, origin: AllocationOrigin) -> Option<&StackVote> {
        self.of.iter().find(|vote| vote.origin == origin)
    }

    /// Whether a stack stood after enough of these allocations to have made them. It takes more where another of their stacks is known to make
    /// such blocks elsewhere, and this one hardly.
    fn came_often(&self, vote: &StackVote, of_kind: &StackVotes) -> bool {
        let hardly = of_kind.on_both_sides(vote.origin).saturating_mul(CLEARLY);
        let is_doubted = self.of.iter().any(|other| of_kind.on_both_sides(other.origin) > hardly);
        vote.after >= if is_doubted { 2 * MIN_AFTER } else { MIN_AFTER }
    }

    /// Of those that may have made these allocations the one that came into question for most of them, if that is clear.
    fn most(&self, may: impl Fn(AllocationOrigin) -> bool) -> Option<AllocationOrigin> {
        let makers = || self.of.iter().filter(|vote| may(vote.origin));
        let most = makers().max_by_key(|vote| vote.all)?;
        let all = makers().map(|vote| vote.all).fold(0, u32::saturating_add).min(self.all);
        let is_clear = most.all > all / 2
            && makers().all(|v| v.origin == most.origin || v.all <= most.all / 2);
        is_clear.then_some(most.origin)
    }

    /// Who makes such blocks in the calls in which the thread was seen, where it was seen on lines that make none: it was on its way to one of
    /// these, or came from there.
    fn makers_in_call(
        &self,
        charge: &BlockAttribution,
        calls: &StackCalls,
    ) -> Option<Vec<(AllocationOrigin, u64)>> {
        let mut seen = 0;
        for (origin, _) in &charge.shares {
            let AllocationOrigin::Stack(..) = origin else { return None };
            let vote = self.vote(*origin);
            if vote.is_some_and(|vote| vote.on_both_sides() > 0) {
                return None;
            }
            seen = seen.max(vote.map_or(0, |vote| vote.all));
        }
        let is_within = |maker: AllocationOrigin| {
            charge.shares.iter().any(|(origin, _)| calls.is_within(maker, *origin))
        };
        let makers =
            || self.of.iter().filter(|vote| vote.on_both_sides() > 0 && is_within(vote.origin));
        let made: u32 = makers().map(StackVote::on_both_sides).sum();
        let shares: Vec<_> = makers().map(|vote| (vote.origin, vote.share())).collect();
        (made >= 2 && seen <= made / 2 && shares.len() <= MAX_MAKERS_IN_CALL).then_some(shares)
    }

    /// Who makes such blocks in the calls in which the thread was seen, if it is one line, and those on which it was seen hardly make any blocks: a
    /// fast loop came round between two polls, or the thread was on its way.
    fn clear_maker(
        &self,
        seen: &[(AllocationOrigin, u64)],
        calls: &StackCalls,
        lines: &LineVotes,
    ) -> Option<AllocationOrigin> {
        let seen = || seen.iter().map(|share| share.0);
        let is_within = |maker| seen().all(|seen| calls.is_within(maker, seen));
        let makers = || self.of.iter().filter(|vote| is_within(vote.origin));
        let best = makers().max_by_key(|vote| vote.on_both_sides())?;
        let both = best.on_both_sides();
        let others = makers().map(|vote| vote.origin).filter(|of| *of != best.origin);
        let of_line = |origin| lines.on_both_sides(origin, calls);
        let makes_few = |origin| {
            let own = self.on_both_sides(origin);
            own <= both / 2 && of_line(origin) <= of_line(best.origin) / CLEARLY
        };
        let is_clear = both >= MIN_CLEAR && others.chain(seen()).all(makes_few);
        is_clear.then_some(best.origin)
    }

    /// Whose an allocation with this charge is, if that is clear; `of_kind` are the votes of all allocations of its kind.
    fn origin(&self, charge: &BlockAttribution, of_kind: &StackVotes) -> Option<AllocationOrigin> {
        match charge.shares[..] {
            [(AllocationOrigin::NotSeen, _)] => self.most(|_| true),
            [_] => None,
            _ => {
                let is_candidate = |vote: &&StackVote| {
                    charge.shares.iter().any(|(origin, _)| *origin == vote.origin)
                };
                let candidates: Vec<&StackVote> = self.of.iter().filter(is_candidate).collect();
                let best = candidates.iter().max_by_key(|v| (v.on_both_sides(), v.after))?;
                let others = || candidates.iter().filter(|v| v.origin != best.origin);
                let both = best.on_both_sides();
                let clear = both > 0 && others().all(|v| v.on_both_sides() <= both / 2);
                // Where the poll before never comes in time, what stands after is what allocated.
                let after = both == 0
                    && self.came_often(best, of_kind)
                    && others().all(|v| v.after == 0 && v.before >= MIN_AFTER);
                if clear || after {
                    return Some(best.origin);
                }
                // A thread that waits between its allocations is polled seldom. It was never seen to wait after one, and what
                // it did after the allocation was seen before it, too: that is no line behind it.
                let last = candidates.iter().max_by_key(|v| (v.any_after, v.any_before))?;
                let mut others = candidates.iter().filter(|v| v.origin != last.origin);
                let is_last = last.any_after >= MIN_AFTER
                    && last.any_before > 0
                    && others.all(|v| v.any_after == 0 && v.any_before >= MIN_AFTER);
                is_last.then_some(last.origin)
            }
        }
    }
}

impl KindOrigins {
    pub(in crate::analysis) fn saw(
        &mut self,
        kind: BlockGroup,
        places: &ReachSums,
        follows: Option<u64>,
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
        for &place in places.iter().chain([&follows]).flatten() {
            if self.by_place.len() >= MAX_KINDS {
                self.older = std::mem::take(&mut self.by_place);
            }
            let votes = self.by_place.entry(place);
            votes
                .or_insert_with(|| self.older.remove(&place).unwrap_or_default())
                .add(charge, change);
        }
    }

    /// Who made the last allocations at this place, if it was one stack: a loop that makes the same blocks over and over.
    pub(super) fn recent(&self, places: &ReachSums) -> Option<AllocationOrigin> {
        let mut by_place = places.iter().flatten().filter_map(|place| self.by_place.get(place));
        by_place
            .find_map(|votes| votes.last.filter(|(_, count)| *count >= MIN_IN_A_ROW))
            .map(|(origin, _)| origin)
    }

    /// The line ahead of this one in its call that makes such blocks, too, if there is only one.
    pub(super) fn line_ahead(
        &self,
        kind: BlockGroup,
        line: AllocationOrigin,
    ) -> Option<AllocationOrigin> {
        let is_ahead = |vote: &&StackVote| {
            self.calls.is_ahead(vote.origin, line)
                && self.lines.on_both_sides(vote.origin, &self.calls) >= MIN_AT_PLACE
        };
        let mut ahead = self.by_kind.get(&kind)?.of.iter().filter(is_ahead);
        let (Some(maker), None) = (ahead.next(), ahead.next()) else { return None };
        Some(maker.origin)
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
        kind: BlockGroup,
        place: u64,
        charge: &BlockAttribution,
    ) -> Option<(AllocationOrigin, u32)> {
        let none = StackVotes::default();
        let votes = self.votes(place)?;
        let likely = votes.clear_origin(self.by_kind.get(&kind).unwrap_or(&none))?;
        let call = self.calls.call(likely)?;
        let is_there = |&(origin, _): &(AllocationOrigin, u64)| {
            origin == AllocationOrigin::NotSeen || self.calls.call(origin) == Some(call)
        };
        charge.shares.iter().any(is_there).then_some((likely, votes.all))
    }

    fn votes(&self, place: u64) -> Option<&StackVotes> {
        self.by_place.get(&place).or_else(|| self.older.get(&place))
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
            return self.is_doubted(kind, charge).then(|| uncertain(charge));
        }
        let allocating = self.locks.without_idle(charge);
        let fitting = self.fitting(kind, allocating.as_deref().unwrap_or(charge)).or(allocating);
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

    /// Whether it is called certain that a stack made a block of this kind, and another one makes them as a rule in the same call: a fast loop can have come
    /// round between two polls.
    fn is_doubted(&self, kind: BlockGroup, charge: &BlockAttribution) -> bool {
        let (Some(votes), [(origin, _)]) = (self.by_kind.get(&kind), &charge.shares[..]) else {
            return false;
        };
        let own = votes.on_both_sides(*origin).max(1);
        let makes_them = |vote: &StackVote| {
            vote.origin != *origin
                && vote.on_both_sides() / CLEARLY >= own
                && self.calls.is_within(vote.origin, *origin)
        };
        votes.of.iter().any(makes_them)
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
        let is_open = sighting.is_doubtful || charge.shares.len() > 1;
        let is_unseen = matches!(charge.shares[..], [(AllocationOrigin::NotSeen, _)]);
        let by_place: Vec<&StackVotes> =
            places.iter().flatten().filter_map(|place| self.votes(*place)).collect();
        let of_kind = self.by_kind.get(&kind)?;
        let is_near = |maker: &AllocationOrigin| {
            charge.shares.iter().any(|share| self.calls.are_near(*maker, share.0))
        };
        let clear = || {
            let clear = by_place.iter().find_map(|votes| votes.clear_origin(of_kind));
            clear.filter(is_near)
        };
        let known = by_place.iter().copied().filter(|votes| votes.all >= MIN_AT_PLACE);
        let mut at_place = known.filter_map(|votes| votes.origin(charge, of_kind));
        let clear_in_call = |seen: &[(AllocationOrigin, u64)]| {
            let maker = || of_kind.clear_maker(seen, &self.calls, &self.lines);
            (is_open && sighting.is_new).then(maker).flatten()
        };
        // The same loop can be called from several places.
        let where_last = || {
            let last = sighting.seen_last?;
            let may = |maker: AllocationOrigin| self.calls.are_near(maker, last);
            let of_place = by_place.iter().find_map(|votes| votes.most(may));
            clear_in_call(&[(last, 1)]).or(of_place).or_else(|| of_kind.most(may))
        };
        let behind = || {
            let (maker, _) = self.usual(kind, sighting.follows?, charge)?;
            (!self.lines.makes_smaller(maker, kind.size, &self.calls)).then_some(maker)
        };
        let [before, after] = sighting.sides;
        // A line that the thread had not reached yet, or had left.
        let is_elsewhere = |maker: AllocationOrigin| {
            after.is_some_and(|after| self.calls.is_ahead(after, maker))
                || before.is_some_and(|before| self.calls.is_ahead(maker, before))
        };
        let may_be = |maker: &AllocationOrigin| {
            self.calls.may_be_between(*maker, &charge.shares) && !is_elsewhere(*maker)
        };
        let origin = where_last()
            .or_else(|| clear_in_call(&charge.shares))
            .or_else(|| sighting.recent.filter(|_| is_unseen))
            .or_else(|| sighting.is_doubtful.then(clear).flatten().filter(may_be))
            .or_else(|| at_place.next())
            .or_else(|| sighting.recent.filter(|maker| sighting.is_doubtful && is_near(maker)))
            .or_else(|| is_open.then(behind).flatten().filter(may_be))
            .or_else(|| of_kind.origin_anywhere(charge, sighting.has_arrived))
            .or_else(|| self.lines.maker(charge, &self.calls));
        let in_call = || is_open.then(|| of_kind.makers_in_call(charge, &self.calls)).flatten();
        let shares = origin.map(|origin| vec![(origin, 1)]).or_else(in_call)?;
        Some(Arc::new(BlockAttribution { shares, certain: false, ..*charge }))
    }
}

#[cfg(test)]
#[path = "kind_origins_tests.rs"]
mod tests;
