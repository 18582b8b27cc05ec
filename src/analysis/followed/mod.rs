//! Attribution by counter deltas: which stack each block of a snapshot is charged to.
//!
//! A delta says how many blocks were allocated and freed between two polls, with how many bytes,
//! and which stacks stood at the two polls.
//!
//! 1. *Who made it?* A recording is read twice. The first reading gathers all deltas; `decoder`
//!    finds the sites of their allocations, with probabilities. While a recording is made, only
//!    the last ones are decoded; for all others the stacks at the two polls are candidates, of the
//!    threads that can have made a delta (`change_origins.rs`). Where several threads allocate
//!    (`contention.rs`), that tells who made what, but not whose blocks live.
//! 2. *What is proven?* `proof.rs` alone decides: which deltas, and which blocks of a snapshot.
//! 3. *Code of `torch.compile`*: its text tells which line made a buffer (`buffer_alignment.rs`).
//!    The loop that makes an optimizer's state runs only once: its lines take turns
//!    (`loop_order.rs`).
//! 4. *A burst* of several blocks is divided as the same was before (`repeated_steps.rs`), else as
//!    it is decoded (`decoded_charges.rs`).
//! 5. *Which blocks live?* A snapshot is put between the deltas where the bytes alive were the sum
//!    of its blocks, near its time. The deltas between two snapshots are replayed
//!    (`follow_replay.rs`). Blocks of one size, requested bytes and pool are of one kind. The sums
//!    of a delta's frees say which kinds it freed (`freed_groups.rs`); `replayed_group.rs` chooses
//!    the block of a kind; `group_settlement.rs` corrects that by the snapshot at the end.
//!    Addresses read after a delta say which block was allocated and which freed
//!    (`addressed_changes.rs`). A block at one address in both snapshots is the same one where the
//!    counters allow that. `free_sites.rs` corrects early choices.
//! 6. *New blocks* of a snapshot get the allocations of their kind that the replay left alive.
//!    Where polls rested on the way, its blocks are charged as they were where the program was in
//!    an iteration that was followed (`followed_states.rs`). Blocks of which no single allocation
//!    is known are charged as in `attribution/rules.rs` to the deltas of several allocations.
//! 7. *The highest moment* between two snapshots comes from the replay, if addresses were read
//!    (`highest_moment.rs`). Sums of all allocations need no replay (`allocated_totals.rs`).

mod addressed_changes;
mod allocated_totals;
mod buffer_alignment;
mod change_origins;
mod change_window;
mod contention;
mod decoded_charges;
mod decoder;
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
mod known_makers;
mod line_pairs;
mod lock_holders;
mod loop_order;
mod pool_change;
mod proof;
mod proof_ledger;
mod repeated_steps;
mod replayed_group;
mod snapshot_charges;
mod until_map;

pub(crate) use allocated_totals::AllocatedTotals;
pub(in crate::analysis) use follow_replay::GroupAddresses;
pub(crate) use generated_buffers::ProgramText;
#[cfg(test)]
pub(crate) use highest_moment::tests;
pub(crate) use highest_moment::{AliveBlock, HighestMoment};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, HostStacks, WaitFacts, WaitingPlaces,
};
use crate::analysis::autograd::EngineFrames;
use crate::analysis::followed::buffer_alignment::BufferAlignment;
use crate::analysis::followed::change_origins::{
    ChangeSources, allocated_kind, allocation_sources, free_site, may_have_left, went_on,
};
use crate::analysis::followed::contention::Contention;
pub(crate) use crate::analysis::followed::decoder::DecodedDeltas;
use crate::analysis::followed::decoder::{DecodedPart, DeltaLog};
use crate::analysis::followed::followed_states::FollowedStates;
use crate::analysis::followed::followed_step::{FollowedStep, PastStep};
use crate::analysis::followed::frame_returns::OpenFrames;
use crate::analysis::followed::free_sites::FreeSites;
use crate::analysis::followed::lock_holders::LockHolders;
use crate::analysis::followed::loop_order::LoopOrder;
use crate::analysis::followed::proof_ledger::ProofLedger;
use crate::analysis::followed::repeated_steps::{
    LiveBytes, PastPart, PastSteps, PoolDeltas, live_after, live_before,
};
pub(crate) use crate::analysis::followed::until_map::UntilMap;
use crate::model::{FollowedChange, FollowedThread, StackReading, StackTable};

/// Deltas with their allocations that are decoded at each snapshot without a second reading: some
/// 10 ms.
const MOST_DECODED: usize = 1 << 11;

/// The changes of one device since the last map.
#[derive(Debug, Default)]
pub(crate) struct FollowedSteps {
    steps: VecDeque<FollowedStep>,
    /// The number of the first of them.
    first: u64,
    frames: OpenFrames,
    sites: FreeSites,
    /// Ends of the times between maps, in nanoseconds since the recording began.
    maps: VecDeque<u64>,
    /// Who allocates at all.
    locks: LockHolders,
    /// Where nobody allocates.
    places: WaitingPlaces,
    /// When the polls began and ended between which the last change was.
    polls: Option<(u64, u64)>,
    past: PastSteps<PastStep>,
    states: FollowedStates,
    buffers: BufferAlignment,
    loops: LoopOrder,
    /// How many parts the changes have that are kept.
    parts: usize,
    /// What the changes allocated that are no longer kept.
    totals: AllocatedTotals,
    contention: Contention,
    /// Proves allocations apart from all rules.
    proof: ProofLedger,
    /// What a first reading of the recording found out.
    decoded: Option<Arc<DecodedDeltas>>,
    /// All changes of a first reading; without a second one, the last.
    log: DeltaLog,
}

/// What is known of a new change.
struct NewChange<'a> {
    change: &'a FollowedChange,
    proven: Option<AllocationOrigin>,
    seen: ChangeSources,
    decoded: Vec<DecodedPart>,
    /// The call below which its only thread made it, if that is all that is known.
    below: Option<AllocationOrigin>,
    contested: bool,
    /// Several threads allocate and free: whose blocks live is a guess.
    of_threads: bool,
}

impl NewChange<'_> {
    fn apart(&self) -> u64 {
        self.change.after.0.saturating_sub(self.change.before.0)
    }

    fn is_open(&self) -> bool {
        self.change.totals_reset || self.change.counters_torn
    }
}

impl FollowedSteps {
    /// Takes a change. `true`: the last map may show it: not all that was proven there still is.
    pub(crate) fn push(
        &mut self,
        change: &FollowedChange,
        text: ProgramText<'_>,
        engine: &EngineFrames,
        host_only: &HostStacks,
    ) -> bool {
        let stacks = text.stacks;
        self.make_room();
        let number = self.first + self.steps.len() as u64;
        let new = self.look_at(number, change, stacks, (engine, host_only));
        if self.decoded.is_none() {
            self.log.add(change, |stack| engine.is_waiting(stacks, stack), stacks);
            if self.log.len() > 2 * MOST_DECODED {
                self.log.keep_last(MOST_DECODED);
            }
        }
        let charge = Arc::new(charge(&new, engine, stacks));
        // Of several changes between two polls the first has brought the stacks of both.
        let polls = (change.before.0, change.after.0);
        if self.polls.replace(polls) != Some(polls) {
            self.observe_frames(change, |thread| thread.before, number, stacks);
        }
        let is_shown = self.keep(&new, &charge, stacks);
        let threads = &new.seen.threads;
        let mut known = self.loops.add(number, change, threads, stacks);
        known.append(&mut self.buffers.add(number, change, threads, text));
        for (of, buffers) in known {
            self.made_by_lines(of, &buffers);
        }
        let is_one = allocated_kind(&change.small, &change.large).is_some();
        let origin = charge.only_stack().filter(|_| is_one && !new.is_open());
        self.note_frames(number, change, origin, stacks);
        is_shown
    }

    /// Takes a change of a first reading.
    pub(crate) fn gather(
        &mut self,
        change: &FollowedChange,
        stacks: &StackTable,
        engine: &EngineFrames,
        host_only: &HostStacks,
    ) {
        self.look_at(0, change, stacks, (engine, host_only));
        self.log.add(change, |stack| engine.is_waiting(stacks, stack), stacks);
    }

    /// Finds out what is known of a change by itself.
    fn look_at<'a>(
        &mut self,
        number: u64,
        change: &'a FollowedChange,
        stacks: &StackTable,
        (engine, host_only): (&EngineFrames, &HostStacks),
    ) -> NewChange<'a> {
        let is_waiting = |stack| engine.is_waiting(stacks, stack);
        self.locks.add(change, is_waiting);
        self.places.see_change(change, is_waiting);
        let facts = WaitFacts { stacks, engine, host_only, places: &self.places };
        let seen = allocation_sources(change, facts, &self.locks);
        let proven = proof::maker(change, facts);
        let mut decoded = match &self.decoded {
            Some(decoded) => decoded.parts(number),
            None => Vec::new(),
        };
        let moved = seen.waited.then(|| went_on(change, facts)).flatten();
        let below = moved.filter(|call| !decoded_charges::narrow(&mut decoded, *call, stacks));
        let apart = change.after.0.saturating_sub(change.before.0);
        let stayed = seen.stayed(apart);
        if let Some(AllocationOrigin::Stack(_, stack)) = stayed.filter(|_| change.allocations() > 0)
        {
            self.places.works(stack);
        }
        let is_several = seen.threads.len() > 1;
        let of_threads = self.are_of_threads();
        let is_usual = self.contention.add(change, is_several);
        // A thread that seldom allocates leaves no doubt where the decoder has none.
        let is_sure = || !decoded.is_empty() && decoded.iter().all(DecodedPart::is_sure);
        let contested = match of_threads {
            true => decoded.is_empty() || decoded.iter().any(|part| part.probable().is_none()),
            false => is_usual || is_several && !is_sure(),
        };
        NewChange { change, proven, seen, decoded, below, contested, of_threads }
    }

    /// Whether the recording is decoded as one of several threads.
    fn are_of_threads(&self) -> bool {
        self.decoded.as_ref().is_some_and(|decoded| decoded.are_of_threads())
    }

    /// Keeps a change. `true`: the last map may show it.
    fn keep(
        &mut self,
        new: &NewChange<'_>,
        charge: &Arc<BlockAttribution>,
        stacks: &StackTable,
    ) -> bool {
        let NewChange { change, proven, decoded, .. } = new;
        let open = new.is_open();
        let pools = [change.small, change.large];
        let site = free_site(&new.seen.origins, stacks);
        let level = live_before(change.live, &pools);
        let is_burst = change.allocations().saturating_add(change.frees()) > 1 && !open;
        let parts = is_burst.then(|| self.past.divide(level, &pools)).flatten();
        let parts = parts.or_else(|| {
            let decoded = Some(decoded).filter(|_| !open)?;
            decoded_charges::one_by_one(decoded, &pools, charge, site)
        });
        self.parts += parts.as_ref().map_or(0, Vec::len);
        let past = PastStep { charge: charge.clone(), site };
        self.remember(level, pools, past, parts.as_deref());
        let addresses = change.addresses.as_deref().cloned().map(Arc::new);
        let is_shown = self.proof.push(change, *proven, addresses.clone());
        self.steps.push_back(FollowedStep {
            from: change.before.0,
            to: change.after.0,
            small: change.small,
            large: change.large,
            live: change.live,
            open,
            is_told: proven.is_some() || new.below.is_some(),
            allocated: allocated_kind(&change.small, &change.large).filter(|_| !open),
            parts,
            charge: charge.clone(),
            site,
            returned: None,
            addresses,
        });
        is_shown
    }

    /// Notes which frame allocated in a change, where it stood at one of the two polls.
    fn note_frames(
        &mut self,
        number: u64,
        change: &FollowedChange,
        origin: Option<AllocationOrigin>,
        stacks: &StackTable,
    ) {
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
        for part in one_by_one {
            self.past.push(level, part.clone());
            level = live_after(level, &part.0);
        }
    }

    /// Notes which frames have returned, and in which changes their variables can have been
    /// dropped: `next` is the one to come.
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
}

/// Whom a change is charged to.
fn charge(new: &NewChange<'_>, engine: &EngineFrames, stacks: &StackTable) -> BlockAttribution {
    let NewChange { change, proven, seen, decoded, below, contested, of_threads } = new;
    let held_lock = change.threads.iter().any(|thread| thread.held_lock);
    let left =
        |origin: AllocationOrigin| !held_lock && may_have_left(origin, new.apart(), engine, stacks);
    let known = proven.or_else(|| seen.stayed(new.apart()));
    let shares = match (known, &seen.origins[..]) {
        (Some(known), _) => vec![(known, 1)],
        _ if below.is_some() => below.iter().map(|below| (*below, 1)).collect(),
        _ if !decoded.is_empty() => decoded_charges::shares(decoded),
        (None, []) => vec![(AllocationOrigin::NotSeen, 1)],
        (None, [origin]) if left(*origin) => vec![(AllocationOrigin::NotSeen, 1)],
        (None, origins) => {
            let unseen = seen.waited.then_some(AllocationOrigin::NotSeen);
            origins.iter().copied().chain(unseen).map(|origin| (origin, 1)).collect()
        }
    };
    BlockAttribution {
        shares,
        span: Some(new.apart()),
        allocated_at: change.after.0,
        certain: proven.is_some(),
        contested: *contested,
        doubted: *of_threads,
    }
}
