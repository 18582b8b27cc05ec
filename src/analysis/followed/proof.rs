//! What is proven: no other assignment fits the counters, the addresses, the snapshots, and a stack
//! held on both sides. Nothing here is learned, and nothing else calls a block proven.
//!
//! A *delta* is proven ([`maker`]) if its counters are whole, it is one allocation, one thread only
//! can have made it, and this thread stood at one stack at both polls, which lie at most 20 µs
//! apart.
//!
//! A *complete reading* tells each block alive at one position among the deltas: a consistent
//! snapshot, or a reading of addresses, if each allocation counted since the last one was read, and
//! all blocks add up to the counters. Between two of them, frees that no missing block accounts for are hidden: another block may have been freed and
//! its address used again. A block is proven to be of a stack if every allocation that can have
//! made it is proven and of this stack: those of its size since its address last was empty, or had
//! another block, up to where its address is known to have held it, and nothing of its size can
//! have been freed unseen since. If the snapshot before has it, so did whoever made that one.
//!
//! Requested bytes of deltas play no part: the allocator counts them later than sizes. Each fact is
//! used only where it holds for sure: a snapshot at every position among the deltas that its time
//! and its bytes allow, a reading only if it is complete.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockGroup, WaitFacts};
use crate::analysis::followed::pool_change::MAX_SMALL_BLOCK;
use crate::analysis::followed::repeated_steps::{LiveBytes, PoolDeltas, live_before};
use crate::model::{
    CounterDelta, FollowedAddresses, FollowedChange, FollowedThread, MIN_BLOCK, StackReading,
    ThreadWait,
};

/// Polls at most so far apart prove that a stack seen at both was there all the time, in
/// nanoseconds.
const HELD_WITHIN: u64 = 20_000;

/// Who made the only allocation of a delta, if that is proven.
pub(super) fn maker(change: &FollowedChange, facts: WaitFacts<'_>) -> Option<AllocationOrigin> {
    let apart = change.after.0.saturating_sub(change.before.0);
    let is_whole = !(change.counters_torn || change.totals_reset || change.others_possible);
    if !is_whole || apart > HELD_WITHIN || change.allocations() != 1 {
        return None;
    }
    let for_engine = |t: &FollowedThread| t.stacks().any(|stack| facts.is_for_engine(stack));
    let without_frames =
        |t: &FollowedThread| t.sides().into_iter().all(|side| side == StackReading::NoFrames);
    // It would have had to wake up, allocate, and wait there again.
    let is_read = |t: &FollowedThread| t.before.stack().is_some() || without_frames(t);
    let waits = |t: &FollowedThread| {
        !t.held_lock && t.wait == ThreadWait::Both && t.before == t.after && is_read(t)
    };
    let runs = |t: &&FollowedThread| !facts.cannot_have_allocated(t);
    let (in_cpp, in_python): (Vec<_>, Vec<_>) =
        change.threads.iter().filter(runs).partition(|t| without_frames(t));
    let in_cpp = in_cpp.into_iter().any(|t| !waits(t));
    // The engine's threads execute C++ code for the thread that waits for them.
    let may_make = |t: &&&FollowedThread| !waits(t) || (in_cpp && for_engine(t));
    let mut makers = in_python.iter().filter(may_make);
    let (Some(thread), None) = (makers.next(), makers.next()) else { return None };
    let stack = thread.before.stack().filter(|_| thread.before == thread.after)?;
    (!in_cpp || for_engine(thread)).then_some(AllocationOrigin::Stack(thread.thread, stack))
}

/// What a proof needs of a delta.
#[derive(Debug)]
pub(super) struct ProofDelta {
    pub(super) to: u64,
    pub(super) pools: PoolDeltas,
    pub(super) live: LiveBytes,
    /// Whether the amounts are only lower limits.
    open: bool,
    maker: Option<AllocationOrigin>,
    addresses: Option<Arc<FollowedAddresses>>,
}

impl ProofDelta {
    pub(super) fn new(
        change: &FollowedChange,
        maker: Option<AllocationOrigin>,
        addresses: Option<Arc<FollowedAddresses>>,
    ) -> ProofDelta {
        let pools = [change.small, change.large];
        let is_negative = |of: &CounterDelta| {
            of.allocations.min(of.frees).min(of.allocated_bytes).min(of.freed_bytes) < 0
        };
        let open = change.counters_torn || change.totals_reset || pools.iter().any(is_negative);
        ProofDelta { to: change.after.0, pools, live: change.live, open, maker, addresses }
    }

    /// Whether it may have freed a block of this size.
    pub(super) fn may_free(&self, size: u64) -> bool {
        let pool = &self.pools[pool_of(size)];
        self.open || Amount { count: pool.frees, bytes: pool.freed_bytes }.may_have(size)
    }

    /// Whether so much may have been alive in the midst of it.
    pub(super) fn may_pass(&self, level: LiveBytes) -> bool {
        let count = self.pools.iter().map(|pool| pool.allocations.saturating_add(pool.frees));
        // After the first of two.
        let between = || {
            let halves = self.pools.iter().enumerate().flat_map(|(at, pool)| {
                [pool.allocated_bytes, -pool.freed_bytes].map(|bytes| (at, bytes))
            });
            halves.filter(|(_, bytes)| *bytes != 0).any(|(at, bytes)| {
                let mut live = live_before(self.live, &self.pools);
                live[at] = live[at].saturating_add(bytes);
                live == level
            })
        };
        self.open
            || match count.fold(0, i64::saturating_add) {
                ..2 => false,
                2 => {
                    between() || self.pools.iter().any(|pool| pool.allocations.max(pool.frees) > 1)
                }
                _ => true,
            }
    }

    /// Whether it may have allocated a block of this size.
    pub(super) fn may_allocate(&self, size: u64) -> bool {
        let pool = &self.pools[pool_of(size)];
        self.open || Amount { count: pool.allocations, bytes: pool.allocated_bytes }.may_have(size)
    }
}

/// Blocks and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Amount {
    count: i64,
    bytes: i64,
}

impl Amount {
    fn add(&mut self, count: i64, bytes: i64) {
        self.count = self.count.saturating_add(count);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether a block of this size may be among them.
    fn may_have(self, size: u64) -> bool {
        let others = self.count.saturating_sub(1);
        let left = self.bytes.saturating_sub(size as i64);
        match self.count {
            ..=0 => false,
            1 => left == 0,
            _ => left >= others.saturating_mul(MIN_BLOCK as i64),
        }
    }
}

/// A snapshot's block, and who is proven to have made it.
pub(super) type ProvenBlock = (BlockGroup, Option<AllocationOrigin>);

/// The last consistent snapshot.
#[derive(Debug, Default)]
pub(super) struct ProofBase {
    pub(super) time: u64,
    pub(super) level: LiveBytes,
    pub(super) blocks: FxHashMap<u64, ProvenBlock>,
    /// It may have been read after as many of the deltas kept.
    pub(super) latest: usize,
}

/// Finds out who is proven to have made the blocks of a snapshot that was read after at least
/// `earliest` of these deltas, and at most all.
pub(super) fn prove(
    base: &ProofBase,
    deltas: &[ProofDelta],
    earliest: usize,
    found: &mut FxHashMap<u64, ProvenBlock>,
) {
    let mut proof = BlockProof::new(base, deltas);
    // Readings that contradict the counters are left out.
    if !proof.take_addresses(base.latest, earliest) {
        proof = BlockProof::new(base, deltas);
    }
    if !proof.take_snapshot(found) {
        return;
    }
    let BlockProof { held, hidden, .. } = proof;
    let mut origins = ProvenOrigins::new(deltas, hidden);
    for (at, (group, origin)) in found {
        let Some(held) = held.get(at) else { continue };
        let before = held.since.is_none().then(|| base.blocks.get(at)).flatten();
        *origin = origins.origin(group.size, held, before.filter(|before| before.0 == *group));
    }
}

/// A block that is alive: after how many deltas its address was without it, and at most so many
/// deltas had made it. `None`: since the last snapshot.
#[derive(Debug, Clone, Copy)]
struct HeldBlock {
    size: u64,
    since: Option<usize>,
    until: usize,
}

/// Frees between complete readings that no missing block accounts for, in each pool.
type HiddenFrees = Vec<(Range<usize>, [Amount; 2])>;

/// What a complete reading changed.
#[derive(Default)]
struct Differences {
    gone: [Amount; 2],
    new: [Amount; 2],
}

/// A proof under way, from one consistent snapshot to the next.
struct BlockProof<'a> {
    deltas: &'a [ProofDelta],
    /// At the last complete reading, by address; and after how many deltas that was.
    held: FxHashMap<u64, HeldBlock>,
    at: usize,
    hidden: HiddenFrees,
}

impl<'a> BlockProof<'a> {
    fn new(base: &ProofBase, deltas: &'a [ProofDelta]) -> BlockProof<'a> {
        let held = |(at, (group, _)): (&u64, &ProvenBlock)| {
            (*at, HeldBlock { size: group.size, since: None, until: 0 })
        };
        let held = base.blocks.iter().map(held).collect();
        BlockProof { deltas, held, at: 0, hidden: Vec::new() }
    }

    /// Takes the readings of addresses within these positions. `false`: they contradict the
    /// counters.
    fn take_addresses(&mut self, from: usize, until: usize) -> bool {
        // Sizes by address: read since the last complete reading; `true`: another block.
        let mut read: FxHashMap<u64, (Option<u64>, bool)> = FxHashMap::default();
        let mut bytes: i64 = self.held.values().map(|held| held.size as i64).sum();
        let mut covered = 0;
        // Allocations since then: by the counters, and those that were read.
        let (mut made, mut listed) = (0, 0);
        for (number, delta) in self.deltas[..until].iter().enumerate() {
            let end = number + 1;
            let allocations = delta.pools.iter().map(|pool| pool.allocations);
            made = allocations.fold(made, i64::saturating_add);
            made = if delta.open { i64::MAX } else { made };
            let Some(addresses) = delta.addresses.as_deref() else { continue };
            let begin = end.checked_sub(addresses.changes.max(1) as usize);
            // The snapshot was read in its midst: what it freed may be older.
            let is_divided = covered == 0 && begin.is_none_or(|begin| begin < from);
            let has_freed = |of: &ProofDelta| of.open || of.pools.iter().any(|pool| pool.frees > 0);
            match is_divided {
                true if self.deltas[..end].iter().any(has_freed) => return true,
                false if begin != Some(covered) => return true,
                _ => covered = end,
            }
            let size = |read: &FxHashMap<u64, (Option<u64>, bool)>, at: &u64| {
                let held = || self.held.get(at).map(|held| held.size);
                read.get(at).map_or_else(held, |(size, _)| *size)
            };
            for at in addresses.freed.iter().filter(|_| !is_divided) {
                bytes -= size(&read, at).unwrap_or(0) as i64;
                read.insert(*at, (None, true));
            }
            for block in &addresses.allocated {
                let before = size(&read, &block.address);
                if is_divided && before.is_some() {
                    continue;
                }
                listed += i64::from(before.is_none());
                bytes += block.size as i64 - before.unwrap_or(0) as i64;
                let is_other = read.get(&block.address).is_some_and(|(_, is_other)| *is_other);
                read.insert(block.address, (Some(block.size), is_other));
            }
            // A block just allocated may be missing, and one that was, freed without being read.
            let is_all = made == listed && end >= from;
            if is_all && bytes == delta.live[0].saturating_add(delta.live[1]) {
                (made, listed) = (0, 0);
                if !self.complete(end, read.drain()) {
                    return false;
                }
            }
        }
        true
    }

    /// Takes what a complete reading after `end` deltas has changed.
    fn complete(
        &mut self,
        end: usize,
        read: impl Iterator<Item = (u64, (Option<u64>, bool))>,
    ) -> bool {
        let mut changed = Differences::default();
        for (at, (size, is_other)) in read {
            let before = self.held.get(&at).map(|held| held.size);
            if before == size && !is_other {
                continue;
            }
            if let Some(before) = before {
                changed.gone[pool_of(before)].add(1, before as i64);
            }
            let Some(size) = size else {
                self.held.remove(&at);
                continue;
            };
            changed.new[pool_of(size)].add(1, size as i64);
            self.held.insert(at, HeldBlock { size, since: Some(self.at), until: end });
        }
        self.note_hidden(end, &changed)
    }

    /// Takes the blocks of the snapshot at the end. `false`: they contradict the counters.
    fn take_snapshot(&mut self, blocks: &FxHashMap<u64, ProvenBlock>) -> bool {
        let end = self.deltas.len();
        let is_there = |(at, held): (&u64, &HeldBlock)| {
            blocks.get(at).is_some_and(|(group, _)| group.size == held.size)
        };
        let gone = self.held.iter().filter(|held| !is_there(*held)).map(|(at, _)| (*at, None));
        let is_new = |(at, (group, _)): &(&u64, &ProvenBlock)| {
            self.held.get(at).is_none_or(|held| held.size != group.size)
        };
        let new = blocks.iter().filter(is_new).map(|(at, block)| (*at, Some(block.0.size)));
        let read: FxHashMap<u64, Option<u64>> = gone.chain(new).collect();
        self.complete(end, read.into_iter().map(|(at, size)| (at, (size, false))))
    }

    /// Compares with the counters since the last complete reading.
    fn note_hidden(&mut self, end: usize, changed: &Differences) -> bool {
        let range = std::mem::replace(&mut self.at, end)..end;
        let between = &self.deltas[range.clone()];
        if between.iter().any(|delta| delta.open) {
            let any = Amount { count: 2, bytes: i64::MAX };
            self.hidden.push((range, [any; 2]));
            return true;
        }
        let mut hidden = [Amount::default(); 2];
        for (pool, hidden) in hidden.iter_mut().enumerate() {
            let mut made = Amount::default();
            for delta in between.iter().map(|delta| &delta.pools[pool]) {
                hidden.add(delta.frees, delta.freed_bytes);
                made.add(delta.allocations, delta.allocated_bytes);
            }
            hidden.add(-changed.gone[pool].count, -changed.gone[pool].bytes);
            made.add(-changed.new[pool].count, -changed.new[pool].bytes);
            if [hidden.count, hidden.bytes, made.count, made.bytes].into_iter().any(|n| n < 0) {
                return false;
            }
        }
        if hidden != [Amount::default(); 2] {
            self.hidden.push((range, hidden));
        }
        true
    }
}

/// Who can have made blocks of each size, and after how many deltas.
struct ProvenOrigins<'a> {
    deltas: &'a [ProofDelta],
    hidden: HiddenFrees,
    /// Deltas with one allocation in a pool, by its size; and those with several.
    single: FxHashMap<u64, Vec<usize>>,
    several: Vec<usize>,
    sizes: FxHashMap<u64, SizeMakers>,
}

/// The makers of blocks of one size.
#[derive(Default)]
struct SizeMakers {
    /// After how many deltas each allocated, and since which of these the same maker did.
    made: Vec<(usize, Option<AllocationOrigin>, usize)>,
    /// After so many the address of one may have been used again unseen.
    reused: usize,
}

impl<'a> ProvenOrigins<'a> {
    fn new(deltas: &'a [ProofDelta], hidden: HiddenFrees) -> ProvenOrigins<'a> {
        let mut single: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        let mut several = Vec::new();
        for (number, delta) in deltas.iter().enumerate() {
            if delta.open || delta.pools.iter().any(|pool| pool.allocations > 1) {
                several.push(number);
                continue;
            }
            for pool in delta.pools.iter().filter(|pool| pool.allocations == 1) {
                single.entry(pool.allocated_bytes as u64).or_default().push(number);
            }
        }
        ProvenOrigins { deltas, hidden, single, several, sizes: FxHashMap::default() }
    }

    /// Who is proven to have made a block; `before` is what the last snapshot has there.
    fn origin(
        &mut self,
        size: u64,
        held: &HeldBlock,
        before: Option<&ProvenBlock>,
    ) -> Option<AllocationOrigin> {
        if !self.sizes.contains_key(&size) {
            self.sizes.insert(size, self.makers(size));
        }
        let SizeMakers { made, reused } = self.sizes.get(&size)?;
        let until = held.until.max(*reused);
        let from = made.partition_point(|made| made.0 <= held.since.unwrap_or(0));
        let to = made.partition_point(|made| made.0 <= until);
        let last = made[..to].last().filter(|_| from < to);
        match (before, last) {
            (Some(before), None) => before.1,
            (_, Some((_, maker, since))) if *since <= from => {
                maker.filter(|_| before.is_none_or(|before| before.1 == *maker))
            }
            _ => None,
        }
    }

    fn makers(&self, size: u64) -> SizeMakers {
        let several = self.several.iter().filter(|number| self.deltas[**number].may_allocate(size));
        let mut numbers: Vec<usize> =
            self.single.get(&size).into_iter().flatten().copied().collect();
        numbers.extend(several);
        numbers.sort_unstable();
        let mut made: Vec<(usize, Option<AllocationOrigin>, usize)> = Vec::new();
        for (at, number) in numbers.into_iter().enumerate() {
            let maker = self.deltas[number].maker;
            let since = made.last().filter(|last| last.1 == maker).map_or(at, |last| last.2);
            made.push((number + 1, maker, since));
        }
        let pool = pool_of(size);
        // An address is used again by what is allocated after it was freed.
        let reuses = |range: &Range<usize>| {
            let deltas = self.deltas[range.clone()].iter();
            deltas.skip_while(|of| !of.may_free(size)).any(|of| of.may_allocate(size))
        };
        let is_reused =
            |of: &&(Range<usize>, [Amount; 2])| of.1[pool].may_have(size) && reuses(&of.0);
        let reused = self.hidden.iter().rev().find(is_reused);
        SizeMakers { made, reused: reused.map_or(0, |reused| reused.0.end) }
    }
}

/// The number of the pool that blocks of this size are in.
fn pool_of(size: u64) -> usize {
    usize::from(size > MAX_SMALL_BLOCK)
}

pub(super) fn live_bytes(blocks: &FxHashMap<u64, ProvenBlock>) -> LiveBytes {
    let mut live = LiveBytes::default();
    for (group, _) in blocks.values() {
        live[pool_of(group.size)] += group.size as i64;
    }
    live
}
