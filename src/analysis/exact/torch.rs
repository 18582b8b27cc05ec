//! One device of PyTorch over an exact recording: true block sizes, the peak, and what no event explains.

mod snapshot;

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::books::{BalanceCheck, ByteBalance, CountedTotals, RunningTotals};
use super::extent::{BlockSizes, BlockStatistics, SMALL_POOL, UNIT, rounded};
use super::live_blocks::{BEFORE, BlockOwner, LiveBlocks, NO_SITE, OWNED, TrackedBlock};
use crate::model::{AllocatorCounters, CounterSnapshot, Metric, Nanos, Pool, StackId};

/// The greatest remainder that is not split off a larger block (`should_split`: kSmallSize).
const REMAINDER: u64 = 1 << 20;
/// What happened so shortly before a map may not be in it yet, in nanoseconds.
const UNSETTLED: u64 = 5_000_000;

/// The highest moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TorchPeak {
    pub(crate) time: Nanos,
    /// Bytes allocated, by the allocator's counter where it is known.
    pub(crate) bytes: u64,
    /// `reserved` and `active` then, where known.
    pub(crate) levels: Option<CounterSnapshot>,
}

/// Freed blocks remembered: half a second's of a busy job.
const MAX_RECENTLY_FREED: usize = 1 << 15;

/// A block that has been freed.
#[derive(Debug, Clone, Copy)]
struct FreedBlock {
    address: u64,
    died: Nanos,
    block: TrackedBlock,
}

/// Blocks remembered that are larger than what was asked for.
const MAX_LARGER: usize = 64;

/// A block that was taken to be larger than what was asked for, because the counter grew by more.
#[derive(Debug, Clone, Copy)]
struct EnlargedBlock {
    address: u64,
    block: TrackedBlock,
    /// By how many bytes.
    by: u64,
    /// When it was freed, and by which stack, where that is known.
    freed: Option<(u64, Option<StackId>)>,
}

/// What is known of one device.
#[derive(Debug)]
pub(crate) struct TorchDevice {
    pub(crate) ledger: LiveBlocks,
    pub(crate) peak: Option<TorchPeak>,
    /// The counters at the last event.
    pub(crate) levels: Option<CounterSnapshot>,
    /// Greatest level that events told of, or a `levels.peak` that rose between two of them.
    pub(crate) counted_peak: Option<i64>,
    /// Bytes freed since the last event with levels.
    freed_since: u64,
    /// Freed lately: who held memory at a moment is told some time after it.
    lately: VecDeque<FreedBlock>,
    pub(super) frees_from_snapshots: bool,
    suspects: FxHashSet<u64>,
    /// Blocks of the first map that an event had freed before: the free was under way for long, or
    /// the address was given out again before allocations were seen.
    doubtful: FxHashSet<u64>,
    pub(crate) snapshots: u64,
    /// When the last of them was read; also one of an earlier part of the recording.
    pub(crate) last_snapshot: Option<Nanos>,
    /// Blocks gone without an event, and found without one.
    pub(crate) gone: u64,
    pub(crate) found: u64,
    /// Greatest amount by which known blocks exceeded a map, in bytes.
    pub(crate) excess: u64,
    /// Largest free block at the last map, in bytes.
    pub(crate) largest_free: u64,
    /// Maps that are not one instant's truth, which are not compared with.
    pub(crate) snapshots_degraded: u64,
    /// Whether its allocator began with nothing, and all that it did since is recorded.
    from_zero: bool,
    /// The statistics of the blocks that live now; known where `knows_held`.
    held: BlockStatistics,
    pub(crate) knows_held: bool,
    /// What events told was freed, and how often.
    freed_bytes: i64,
    frees: i64,
    books: BalanceCheck,
    larger: VecDeque<EnlargedBlock>,
    /// Bytes too many that were told of the frees of stacks, which a later event has shown.
    pub(crate) freed_too_much: Vec<(StackId, BlockSizes, u64)>,
    /// Whether a size was set right after it had been told.
    pub(crate) has_corrected: bool,
    /// Whether freed blocks waited for other streams at an event.
    pub(crate) had_pending: bool,
    /// Greatest reserved bytes that an event told of, and when.
    pub(crate) top_reserved: Option<(Nanos, i64)>,
    /// Whether there are sizes that nothing has confirmed.
    pub(crate) has_unconfirmed: bool,
}

impl TorchDevice {
    pub(crate) fn new(min_lifetime: u64, deaths_from_maps: bool) -> TorchDevice {
        TorchDevice {
            ledger: LiveBlocks::new(min_lifetime),
            peak: None,
            levels: None,
            counted_peak: None,
            freed_since: 0,
            lately: VecDeque::new(),
            frees_from_snapshots: deaths_from_maps,
            suspects: FxHashSet::default(),
            doubtful: FxHashSet::default(),
            snapshots: 0,
            from_zero: false,
            held: BlockStatistics::default(),
            knows_held: false,
            freed_bytes: 0,
            frees: 0,
            books: BalanceCheck::default(),
            larger: VecDeque::new(),
            freed_too_much: Vec::new(),
            has_corrected: false,
            had_pending: false,
            top_reserved: None,
            has_unconfirmed: false,
            last_snapshot: None,
            gone: 0,
            found: 0,
            excess: 0,
            largest_free: 0,
            snapshots_degraded: 0,
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        let suspects = self.suspects.len() * 16;
        self.ledger.memory() + (self.lately.len() * size_of::<FreedBlock>() + suspects) as u64
    }

    /// One whose allocator has done nothing yet, and of which every event is recorded.
    pub(crate) fn from_zero(min_lifetime: u64, deaths_from_maps: bool) -> TorchDevice {
        TorchDevice {
            levels: Some(CounterSnapshot::default()),
            // Nothing is older than the recording.
            last_snapshot: Some(Nanos(0)),
            from_zero: true,
            knows_held: !deaths_from_maps,
            books: BalanceCheck::from_zero(),
            ..TorchDevice::new(min_lifetime, deaths_from_maps)
        }
    }

    /// A block was allocated, which takes `block` bytes where that was read; returns what it takes.
    pub(crate) fn allocate(
        &mut self,
        time: Nanos,
        address: u64,
        (requested, block): (u64, Option<u64>),
        levels: Option<CounterSnapshot>,
        owner: BlockOwner,
    ) -> BlockSizes {
        let least = rounded(requested);
        let size = match block {
            Some(block) => block,
            None => self.size_by_levels(least, levels),
        };
        // Another thread may have allocated or freed between the allocation and the event: then the
        // level of this moment is below the peak that was just reached.
        let rose_to = levels.zip(self.levels).filter(|(now, before)| now.peak > before.peak);
        let rose_to = rose_to.map_or(0, |(now, _)| now.peak.max(0) as u64);
        if let Some(now) = levels {
            if rose_to > 0 {
                self.counted_peak = self.counted_peak.max(Some(now.peak));
            }
            self.counted_peak = self.counted_peak.max(Some(now.allocated));
            self.had_pending |= now.active != now.allocated;
            if self.top_reserved.is_none_or(|(_, top)| now.reserved > top) {
                self.top_reserved = Some((time, now.reserved));
            }
        }
        // What is freed from now on is freed after these levels.
        self.levels = levels;
        self.freed_since = 0;
        let extent = BlockSizes::new(size, requested);
        let replaced = self.ledger.allocate(address, extent, owner, time.0);
        // What a map had at this address was only ahead of its event.
        self.suspects.remove(&address);
        self.held.add_block(extent);
        if let Some(replaced) = replaced {
            self.held.subtract_block(replaced.extent());
            // A block found in a map may only have been ahead of its event.
            self.gone += u64::from(replaced.allocated_at > 0 && !self.frees_from_snapshots);
            let age = time.0.saturating_sub(self.last_snapshot.unwrap_or_default().0);
            let is_early = self.snapshots == 1 && age < UNSETTLED;
            let is_doubtful = self.doubtful.remove(&address);
            if replaced.account as usize == BEFORE && (is_early || is_doubtful) {
                self.ledger.was_not_before(replaced);
            }
        }
        if size > least
            && block.is_none()
            && let Some(&block) = self.ledger.live.get(&address)
        {
            if self.larger.len() == MAX_LARGER {
                self.larger.pop_front();
            }
            self.larger.push_back(EnlargedBlock { address, block, by: size - least, freed: None });
        }
        // Sums that meet the counter began where it did.
        let counted = levels.map(|levels| levels.allocated);
        let held = self.held.get(Metric::AllocatedBytes, Pool::All);
        self.knows_held |= !self.frees_from_snapshots && counted == Some(held);
        if !self.frees_from_snapshots {
            let bytes = levels.map_or(self.ledger.total, |l| l.allocated.max(0) as u64);
            let bytes = bytes.max(rose_to);
            self.record_peak(TorchPeak { time, bytes, levels });
        }
        extent
    }

    /// What a block takes by what the counter grew by since the event before. That is of all
    /// threads: it says so only while no other one allocates.
    fn size_by_levels(&mut self, least: u64, levels: Option<CounterSnapshot>) -> u64 {
        let (Some(before), Some(now)) = (self.levels, levels) else { return least };
        // Numbers of a forged trace wrap, and then fit nothing.
        let grown =
            now.allocated.wrapping_sub(before.allocated).wrapping_add(self.freed_since as i64);
        // `roundup_power2_divisions` at most doubles what was asked for.
        let remainder = if least > SMALL_POOL { REMAINDER } else { 0 };
        let most = least.saturating_mul(2).saturating_add(remainder);
        let fits = grown % UNIT as i64 == 0 && grown >= least as i64;
        if grown < least as i64 {
            self.set_right((least as i64).wrapping_sub(grown) as u64);
        }
        if fits && grown as u64 <= most { grown as u64 } else { least }
    }

    /// The counter has grown by `missing` bytes less than an allocation takes: what it grew by before an earlier event
    /// was not all that block's. Another thread was in the midst of an allocation or a free then.
    fn set_right(&mut self, missing: u64) {
        if let Some(at) = self.larger.iter().rposition(|larger| larger.by == missing) {
            self.shrink(at);
        }
    }

    /// The sums show that a block was taken for larger than it was: which one, if only one can have been.
    fn find_too_large(&self, balance: ByteBalance) -> Option<usize> {
        let is_it = |larger: &EnlargedBlock| {
            let by = -(larger.by as i64);
            let freed = if larger.freed.is_some() { by } else { 0 };
            (balance.allocated, balance.freed) == (by, freed)
        };
        let mut found = (0..self.larger.len()).filter(|at| self.larger.get(*at).is_some_and(is_it));
        found.next().filter(|_| found.next().is_none())
    }

    /// Sets right the size of that block.
    fn shrink(&mut self, at: usize) {
        let Some(EnlargedBlock { address, block, by, freed }) = self.larger.remove(at) else {
            return;
        };
        self.has_corrected = true;
        match freed {
            None => {
                let is_it = |live: &TrackedBlock| {
                    (live.allocated_at, live.size) == (block.allocated_at, block.size)
                };
                if !self.ledger.live.get(&address).is_some_and(is_it) {
                    return; // A map has said better.
                }
                self.ledger.resize(address, block.size - by);
                self.held.subtract(&BlockStatistics::new(block.extent()));
                self.held.add(&BlockStatistics::new(BlockSizes {
                    size: block.size - by,
                    ..block.extent()
                }));
            }
            Some((died, by_stack)) => {
                self.ledger.shrink_freed(block, died, by);
                self.freed_bytes -= by as i64;
                if let Some(stack) = by_stack {
                    self.freed_too_much.push((stack, block.extent(), by));
                }
            }
        }
    }

    /// Counters read by themselves: where the first event goes on from, and what the sums are compared with.
    pub(crate) fn read(&mut self, counters: &AllocatorCounters, levels: CounterSnapshot) {
        if self.levels.is_none() && !self.from_zero {
            // What was freed before is no part of these any more.
            self.levels = Some(levels);
            self.freed_since = 0;
        }
        self.books.compare(CountedTotals::of(counters), self.seen());
        let off = self.books.balance().filter(|balance| !balance.is_even());
        if let Some(at) = off.and_then(|balance| self.find_too_large(balance)) {
            self.shrink(at);
            self.books.compare(CountedTotals::of(counters), self.seen());
        }
        if self.books.balance().is_some_and(|balance| balance.is_even()) {
            self.has_unconfirmed = false;
        }
        if !self.knows_held && !self.frees_from_snapshots && !self.from_zero {
            for metric in [Metric::Allocation, Metric::AllocatedBytes, Metric::RequestedBytes] {
                for pool in Pool::ALL {
                    if let Some(index) = BlockStatistics::index(metric, pool) {
                        self.held.0[index] = counters.stat(metric, pool).current;
                    }
                }
            }
        }
    }

    /// What the events come to, over all sites.
    pub(crate) fn seen(&self) -> RunningTotals {
        let mut allocated = BlockStatistics::default();
        let accounts = self.ledger.accounts().iter().skip(NO_SITE);
        accounts.for_each(|account| allocated.add(&account.statistics));
        RunningTotals {
            allocations: allocated.get(Metric::Allocation, Pool::All),
            frees: (!self.frees_from_snapshots).then_some(self.frees),
            requested: allocated.get(Metric::RequestedBytes, Pool::All),
            allocated_bytes: allocated.get(Metric::AllocatedBytes, Pool::All),
            freed_bytes: self.freed_bytes,
        }
    }

    /// Bytes that live blocks take in the small and in the large pool.
    pub(crate) fn held_by_pool(&self) -> [i64; 2] {
        [Pool::Small, Pool::Large].map(|pool| self.held.get(Metric::AllocatedBytes, pool))
    }

    /// What comparing the bytes with the allocator's counters came to.
    pub(crate) fn balance(&self) -> Option<ByteBalance> {
        self.books.balance()
    }

    /// The statistics of the blocks that live now, where they are known.
    pub(crate) fn held(&self) -> Option<&BlockStatistics> {
        self.knows_held.then_some(&self.held)
    }

    /// A block that no event or map has told of is freed.
    pub(crate) fn lose_track(&mut self) {
        self.knows_held = false;
    }

    /// A block is being freed, by a stack if that is told.
    pub(crate) fn free(
        &mut self,
        time: Nanos,
        address: u64,
        by_stack: Option<StackId>,
    ) -> Option<TrackedBlock> {
        let freed = self.ledger.free(address, time.0)?;
        self.doubtful.remove(&address);
        self.freed_since += freed.size;
        self.freed_bytes += freed.size as i64;
        self.frees += 1;
        self.held.subtract_block(freed.extent());
        let is_it = |larger: &&mut EnlargedBlock| {
            (larger.address, larger.block.allocated_at, larger.freed)
                == (address, freed.allocated_at, None)
        };
        if let Some(larger) = self.larger.iter_mut().rev().find(is_it) {
            larger.freed = Some((time.0, by_stack));
        }
        if self.lately.len() == MAX_RECENTLY_FREED {
            self.lately.pop_front();
        }
        self.lately.push_back(FreedBlock { address, died: time, block: freed });
        Some(freed)
    }

    /// Blocks freed later than `time`, as far back as they are remembered, with when each was freed.
    pub(super) fn freed_after(&self, time: Nanos) -> Vec<(u64, Nanos, TrackedBlock)> {
        let freed = self.lately.iter().filter(|freed| freed.died > time);
        freed.map(|freed| (freed.address, freed.died, freed.block)).collect()
    }

    /// The accounts of the blocks that lived at a moment not long ago, by address: of those that were freed since, and of
    /// all that live.
    pub(crate) fn accounts_at(&self, time: Nanos) -> FxHashMap<u64, usize> {
        let freed = self.lately.iter().filter(|freed| freed.died > time);
        let freed = freed.map(|freed| (freed.address, freed.block));
        let live = self.ledger.live.iter().map(|(address, block)| (*address, *block));
        let born = live.chain(freed).filter(|(_, block)| block.allocated_at <= time.0);
        let account = |block: TrackedBlock| match block.account as usize {
            OWNED.. => BEFORE,
            account => account,
        };
        born.map(|(address, block)| (address, account(block))).collect()
    }

    /// `allocated_bytes` by the last counters and what was freed since.
    pub(crate) fn allocated_now(&self) -> Option<i64> {
        Some(self.levels?.allocated - self.freed_since as i64)
    }

    /// Bytes freed since the counters were last known.
    pub(crate) fn freed_since(&self) -> u64 {
        self.freed_since
    }

    /// Goes on from where an earlier part of the recording ended.
    pub(crate) fn restore(
        &mut self,
        mapped: Option<Nanos>,
        levels: Option<CounterSnapshot>,
        freed_since: u64,
    ) {
        self.last_snapshot = mapped;
        if levels.is_some() {
            self.levels = levels;
            self.freed_since = freed_since;
        }
    }

    pub(super) fn record_peak(&mut self, peak: TorchPeak) {
        // A job reaches the same height at each step: the moment of which more stacks are known tells more.
        let is_higher = self.peak.is_none_or(|before| {
            peak.bytes > before.bytes
                || (peak.bytes == before.bytes && self.ledger.known() > self.ledger.known_at_peak)
        });
        if is_higher {
            self.peak = Some(peak);
            self.ledger.record_peak(peak.time.0);
        }
    }

    /// By how many bytes the blocks known exceeded the counter at the height.
    pub(crate) fn excess_at_peak(&self) -> u64 {
        self.peak.map_or(0, |peak| self.ledger.held.saturating_sub(peak.bytes))
    }

    /// Bytes of blocks too young to be sure of.
    fn unsettled(&self, settled: u64) -> u64 {
        self.ledger.live.values().filter(|b| b.allocated_at >= settled).map(|b| b.size).sum()
    }
}
