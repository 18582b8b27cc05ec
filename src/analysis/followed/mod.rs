//! The attribution rule where the allocator was followed: which stack each block of a map is charged to.
//!
//! A followed change says how many blocks were allocated and freed between two polls, with how many bytes, and which
//! stacks stood at the two polls. Where it is one allocation, its size, the bytes asked for and its pool say which blocks of
//! the next map it can be. The rule, in order:
//!
//! 1. *Who made a change?* Of the threads listed, one that held the allocator's lock; else those that execute Python. A
//!    thread that waits for the autograd engine counts for the engine's threads while these execute C++ code, and does not
//!    count while one of them executes Python. Threads that work on the host's memory only (`host_only.rs`) never count.
//! 2. A change is *certain* if that is one thread, no other is possible, and its stack is the same at both polls, which lie
//!    at most 20 µs apart: calling something else and coming back takes longer. The lock alone proves no stack: the poller
//!    may have lost its processor between copying the lock and copying the frames.
//! 3. Otherwise the stacks at both polls of all these threads are *candidates*, with equal parts. One stack seen at two
//!    polls more than 100 µs apart is none: a thread that waits now and then, and allocates in between, is seen where it
//!    waits. Without a candidate the change is charged to `[not seen]`.
//! 4. A map is put between the changes where the bytes alive were the sum of its blocks, near its time.
//! 5. Blocks of one size, bytes asked for and pool are of one *kind*. The changes between two maps are replayed
//!    (`follow_replay.rs`): what a change freed is found by its number and sums among the kinds that are alive, also where it was
//!    several blocks (`freed_groups.rs`); of one kind the youngest is freed, except for the one that was allocated last and just now.
//! 6. The blocks of the map that are new get the allocations of their kind that the replay left alive. `follow_replay.rs` says when
//!    that is certain.
//! 7. A block of which nothing is known is charged to the stack that came into question for more than half of the allocations of
//!    its kind so far, if no other came half as often. One with several candidates goes to the candidate that was seen both
//!    before and after allocations of its kind, if no other was half as often: what comes ahead of an allocation is only seen
//!    before it, what follows only after it. Without such a one, to the candidate that was always after, never before, if the
//!    others were always before. That is likely, never certain.
//! 8. Blocks of which no single allocation is known are charged as in `births.rs` to the changes of several allocations
//!    in which there is room for them, else by rule 7, else to `[not seen]`.

pub(super) mod follow_replay;
pub(super) mod freed_groups;
use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::counter_intervals::{CounterInterval, CounterIntervals, PerPool};
use crate::analysis::attribution::host_only::HostOnlyStacks;
use crate::analysis::attribution::rules::{BlockGroup, SnapshotInterval, attribute_allocations};
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::analysis::followed::follow_replay::{
    FollowReplay, GroupAddresses, PoolChange, ReplayResult,
};
use crate::model::{
    CounterDelta, FollowedChange, FollowedThread, Pool, StackId, StackReading, StackTable,
};

/// Polls at most so far apart prove that a stack seen at both was there all the time, in nanoseconds.
const CERTAIN_WITHIN: u64 = 20_000;
/// In a longer time a thread can have gone somewhere else, allocated there, and come back.
const CANDIDATES_WITHIN: u64 = 100_000;
/// How far from its time a map is looked for among the changes.
const NEAR: usize = 64;
/// Kinds of which the makers are remembered, and how many of each.
const MAX_KINDS: usize = 1 << 16;
/// Allocations of a kind after which one that always stands after them is likely to have made them.
const MIN_AFTER: u32 = 3;
const MAX_MAKERS: usize = 16;
/// Changes kept between two maps; beyond, the oldest are forgotten.
const MAX_STEPS: usize = 1 << 17;

/// One change, with who is charged for what it allocated.
#[derive(Debug, Clone)]
struct FollowedStep {
    from: u64,
    to: u64,
    small: CounterDelta,
    large: CounterDelta,
    live: [i64; 2],
    /// Whether the amounts are only lower limits.
    open: bool,
    /// The block that it allocated, if it did just that.
    allocated: Option<BlockGroup>,
    charge: Arc<BlockAttribution>,
}

/// The changes of one device since the last map.
#[derive(Debug, Default)]
pub(crate) struct FollowedSteps {
    steps: VecDeque<FollowedStep>,
    allocation_sources: KindMakers,
}

/// How often each stack came into question for the allocations of a kind, since the recording began.
#[derive(Debug, Default)]
struct KindMakers {
    by_kind: FxHashMap<BlockGroup, Votes>,
}

#[derive(Debug, Default)]
struct Votes {
    /// Allocations with a candidate.
    all: u32,
    of: Vec<Votum>,
}

/// In how many allocations of a kind a stack came into question.
#[derive(Debug, Clone, Copy)]
struct Votum {
    origin: AllocationOrigin,
    all: u32,
    /// In how many it stood at the poll before, and at the poll after.
    before: u32,
    after: u32,
}

impl Votum {
    /// In the allocations of one place, the stacks that stand before are at or ahead of it, those that stand after at or behind
    /// it: one seen on both sides is the place.
    fn on_both_sides(&self) -> u32 {
        self.before.min(self.after)
    }
}

impl KindMakers {
    fn saw(&mut self, kind: BlockGroup, charge: &BlockAttribution, change: &FollowedChange) {
        let is_full = self.by_kind.len() >= MAX_KINDS && !self.by_kind.contains_key(&kind);
        if is_full || matches!(charge.shares[..], [(AllocationOrigin::NotSeen, _)]) {
            return;
        }
        let votes = self.by_kind.entry(kind).or_default();
        votes.all = votes.all.saturating_add(1);
        for &(origin, _) in &charge.shares {
            let stood = |side: fn(&FollowedThread) -> StackReading| {
                let is_it = |thread: &FollowedThread| {
                    let stack = side(thread).stack();
                    stack.is_some_and(|s| AllocationOrigin::Stack(thread.thread, s) == origin)
                };
                // In a longer time a thread can have come back to where it stood, as in a loop that sleeps.
                let is_near = charge.span.is_some_and(|span| span <= CERTAIN_WITHIN);
                u32::from(is_near && change.threads.iter().any(is_it))
            };
            let (before, after) = (stood(|thread| thread.before), stood(|thread| thread.after));
            if let Some(votum) = votes.of.iter_mut().find(|votum| votum.origin == origin) {
                votum.all = votum.all.saturating_add(1);
                votum.before = votum.before.saturating_add(before);
                votum.after = votum.after.saturating_add(after);
            } else if votes.of.len() < MAX_MAKERS {
                votes.of.push(Votum { origin, all: 1, before, after });
            }
        }
    }

    /// A better charge for a block of this kind, if there is one (rule 7).
    fn likely(&self, kind: BlockGroup, charge: &BlockAttribution) -> Option<Arc<BlockAttribution>> {
        let votes = self.by_kind.get(&kind).filter(|_| !charge.certain)?;
        let origin = match charge.shares[..] {
            [(AllocationOrigin::NotSeen, _)] => {
                let most = votes.of.iter().max_by_key(|votum| votum.all)?;
                let clear = most.all > votes.all / 2
                    && votes.of.iter().all(|v| v.origin == most.origin || v.all <= most.all / 2);
                clear.then_some(most.origin)
            }
            [_] => None,
            _ => {
                let is_candidate = |votum: &&Votum| {
                    charge.shares.iter().any(|(origin, _)| *origin == votum.origin)
                };
                let candidates: Vec<&Votum> = votes.of.iter().filter(is_candidate).collect();
                let best = candidates.iter().max_by_key(|v| (v.on_both_sides(), v.after))?;
                let others = || candidates.iter().filter(|v| v.origin != best.origin);
                let both = best.on_both_sides();
                let clear = both > 0 && others().all(|v| v.on_both_sides() <= both / 2);
                // Where the poll before never comes in time, what stands after is what allocated.
                let after = both == 0
                    && best.after >= MIN_AFTER
                    && others().all(|v| v.after == 0 && v.before >= MIN_AFTER);
                (clear || after).then_some(best.origin)
            }
        }?;
        Some(Arc::new(BlockAttribution { shares: vec![(origin, 1)], certain: false, ..*charge }))
    }
}

/// Changes up to a map.
#[derive(Debug)]
pub(crate) struct UntilMap {
    steps: Vec<FollowedStep>,
}

impl FollowedSteps {
    /// Takes a change.
    pub(crate) fn push(
        &mut self,
        change: &FollowedChange,
        stacks: &StackTable,
        engine: &EngineFrames,
        host_only: &HostOnlyStacks,
    ) {
        let (shares, certain) = allocation_sources(change, stacks, engine, host_only);
        let one = |pool, delta: &CounterDelta| {
            let size = delta.allocated_bytes.max(0) as u64;
            let kind = BlockGroup { size, requested: delta.requested_bytes.max(0) as u64, pool };
            (delta.allocations == 1 && change.is_single()).then_some(kind)
        };
        let charge = Arc::new(BlockAttribution {
            shares,
            span: Some(change.after.0.saturating_sub(change.before.0)),
            allocated_at: change.after.0,
            certain,
        });
        let allocated = one(Pool::Small, &change.small).or(one(Pool::Large, &change.large));
        if let Some(kind) = allocated {
            self.allocation_sources.saw(kind, &charge, change);
        }
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(FollowedStep {
            from: change.before.0,
            to: change.after.0,
            small: change.small,
            large: change.large,
            live: change.live,
            open: change.totals_reset || change.counters_torn,
            allocated,
            charge,
        });
    }

    /// A better charge for a block of this kind, if there is one (rule 7).
    pub(crate) fn likely(
        &self,
        kind: BlockGroup,
        charge: &BlockAttribution,
    ) -> Option<Arc<BlockAttribution>> {
        self.allocation_sources.likely(kind, charge)
    }

    /// Whether nothing was allocated since the last map.
    pub(crate) fn is_settled(&self) -> bool {
        self.steps.iter().all(|step| step.small.allocations + step.large.allocations == 0)
    }

    /// Whether nothing was alive before the first change known.
    pub(crate) fn began_empty(&self) -> bool {
        self.steps.front().is_some_and(|step| {
            let before =
                |live: i64, delta: &CounterDelta| live - delta.allocated_bytes + delta.freed_bytes;
            before(step.live[0], &step.small) == 0 && before(step.live[1], &step.large) == 0
        })
    }

    /// The changes up to a map read at `time` whose blocks have `live` bytes in the small and in the large pool (rule 4).
    pub(crate) fn until_map(&self, time: u64, live: [i64; 2]) -> UntilMap {
        let by_time = self.steps.partition_point(|step| step.to <= time);
        let fits = |count: &usize| {
            count.checked_sub(1).and_then(|last| self.steps.get(last)).map(|step| step.live)
                == Some(live)
        };
        let away = |count: &usize| count.abs_diff(by_time);
        let near = by_time.saturating_sub(NEAR)..=(by_time + NEAR).min(self.steps.len());
        let count = near.filter(fits).min_by_key(away).unwrap_or(by_time);
        UntilMap { steps: self.steps.range(..count).cloned().collect() }
    }

    /// Forgets the changes up to the map.
    pub(crate) fn forget(&mut self, until: &UntilMap) {
        self.steps.drain(..until.steps.len().min(self.steps.len()));
    }

    /// Forgets the changes before `time`.
    pub(crate) fn forget_before(&mut self, time: u64) {
        self.steps.drain(..self.steps.partition_point(|step| step.to <= time));
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
    }
}

impl UntilMap {
    /// Charges the blocks of the map (rules 5, 6 and 8): `before` has those of the map before, `blocks` this one's by group.
    /// `lived_on` are the bytes that have a maker already.
    pub(crate) fn charge(
        &self,
        before: impl Iterator<Item = (BlockGroup, u64, Arc<BlockAttribution>)>,
        blocks: FxHashMap<BlockGroup, GroupAddresses>,
        lived_on: PerPool,
    ) -> FxHashMap<u64, Arc<BlockAttribution>> {
        let from = self.steps.first().map_or(0, |step| step.from);
        let to = self.steps.last().map_or(0, |step| step.to);
        let mut replay = FollowReplay::new(from, to, before);
        for step in &self.steps {
            replay.change(&[(Pool::Small, &step.small), (Pool::Large, &step.large)].map(
                |(pool, delta)| PoolChange {
                    pool,
                    delta,
                    is_open: step.open,
                    attribution: &step.charge,
                },
            ));
        }
        let ReplayResult { mut attributions, unexplained } = replay.finish(blocks);
        if !unexplained.is_empty() {
            let mut left: FxHashMap<BlockGroup, Vec<u64>> = FxHashMap::default();
            for (group, address) in unexplained {
                left.entry(group).or_default().push(address);
            }
            self.charge_left(left, lived_on, &mut attributions);
        }
        attributions
    }

    /// Rule 8.
    fn charge_left(
        &self,
        mut left: FxHashMap<BlockGroup, Vec<u64>>,
        lived_on: PerPool,
        charges: &mut FxHashMap<u64, Arc<BlockAttribution>>,
    ) {
        let ledger = self.of_several();
        let ends = |step: Option<&FollowedStep>| step.map_or(0, |step| step.to);
        let not_seen = Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::NotSeen, 1)],
            span: Some(ends(self.steps.last()).saturating_sub(ends(self.steps.first()))),
            allocated_at: ends(self.steps.last()).max(1),
            certain: false,
        });
        left.retain(|kind, addresses| {
            let has_room = |i: &CounterInterval| i.has_room(kind.pool, kind.size, kind.requested);
            let possible = ledger.intervals.iter().any(has_room);
            if !possible {
                charges.extend(addresses.iter().map(|&address| (address, not_seen.clone())));
            }
            possible
        });
        let born = left.iter().map(|(kind, addresses)| (*kind, addresses.len() as u64)).collect();
        let between = SnapshotInterval {
            survived: lived_on,
            from: ends(self.steps.first()),
            to: ends(self.steps.last()),
            seen_last: &[(AllocationOrigin::NotSeen, 1)],
        };
        let found = attribute_allocations(&ledger, &born, &between);
        for (kind, addresses) in left {
            let charge = found.get(&kind).unwrap_or(&not_seen);
            charges.extend(addresses.into_iter().map(|address| (address, charge.clone())));
        }
    }

    /// The changes of several allocations.
    fn of_several(&self) -> CounterIntervals {
        let mut ledger = CounterIntervals::default();
        for step in &self.steps {
            let all = step.live[0].saturating_add(step.live[1]);
            let live = [all, step.live[0], step.live[1]];
            if let Some(last) = ledger.intervals.last_mut() {
                for (low, now) in last.low_after.iter_mut().zip(live) {
                    *low = (*low).min(now);
                }
            }
            if step.allocated.is_some() || step.small.allocations + step.large.allocations == 0 {
                continue;
            }
            let amounts = |of: fn(&CounterDelta) -> i64| {
                let (small, large) = (of(&step.small), of(&step.large));
                [small.saturating_add(large), small, large]
            };
            ledger.push(CounterInterval {
                from: step.from,
                to: step.to,
                bytes: amounts(|delta| delta.allocated_bytes),
                count: amounts(|delta| delta.allocations),
                requested: amounts(|delta| delta.requested_bytes),
                low_after: live,
                open: step.open,
                seen: step.charge.shares.clone(),
            });
        }
        ledger
    }
}

/// Rules 1 to 3: who is charged for a change, and whether that is certain.
fn allocation_sources(
    change: &FollowedChange,
    stacks: &StackTable,
    engine: &EngineFrames,
    host_only: &HostOnlyStacks,
) -> (Vec<(AllocationOrigin, u64)>, bool) {
    let not_seen = (vec![(AllocationOrigin::NotSeen, 1)], false);
    let readings = |thread: &FollowedThread| [thread.before, thread.after];
    let waits = |thread: &FollowedThread| {
        let waits = |stack: StackId| engine.is_waiting(stacks, stack);
        readings(thread).into_iter().filter_map(StackReading::stack).any(waits)
    };
    let without_frames = |thread: &FollowedThread| {
        readings(thread).into_iter().all(|reading| reading == StackReading::NoFrames)
    };
    let is_host_only = |thread: &FollowedThread| {
        !thread.held_lock
            && readings(thread)
                .into_iter()
                .filter_map(StackReading::stack)
                .any(|stack| host_only.has(stack))
    };
    let listed = || change.threads.iter().filter(|thread| !is_host_only(thread));
    let owners: Vec<&FollowedThread> = listed().filter(|t| t.held_lock).collect();
    let waiting: Vec<&FollowedThread> = listed().filter(|t| waits(t)).collect();
    let others: Vec<&FollowedThread> =
        listed().filter(|t| !waits(t) && !without_frames(t)).collect();
    let (chosen, held) = match owners[..] {
        // C++ code of the engine, for which a thread waits.
        [owner] if without_frames(owner) => (waiting, true),
        [_] => (owners, true),
        _ if others.is_empty() => (waiting, false),
        _ => (others, false),
    };
    let apart = change.after.0.saturating_sub(change.before.0);
    let mut origins: Vec<AllocationOrigin> = Vec::new();
    let mut whole = true;
    for thread in &chosen {
        for reading in readings(thread) {
            let Some(stack) = reading.stack() else {
                whole = false;
                continue;
            };
            let origin = AllocationOrigin::Stack(thread.thread, stack);
            if !origins.contains(&origin) {
                origins.push(origin);
            }
        }
    }
    let came_back = origins.len() == 1 && apart > CANDIDATES_WITHIN;
    if origins.is_empty() || came_back {
        return not_seen;
    }
    let certain =
        whole && origins.len() == 1 && apart <= CERTAIN_WITHIN && (held || !change.others_possible);
    (origins.into_iter().map(|origin| (origin, 1)).collect(), certain)
}
