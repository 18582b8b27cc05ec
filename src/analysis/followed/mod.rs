//! The attribution rule where the allocator was followed: which stack each block of a map is charged to.
//!
//! A followed change says how many blocks were allocated and freed between two polls, with how many bytes, and which
//! stacks stood at the two polls. Where it is one allocation, its size, the bytes asked for and its pool say which blocks of
//! the next map it can be. The rule, in order:
//!
//! 1. *Who made a change?* Of the threads listed, one that held the allocator's lock; else those that execute Python. A
//!    thread that waits for the autograd engine counts for the engine's threads while these execute C++ code, and does not
//!    count while one of them executes Python. Threads that wait, or work on the host's memory only, never count where they do so (`attribution/waiting.rs`), and those
//!    that never hold the lock (`lock_holders.rs`) neither.
//!    Where the thread is in code that `torch.compile` wrote, the text of the lines that it passed tells which of them, or the operator that it called, made the block (`buffer_alignment.rs`).
//!    Where lines of a loop take turns at making blocks, as in the loop that makes an optimizer's state once, their order tells it (`loop_order.rs`).
//! 2. A change is *certain* if that is one thread, no other is possible, and its stack is the same at both polls, which lie
//!    at most 20 µs apart: calling something else and coming back takes longer. The lock alone proves no stack: the poller
//!    may have lost its processor between copying the lock and copying the frames, or needed long for the stacks of many threads.
//!    Nor is it certain where another line of the same call makes such blocks as a rule: a fast loop can have come round.
//! 3. Otherwise the stacks at both polls of all these threads are *candidates*, with equal parts. One stack seen at two
//!    polls more than 100 µs apart is none, unless a thread held the lock: a thread that waits now and then, and allocates in between, is seen where it
//!    waits. One that waits for the autograd engine does so for longer (`engine_waits.rs`), and one that is deep in calls does not leave them and come back within a millisecond. Where no stack could be read, the last one before stands in (`last_stacks.rs`). Without a candidate the change is charged to `[not seen]`.
//! 4. A map is put between the changes where the bytes alive were the sum of its blocks, near its
//!    time. A change of several blocks is divided as the same was before at this level of bytes or
//!    place (`repeated_steps.rs`), else in the usual order (`usual_order.rs`).
//! 5. Blocks of one size, bytes asked for and pool are of one *kind*. The changes between two
//!    complete maps are replayed (`follow_replay.rs`). The number and sums of a change's frees say
//!    which kinds it freed, also where it freed several blocks (`freed_groups.rs`).
//!    `replayed_group.rs` chooses the block of a kind; `group_settlement.rs` corrects that by the
//!    map at the end. Addresses read after a change say which block was allocated and which freed
//!    (`addressed_changes.rs`), also by what was at an address before (`block_places.rs`). A block
//!    at one address in both maps is the same block, unless its origin goes on to allocate such
//!    blocks (`remade_kinds.rs`). `free_sites.rs` corrects early choices.
//! 6. The blocks of the map that are new get the allocations of their kind that the replay left alive. `follow_replay.rs` says when
//!    that is certain. Where polls rested on the way to the map, its blocks are charged as they were where the program was in an iteration that was followed (`followed_states.rs`).
//! 7. A block of which nothing is known goes to the stack that was possible for more than half of
//!    the allocations of its kind at the same place in the program's run
//!    (`allocation_places.rs`). Else it goes to the one that leads anywhere, if no other came half
//!    as often. One with several candidates goes to the candidate seen both before and after
//!    allocations of its kind, if no other was half as often: a line ahead of an allocation is seen
//!    only before it, a line behind it only after it. Where a stack could not be read, or the polls
//!    lay between two others, the stack on both sides of most allocations of its kind at this place
//!    allocated it, even if it was not seen beside this one. Where the sums do not decide, the
//!    stacks of the last blocks do (`maker_sequence.rs`): a model's layers come in the same order,
//!    whatever the sizes. A stack deep within another call is none of these. Where the place does
//!    not decide, the line of the call that allocates blocks at all does (`line_votes.rs`).
//!    Excluded are lines that the thread had not reached yet, had left, or cannot have been on
//!    because it was in another line's call. Lines that allocate far smaller blocks only are
//!    excluded where another is possible. All of this is likely, never certain.
//! 8. Blocks of which no single allocation is known are charged as in `attribution/rules.rs` to the changes of several allocations
//!    in which there is room for them, else by rule 7, else to `[not seen]`.
//!
//! Where addresses were read, the replay also tells what was alive at the highest moments between two maps (`highest_moment.rs`; which of them is shown: `profile/device/between_maps.rs`): likely, and certain only
//! of kinds of which none was freed since the first of them.
//!
//! What was allocated in all (`allocated_totals.rs`) needs rules 1 to 3 and 7 alone: which block was freed plays no part in it.

mod addressed_changes;
mod allocated_totals;
mod allocation_places;
mod block_places;
mod buffer_alignment;
mod change_origins;
mod change_window;
mod contention;
mod decoder;
mod engine_waits;
mod follow_replay;
mod followed_states;
mod followed_step;
mod frame_returns;
mod free_sites;
mod freed_groups;
mod generated_buffers;
mod group_settlement;
mod highest_moment;
mod kept_steps;
mod kind_origins;
mod known_makers;
mod last_stacks;
mod line_pairs;
mod line_votes;
mod lock_holders;
mod loop_order;
mod maker_sequence;
mod pool_change;
mod remade_kinds;
mod repeated_steps;
mod replayed_group;
mod snapshot_charges;
mod stack_calls;
mod stack_votes;
mod until_map;
mod usual_order;

pub(crate) use allocated_totals::AllocatedTotals;
pub(in crate::analysis) use follow_replay::GroupAddresses;
pub(crate) use generated_buffers::ProgramText;
#[cfg(test)]
pub(crate) use highest_moment::tests;
pub(crate) use highest_moment::{AliveBlock, HighestMoment};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, HostStacks, WaitFacts,
};
use crate::analysis::autograd::EngineFrames;
use crate::analysis::followed::allocation_places::{AllocationSums, ReachSums, place_behind};
use crate::analysis::followed::buffer_alignment::BufferAlignment;
use crate::analysis::followed::change_origins::{
    BetweenPolls, CERTAIN_WITHIN, ChangeSources, allocated_kind, allocation_sources, between_polls,
    free_site, makers, went_on,
};
use crate::analysis::followed::contention::Contention;
use crate::analysis::followed::decoder::DeltaLog;
use crate::analysis::followed::engine_waits::EngineWaits;
use crate::analysis::followed::followed_states::FollowedStates;
use crate::analysis::followed::followed_step::{FollowedStep, PastStep, made_by_parts};
use crate::analysis::followed::frame_returns::OpenFrames;
use crate::analysis::followed::free_sites::FreeSites;
use crate::analysis::followed::kind_origins::{KindOrigins, Sighting};
use crate::analysis::followed::last_stacks::LastStacks;
use crate::analysis::followed::loop_order::LoopOrder;
use crate::analysis::followed::maker_sequence::MakerSequence;
use crate::analysis::followed::repeated_steps::{
    LiveBytes, PastPart, PastSteps, PoolDeltas, live_after, live_before,
};
use crate::analysis::followed::stack_votes::stood;
pub(crate) use crate::analysis::followed::until_map::UntilMap;
use crate::analysis::followed::usual_order::usual_order;
use crate::model::{FollowedChange, FollowedThread, StackReading, StackTable};

/// The changes of one device since the last map.
#[derive(Debug, Default)]
pub(crate) struct FollowedSteps {
    steps: VecDeque<FollowedStep>,
    /// The number of the first of them.
    first: u64,
    frames: OpenFrames,
    last_stacks: LastStacks,
    engine_waits: EngineWaits,
    /// The last block and who made it, where that is most likely one stack.
    last_made: Option<(BlockGroup, AllocationOrigin)>,
    /// Who made the last few.
    sequence: MakerSequence,
    /// When the polls began and ended between which the last change was.
    polls: Option<(u64, u64)>,
    sites: FreeSites,
    /// Ends of the times between maps, in nanoseconds since the recording began.
    maps: VecDeque<u64>,
    allocation_sources: KindOrigins,
    sums: AllocationSums,
    past: PastSteps<PastStep>,
    states: FollowedStates,
    buffers: BufferAlignment,
    loops: LoopOrder,
    /// How many parts the changes have that are kept.
    parts: usize,
    /// What the changes allocated that are no longer kept.
    totals: AllocatedTotals,
    contention: Contention,
    /// All changes, to find out whose allocations they are once all are known.
    log: DeltaLog,
}

impl FollowedSteps {
    /// Takes a change.
    pub(crate) fn push(
        &mut self,
        change: &FollowedChange,
        text: ProgramText<'_>,
        engine: &EngineFrames,
        host_only: &HostStacks,
    ) {
        let stacks = text.stacks;
        let is_waiting = |stack| engine.is_waiting(stacks, stack);
        self.allocation_sources.locks.add(change, is_waiting);
        self.engine_waits.add(change, is_waiting);
        self.allocation_sources.places.see_change(change, is_waiting);
        let places = &self.allocation_sources.places;
        let facts = WaitFacts { stacks, engine, host_only, places };
        let locks = &self.allocation_sources.locks;
        let sources = |change: &FollowedChange| allocation_sources(change, facts, locks);
        let mut found = sources(change);
        // Who was never seen with the lock is no reason to leave out a thread that was, and whose stack could not be read.
        let is_nobody = |origin: &AllocationOrigin| match *origin {
            // The autograd engine's threads hold it in its stead.
            AllocationOrigin::Stack(thread, stack) => !locks.has_held(thread) && !is_waiting(stack),
            _ => false,
        };
        let is_nobodys = found.origins.iter().all(is_nobody);
        let completed = is_nobodys.then(|| self.last_stacks.complete(change)).flatten();
        self.last_stacks.see(change);
        let whole = completed.as_ref().unwrap_or(change);
        if completed.is_some() {
            found = ChangeSources { certain: false, is_whole: false, ..sources(whole) };
        } else if is_nobodys && change.threads.iter().any(|thread| locks.has_held(thread.thread)) {
            found.origins.clear();
        }
        let ChangeSources { origins, certain, is_whole, waited } = found;
        let below = waited.then(|| went_on(change, facts, locks)).flatten();
        self.allocation_sources.calls.add(&origins, stacks);
        let site = free_site(&origins, stacks);
        let makers = makers(change, &origins);
        let contested = self.contention.add(change, locks.are_several(&makers));
        self.log.add(change, contested, is_waiting);
        let apart = whole.after.0.saturating_sub(whole.before.0);
        if let [AllocationOrigin::Stack(_, stack)] = origins[..]
            && (is_whole && !waited && apart <= CERTAIN_WITHIN && change.allocations() > 0)
        {
            self.allocation_sources.places.works(stack);
        }
        let is_inside = change.threads.iter().any(|thread| thread.held_lock);
        let between = match origins[..] {
            [origin] if !is_inside && !waited => {
                between_polls(origin, apart, engine, self.engine_waits.stay(), stacks)
            }
            _ => BetweenPolls::Stayed,
        };
        let came_back = between == BetweenPolls::MayHaveLeft;
        let shares = if origins.is_empty() || came_back {
            vec![(below.unwrap_or(AllocationOrigin::NotSeen), 1)]
        } else {
            let unseen = waited.then_some(below.unwrap_or(AllocationOrigin::NotSeen));
            origins.into_iter().chain(unseen).map(|origin| (origin, 1)).collect()
        };
        let is_doubtful = !is_whole || shares.len() > 1 || between != BetweenPolls::Stayed;
        let charge = Arc::new(BlockAttribution {
            shares,
            span: Some(apart),
            allocated_at: change.after.0,
            certain,
            contested,
        });
        let open = change.totals_reset || change.counters_torn;
        let allocated = allocated_kind(&change.small, &change.large).filter(|_| !open);
        let places = allocated.map_or_else(ReachSums::default, |kind| self.sums.places(Some(kind)));
        let pools = [change.small, change.large];
        let before = self.sums.places(None);
        let level = live_before(change.live, &pools);
        let parts = (change.allocations().saturating_add(change.frees()) > 1 && !open)
            .then(|| {
                let as_before = self.past.divide(&before, level, &pools);
                as_before.or_else(|| {
                    usual_order(&pools, self.last_made?, &charge, site, &self.allocation_sources)
                })
            })
            .flatten();
        self.parts += parts.as_ref().map_or(0, Vec::len);
        let by_parts: Vec<_> =
            parts.as_deref().map_or_else(Vec::new, |parts| made_by_parts(parts).collect());
        // Of several changes between two polls the first has brought the stacks of both.
        let polls = (change.before.0, change.after.0);
        let is_next = self.polls.replace(polls) != Some(polls);
        let follows = allocated.and_then(|kind| Some(place_behind(kind, self.last_made?)));
        let sequence = allocated.and_then(|kind| self.sequence.place(kind));
        let side = |side: usize| {
            let mut seen = charge.shares.iter().map(|share| share.0);
            seen.find(|origin| stood(*origin, whole)[side])
        };
        let sides = [side(0), side(1)];
        let sighting = Sighting { is_doubtful, sequence, sides };
        if let Some(kind) = allocated {
            self.allocation_sources.saw(kind, &places, [follows, sequence], &charge, whole);
        }
        self.make_room();
        let number = self.first + self.steps.len() as u64;
        if certain {
            self.log.charge(number);
        }
        if is_next {
            self.observe_frames(change, |thread| thread.before, number, stacks);
        }
        let likely = allocated
            .and_then(|kind| self.allocation_sources.likely(kind, &places, &charge, sighting));
        let past =
            PastStep { places, charge: likely.clone().unwrap_or_else(|| charge.clone()), site };
        self.remember(before, level, pools, past, parts.as_deref());
        self.steps.push_back(FollowedStep {
            from: change.before.0,
            to: change.after.0,
            small: change.small,
            large: change.large,
            live: change.live,
            open,
            allocated,
            places,
            sighting,
            parts,
            charge: charge.clone(),
            site,
            returned: None,
            addresses: change.addresses.as_deref().cloned().map(Arc::new),
        });
        let mut known = self.loops.add(number, change, &makers, stacks);
        known.append(&mut self.buffers.add(number, change, &makers, text));
        for (of, buffers) in known {
            self.made_by_lines(of, &buffers);
        }
        let origin = allocated.and_then(|_| likely.as_ref().unwrap_or(&charge).only_stack());
        let made = allocated.zip(origin);
        if change.allocations() > 0 {
            self.last_made = made.or_else(|| by_parts.last().copied().flatten());
            match made {
                None if !by_parts.is_empty() => self.sequence.add(by_parts),
                made => self.sequence.add([made]),
            }
        }
        let stood = |side: fn(&FollowedThread) -> StackReading| {
            let Some(AllocationOrigin::Stack(thread, stack)) = origin else { return None };
            let listed = change.threads.iter().find(|listed| listed.thread == thread)?;
            (side(listed).stack() == Some(stack)).then_some((thread, stack))
        };
        let before = stood(|thread| thread.before);
        if let Some((thread, stack)) = before {
            self.frames.allocate(thread, stack, number);
        }
        self.observe_frames(change, |thread| thread.after, number + 1, stacks);
        if let Some((thread, stack)) = stood(|thread| thread.after).filter(|_| before.is_none()) {
            self.frames.allocate(thread, stack, number);
        }
    }

    /// Remembers a change for later ones: what it most likely was where that is known, as if each
    /// part of it had been seen by itself.
    fn remember(
        &mut self,
        mut before: ReachSums,
        mut level: LiveBytes,
        whole: PoolDeltas,
        past: PastStep,
        parts: Option<&[PastPart<PastStep>]>,
    ) {
        let itself;
        let one_by_one = match parts {
            Some(parts) => parts,
            None => {
                itself = [Arc::new((whole, past))];
                &itself
            }
        };
        for (nth, part) in one_by_one.iter().enumerate() {
            let pools = &part.0;
            if nth > 0 {
                before = self.sums.places(None);
            }
            self.sums.add([&pools[0], &pools[1]]);
            self.past.push(&before, level, part.clone());
            level = live_after(level, pools);
        }
    }

    /// Notes which frames have returned, and in which changes their variables can have been dropped: `next` is the one to come.
    fn observe_frames(
        &mut self,
        change: &FollowedChange,
        side: fn(&FollowedThread) -> StackReading,
        next: u64,
        stacks: &StackTable,
    ) {
        for thread in &change.threads {
            let Some(stack) = side(thread).stack() else { continue };
            let (returned, since) = self.frames.observe(thread.thread, stack, next, stacks);
            for of in returned {
                let index = of.checked_sub(self.first).map(|index| index as usize);
                if let Some(step) = index.and_then(|index| self.steps.get_mut(index)) {
                    step.returned = Some((since, next));
                }
            }
        }
    }

    /// A better charge for a block of this kind, if there is one (rule 7).
    pub(crate) fn likely(
        &self,
        kind: BlockGroup,
        charge: &BlockAttribution,
    ) -> Option<Arc<BlockAttribution>> {
        self.allocation_sources.likely_anywhere(kind, charge)
    }
}
