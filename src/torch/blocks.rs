//! One device's snapshot: copy, walk, self-check.

use std::time::{Duration, Instant};

use super::check::counters_are_whole;
use super::containers::FlatTable;
use super::discovery;
use super::error::{AllocatorError, reading};
use super::layout::{BlockLayout, CounterLayout, PoolsLayout, PrivateLayout, STATS};
use super::private_pools;
use super::walk::{WalkError, WalkInput, WalkScratch, WalkedBlocks, walk};
use super::working_set::WorkingSet;
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, CudaIndex, Metric, Nanos, Pool, SnapshotConsistency,
};
use crate::target::{Addr, AddressRange, Memory, MemoryError, PAGE, processor_time};

const MIN_ATTEMPTS: u32 = 4;
const QUICK_ATTEMPTS: u32 = 32;
const MAX_ATTEMPTS: u32 = 4096;
/// The deepest structure is a tree of at most 2^32 nodes.
const MAX_EXTENSIONS: u32 = 64;
/// Copies that took longer than their processor time by this much are repeated, at most so often.
const MAX_LOST: Duration = Duration::from_millis(1);
const MAX_LATE: u32 = 16;
/// Failed self-checks until the layout counts as wrong.
const MAX_INCONSISTENT: u32 = MIN_ATTEMPTS;

#[derive(Debug, Default)]
pub(super) struct BlocksLayout {
    pools: Option<PoolsLayout>,
    block: Option<BlockLayout>,
    private: Option<PrivateLayout>,
}

impl BlocksLayout {
    pub(super) fn end_of_active(&self) -> Option<usize> {
        self.pools.as_ref().map(|pools| pools.active + FlatTable::SIZE)
    }

    pub(super) fn block(&self) -> Option<BlockLayout> {
        self.block
    }
}

#[derive(Debug)]
pub(super) struct SnapshotReader {
    index: CudaIndex,
    device: Addr,
    set: WorkingSet,
    scratch: WalkScratch,
    /// Tables that are not those of private pools: offset, entries.
    searched: Vec<(usize, u64)>,
}

enum AttemptError {
    Torn,
    Inconsistent(String),
    /// Another attempt would fail too.
    Failed(AllocatorError),
}

pub(super) struct ReadAttempts<'a> {
    /// Without `before_each`.
    pub(super) timeout: Duration,
    pub(super) before_each: &'a mut dyn FnMut(),
    pub(super) now: &'a dyn Fn() -> Nanos,
}

/// What an attempt found, and when the allocator was so.
struct Found {
    blocks: WalkedBlocks,
    time: Nanos,
    /// The thread lost its processor during the copy: the time may be much later.
    is_late: bool,
}

#[derive(Clone, Copy)]
struct AttemptContext<'a> {
    memory: &'a dyn Memory,
    counters: &'a CounterLayout,
    now: &'a dyn Fn() -> Nanos,
}

impl SnapshotReader {
    pub(super) fn new(index: CudaIndex, device: Addr) -> SnapshotReader {
        SnapshotReader {
            index,
            device,
            set: WorkingSet::default(),
            scratch: WalkScratch::default(),
            searched: Vec::new(),
        }
    }

    pub(super) fn device(&self) -> Addr {
        self.device
    }

    /// Numbers of the pages that it needs.
    pub(super) fn pages(&self) -> Vec<u64> {
        let mut pages = self.set.pages();
        pages.push(self.device.0 / PAGE as u64);
        pages
    }

    /// Device address and `Block` address.
    pub(super) fn places(&self) -> Vec<(u64, Addr)> {
        self.scratch.places().collect()
    }

    pub(super) fn read(
        &mut self,
        memory: &dyn Memory,
        counters: &CounterLayout,
        layout: &mut BlocksLayout,
        attempts: ReadAttempts<'_>,
        version: &str,
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        let read = self.read_repeatedly(memory, counters, layout, attempts, version);
        self.set.release();
        read
    }

    fn read_repeatedly(
        &mut self,
        memory: &dyn Memory,
        counters: &CounterLayout,
        layout: &mut BlocksLayout,
        attempts: ReadAttempts<'_>,
        version: &str,
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        let (place, device) = (AttemptContext { memory, counters, now: attempts.now }, self.index);
        let mut spent = Duration::ZERO;
        let (mut torn, mut broken, mut late, mut why) = (0, 0, 0, String::new());
        let snapshot = |retries, consistency, found: Found| AllocatorSnapshot {
            time: found.time,
            device,
            retries,
            consistency,
            segments: found.blocks.segments,
        };
        while broken < MAX_INCONSISTENT && torn < MAX_ATTEMPTS {
            if torn + broken >= MIN_ATTEMPTS && spent > attempts.timeout {
                break;
            }
            (attempts.before_each)();
            let began = Instant::now();
            let attempt = self.attempt(place, layout);
            spent += began.elapsed();
            match attempt {
                Ok(found) if found.is_late && late < MAX_LATE => late += 1,
                Ok(found) => {
                    return Ok(snapshot(torn + broken, SnapshotConsistency::Consistent, found));
                }
                Err(AttemptError::Failed(error)) => return Err(error),
                Err(AttemptError::Torn) => {
                    torn += 1;
                    if torn % QUICK_ATTEMPTS == 0 {
                        // A thread may have been interrupted inside the allocator.
                        std::thread::yield_now();
                    }
                }
                // A mixed copy proves no wrong layout.
                Err(AttemptError::Inconsistent(_)) if self.set.is_volatile() => torn += 1,
                Err(AttemptError::Inconsistent(what)) => {
                    broken += 1;
                    why = what;
                    if broken == MAX_INCONSISTENT / 2 {
                        self.set.clear();
                    }
                }
            }
        }
        if broken >= MAX_INCONSISTENT {
            return Err(self.unknown_layout(memory, version, why));
        }
        let attempts = torn + broken;
        let (found, degraded) = self
            .torn_walk(place, layout)
            .ok_or(AllocatorError::Torn { what: "the list of blocks", attempts })?;
        Ok(snapshot(attempts, degraded, found))
    }

    fn unknown_layout(
        &mut self,
        memory: &dyn Memory,
        version: &str,
        what: String,
    ) -> AllocatorError {
        self.set.clear();
        // The process may have ended.
        match memory.read(self.device, &mut [0; 8]).map_err(reading("the allocator", self.device)) {
            Ok(()) => AllocatorError::UnknownLayout { version: version.to_owned(), what },
            Err(error) => error,
        }
    }

    fn attempt(
        &mut self,
        place: AttemptContext<'_>,
        layout: &mut BlocksLayout,
    ) -> Result<Found, AttemptError> {
        let AttemptContext { memory, counters: at, now } = place;
        let SnapshotReader { index, device, set, scratch: trail, searched } = self;
        let (index, device) = (*index, *device);
        let pools = known_pools(&mut layout.pools, place, device)?;
        let (head, tail) = spans(device, at, pools);
        let (began, processor) = (now(), processor_time());
        let same = set.copy(memory, head, tail).map_err(|error| match error {
            MemoryError::Fault { span, .. } if span.addr != device => AttemptError::Torn,
            source => {
                let what = "the list of blocks";
                AttemptError::Failed(AllocatorError::Memory { what, at: device, source })
            }
        })?;
        let Some(counters) = quiescent_counters(set, at, head, tail).filter(|_| same) else {
            set.note_change();
            return Err(AttemptError::Torn);
        };
        // Nothing changes during the walk: further pieces are copied only if that is still so.
        let time = now();
        // Never late without a clock: a stopped job's snapshot needs no time.
        let took = Duration::from_nanos(time.0.saturating_sub(began.0));
        let is_late = took > processor_time().saturating_sub(processor) + MAX_LOST;
        let found = |blocks| Found { blocks, time, is_late };

        let is_empty = counters.stat(Metric::ReservedBytes, Pool::All).current == 0;
        if layout.block.is_none() && is_empty {
            return Ok(found(WalkedBlocks::default()));
        }
        let block = known_block(&mut layout.block, place, (index, device), pools)?;
        let object = set.head(head.len).to_vec();
        if layout.private.is_none() {
            layout.private = private_pools::find(memory, &object, pools, searched);
        }
        let ground = WalkInput {
            index: index.0,
            device,
            object: &object,
            pools,
            block,
            private: layout.private,
        };

        extending_walk(ground, set, trail, (head, tail), place, &counters).map(found)
    }

    fn torn_walk(
        &mut self,
        place: AttemptContext<'_>,
        layout: &BlocksLayout,
    ) -> Option<(Found, SnapshotConsistency)> {
        let AttemptContext { memory, counters: at, now } = place;
        let SnapshotReader { index, device, set, scratch: trail, .. } = self;
        let (index, device) = (*index, *device);
        let (pools, block) = (layout.pools.as_ref()?, layout.block?);
        let (head, tail) = spans(device, at, pools);
        for _ in 0..MIN_ATTEMPTS {
            if set.copy(memory, head, tail).is_err() {
                continue;
            }
            let object = set.head(head.len).to_vec();
            let ground = WalkInput {
                index: index.0,
                device,
                object: &object,
                pools,
                block,
                private: layout.private,
            };
            for _ in 0..MAX_EXTENSIONS {
                match walk(ground, set, trail) {
                    Ok(blocks) => {
                        let allocated = at.decode(set.tail(tail.len))?.allocated();
                        let degraded = SnapshotConsistency::Degraded {
                            allocated_in_blocks: blocks.sums.allocated(),
                            allocated_counter: u64::try_from(allocated).unwrap_or(0),
                        };
                        return Some((Found { blocks, time: now(), is_late: false }, degraded));
                    }
                    Err(WalkError::Incomplete)
                        if set.lacks() && set.extend(memory, tail).is_ok() => {}
                    Err(_) => break,
                }
            }
        }
        None
    }
}

/// Searches for them if unknown.
fn known_pools<'l>(
    layout: &'l mut Option<PoolsLayout>,
    place: AttemptContext<'_>,
    device: Addr,
) -> Result<&'l PoolsLayout, AttemptError> {
    let pools = match layout.take() {
        Some(pools) => pools,
        None => {
            let before = unlocked_totals(place, device);
            discovery::pools(place.memory, device, place.counters)
                .map_err(|why| not_found(place, device, before, why))?
        }
    };
    Ok(layout.insert(pools))
}

/// The layout of blocks, searched for if it is not known yet.
fn known_block(
    layout: &mut Option<BlockLayout>,
    place: AttemptContext<'_>,
    (index, device): (CudaIndex, Addr),
    pools: &PoolsLayout,
) -> Result<BlockLayout, AttemptError> {
    if let Some(known) = *layout {
        return Ok(known);
    }
    let before = unlocked_totals(place, device);
    let none = || "memory is reserved, but there are no blocks".to_owned();
    let block = discovery::block_layout(place.memory, device, index.0, pools)
        .and_then(|found| found.ok_or_else(none))
        .map_err(|why| not_found(place, device, before, why))?;
    Ok(*layout.insert(block))
}

/// Walks the copy, and copies what it lacks until the walk is complete.
fn extending_walk(
    ground: WalkInput<'_>,
    set: &mut WorkingSet,
    trail: &mut WalkScratch,
    (head, tail): (AddressRange, AddressRange),
    place: AttemptContext<'_>,
    counters: &AllocatorCounters,
) -> Result<WalkedBlocks, AttemptError> {
    for _ in 0..MAX_EXTENSIONS {
        match walk(ground, set, trail) {
            Ok(found) => {
                return match found.sums.difference(counters) {
                    None => {
                        set.forget_unused();
                        Ok(found)
                    }
                    Some(why) => Err(AttemptError::Inconsistent(why)),
                };
            }
            Err(WalkError::Incomplete) if set.lacks() => {
                let extended = set.extend(place.memory, tail);
                let is_quiet = quiescent_counters(set, place.counters, head, tail).is_some();
                if extended.is_err() || !is_quiet {
                    set.note_change();
                    return Err(AttemptError::Torn);
                }
            }
            Err(WalkError::Incomplete) => break,
            Err(WalkError::Inconsistent(why)) => {
                return Err(AttemptError::Inconsistent(why.to_owned()));
            }
        }
    }
    Err(AttemptError::Inconsistent("there is more to follow than any allocator has".to_owned()))
}

fn spans(
    device: Addr,
    counters: &CounterLayout,
    pools: &PoolsLayout,
) -> (AddressRange, AddressRange) {
    let head = AddressRange { addr: device, len: pools.end.max(counters.end) };
    (head, AddressRange { addr: device, len: counters.end })
}

/// `None` while a thread is inside the allocator, empty if the device is gone.
fn unlocked_totals(place: AttemptContext<'_>, device: Addr) -> Option<Vec<u8>> {
    let mut object = vec![0; place.counters.end];
    if place.memory.read(device, &mut object).is_err() {
        return Some(Vec::new());
    }
    let locked = place.counters.is_locked(&object) == Some(true);
    (!locked).then(|| object.split_off(STATS))
}

/// Only if the target did not change meanwhile.
fn not_found(
    place: AttemptContext<'_>,
    device: Addr,
    before: Option<Vec<u8>>,
    why: String,
) -> AttemptError {
    if before.is_some() && before == unlocked_totals(place, device) {
        AttemptError::Inconsistent(why)
    } else {
        AttemptError::Torn
    }
}

/// The counters, if no thread was inside the allocator during the copy. A change either holds the
/// mutex in the copied head or tail, or changes the totals.
fn quiescent_counters(
    set: &WorkingSet,
    layout: &CounterLayout,
    head: AddressRange,
    tail: AddressRange,
) -> Option<AllocatorCounters> {
    let (before, after) = (set.head(head.len).get(..layout.end)?, set.tail(tail.len));
    let locked = |object| layout.is_locked(object) == Some(true);
    if before.get(STATS..) != after.get(STATS..) || locked(before) || locked(after) {
        return None;
    }
    layout.decode(before).filter(counters_are_whole)
}
