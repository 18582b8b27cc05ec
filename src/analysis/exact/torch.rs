//! One PyTorch device in an exact recording.

mod snapshot;

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::books::{BalanceCheck, ByteBalance, CountedTotals, RunningTotals};
use super::extent::{BlockSizes, BlockStatistics, SMALL_POOL};
use super::live_blocks::{BEFORE, BlockOwner, LiveBlocks, NO_EVENT, NO_SITE, OWNED, TrackedBlock};
use crate::model::{
    AllocatorCounters, CounterSnapshot, MIN_BLOCK, Metric, Nanos, Pool, StackId, block_size,
};

/// Remainders up to this size are not split off large blocks (`should_split`: kSmallSize).
const REMAINDER: u64 = 1 << 20;
/// In nanoseconds: a snapshot may lack events this recent.
const UNSETTLED: u64 = 5_000_000;
/// In nanoseconds: on a busy machine, a thread may wait this long between a change and its event.
const LATE_EVENT: u64 = 100_000_000;
/// In nanoseconds: so long, on a machine with too few processors, a thread may wait inside a free
/// that began before the probes were placed.
const UNDER_WAY: u64 = 3_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TorchPeak {
    pub(crate) time: Nanos,
    pub(crate) bytes: u64,
    pub(crate) levels: Option<CounterSnapshot>,
    /// Of the block whose allocation reached it, if one did.
    pub(crate) account: Option<usize>,
}

/// Half a second of a busy job.
const MAX_RECENTLY_FREED: usize = 1 << 15;

#[derive(Debug, Clone, Copy)]
struct FreedBlock {
    address: u64,
    died: Nanos,
    block: TrackedBlock,
}

const MAX_LARGER: usize = 64;

/// A block larger than its request, by the growth of the counter.
#[derive(Debug, Clone, Copy)]
struct EnlargedBlock {
    address: u64,
    block: TrackedBlock,
    by: u64,
    /// Time and stack, if known.
    freed: Option<(u64, Option<StackId>)>,
}

#[derive(Debug)]
pub(crate) struct TorchDevice {
    pub(crate) ledger: LiveBlocks,
    pub(crate) peak: Option<TorchPeak>,
    pub(crate) levels: Option<CounterSnapshot>,
    /// Highest level in events; also a `levels.peak` that rose between two.
    pub(crate) counted_peak: Option<i64>,
    freed_since: u64,
    /// Owners arrive after their snapshot.
    recently_freed: VecDeque<FreedBlock>,
    pub(super) frees_from_snapshots: bool,
    suspects: FxHashSet<u64>,
    /// Blocks of the first snapshot with an earlier free: it took long, or the address was reused.
    doubtful: FxHashSet<u64>,
    pub(crate) snapshots: u64,
    /// Also in an earlier part of the recording.
    pub(crate) last_snapshot: Option<Nanos>,
    first_snapshot: Option<Nanos>,
    /// Blocks freed, and allocated, without an event.
    pub(crate) gone: u64,
    pub(crate) found: u64,
    /// Greatest excess of known blocks over a snapshot, in bytes.
    pub(crate) excess: u64,
    pub(crate) largest_free: u64,
    pub(crate) snapshots_degraded: u64,
    /// All events are recorded.
    from_zero: bool,
    /// Of the live blocks; valid if `knows_held`.
    held: BlockStatistics,
    pub(crate) knows_held: bool,
    freed_bytes: i64,
    frees: i64,
    books: BalanceCheck,
    larger: VecDeque<EnlargedBlock>,
    /// By stack: bytes that its frees counted too many.
    pub(crate) freed_corrections: Vec<(StackId, BlockSizes, u64)>,
    pub(crate) has_corrected: bool,
    /// Freed blocks waited for other streams.
    pub(crate) had_pending: bool,
    pub(crate) greatest_reserved: Option<(Nanos, i64)>,
    pub(crate) has_unconfirmed: bool,
}

impl TorchDevice {
    pub(crate) fn new(min_lifetime: u64, frees_from_snapshots: bool) -> TorchDevice {
        TorchDevice {
            ledger: LiveBlocks::new(min_lifetime),
            peak: None,
            levels: None,
            counted_peak: None,
            freed_since: 0,
            recently_freed: VecDeque::new(),
            frees_from_snapshots,
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
            freed_corrections: Vec::new(),
            has_corrected: false,
            had_pending: false,
            greatest_reserved: None,
            has_unconfirmed: false,
            last_snapshot: None,
            first_snapshot: None,
            gone: 0,
            found: 0,
            excess: 0,
            largest_free: 0,
            snapshots_degraded: 0,
        }
    }

    pub(crate) fn memory(&self) -> u64 {
        let suspects = self.suspects.len() * 16;
        self.ledger.memory()
            + (self.recently_freed.len() * size_of::<FreedBlock>() + suspects) as u64
    }

    /// The allocator begins empty, and every event is recorded.
    pub(crate) fn from_zero(min_lifetime: u64, frees_from_snapshots: bool) -> TorchDevice {
        TorchDevice {
            levels: Some(CounterSnapshot::default()),
            // Nothing is older than the recording.
            last_snapshot: Some(Nanos(0)),
            from_zero: true,
            knows_held: !frees_from_snapshots,
            books: BalanceCheck::from_zero(),
            ..TorchDevice::new(min_lifetime, frees_from_snapshots)
        }
    }

    /// Returns the size: `block` where it was read, else by the counter.
    pub(crate) fn allocate(
        &mut self,
        time: Nanos,
        address: u64,
        (requested, block): (u64, Option<u64>),
        levels: Option<CounterSnapshot>,
        owner: BlockOwner,
    ) -> BlockSizes {
        let least = block_size(requested);
        let size = match block {
            Some(block) => block,
            None => self.size_by_levels(least, levels),
        };
        let rose_to = self.take_levels(time, levels);
        let extent = BlockSizes::new(size, requested);
        let replaced = self.ledger.allocate(address, extent, owner, time.0);
        // The snapshot had shown it before its event.
        self.suspects.remove(&address);
        self.held.add_block(extent);
        if let Some(replaced) = replaced {
            self.on_replaced(time, address, replaced);
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
        // Once the sums equal the counter, they are complete.
        let counted = levels.map(|levels| levels.allocated);
        let held = self.held.get(Metric::AllocatedBytes, Pool::All);
        self.knows_held |= !self.frees_from_snapshots && counted == Some(held);
        if !self.frees_from_snapshots {
            let bytes = levels.map_or(self.ledger.total, |l| l.allocated.max(0) as u64);
            // Another thread's allocation reached a higher level.
            let account = (rose_to <= bytes).then_some(owner.account);
            self.record_peak(TorchPeak { time, bytes: bytes.max(rose_to), levels, account });
        }
        extent
    }

    /// Returns the peak just reached, or 0. Another thread may change the level before the event:
    /// it is then below that peak.
    fn take_levels(&mut self, time: Nanos, levels: Option<CounterSnapshot>) -> u64 {
        let rose_to = levels.zip(self.levels).filter(|(now, before)| now.peak > before.peak);
        let rose_to = rose_to.map_or(0, |(now, _)| now.peak.max(0) as u64);
        if let Some(now) = levels {
            if rose_to > 0 {
                self.counted_peak = self.counted_peak.max(Some(now.peak));
            }
            self.counted_peak = self.counted_peak.max(Some(now.allocated));
            self.had_pending |= now.active != now.allocated;
            if self.greatest_reserved.is_none_or(|(_, top)| now.reserved > top) {
                self.greatest_reserved = Some((time, now.reserved));
            }
        }
        self.levels = levels;
        self.freed_since = 0;
        rose_to
    }

    /// A new block took the address of one that was not seen freed.
    fn on_replaced(&mut self, time: Nanos, address: u64, replaced: TrackedBlock) {
        self.held.subtract_block(replaced.extent());
        // A block of a snapshot may only lack its event so far.
        self.gone += u64::from(replaced.allocated_at > 0 && !self.frees_from_snapshots);
        let age = time.0.saturating_sub(self.last_snapshot.unwrap_or_default().0);
        // A free that was in progress at one snapshot, an allocation at the next.
        let was_late = replaced.account as usize == NO_EVENT && age < LATE_EVENT;
        // A keyframe's block was not counted in this part of the recording.
        self.found = self.found.saturating_sub(u64::from(was_late));
        let is_early = self.snapshots == 1 && age < UNSETTLED;
        let is_doubtful = self.doubtful.remove(&address);
        if replaced.account as usize == BEFORE && (is_early || is_doubtful) {
            self.ledger.remove_from_peak(replaced);
        }
    }

    /// The counter grows for all threads, so the growth must fit one allocation.
    fn size_by_levels(&mut self, least: u64, levels: Option<CounterSnapshot>) -> u64 {
        let (Some(before), Some(now)) = (self.levels, levels) else { return least };
        // Forged numbers wrap, and then fit nothing.
        let grown =
            now.allocated.wrapping_sub(before.allocated).wrapping_add(self.freed_since as i64);
        // `roundup_power2_divisions` at most doubles the request.
        let remainder = if least > SMALL_POOL { REMAINDER } else { 0 };
        let most = least.saturating_mul(2).saturating_add(remainder);
        let fits = grown % MIN_BLOCK as i64 == 0 && grown >= least as i64;
        if grown < least as i64 {
            self.correct_earlier((least as i64).wrapping_sub(grown) as u64);
        }
        if fits && grown as u64 <= most { grown as u64 } else { least }
    }

    /// `missing`: bytes that an earlier block wrongly got from another thread's allocation or free.
    fn correct_earlier(&mut self, missing: u64) {
        if let Some(at) = self.larger.iter().rposition(|larger| larger.by == missing) {
            self.shrink(at);
        }
    }

    /// The only block whose size explains the imbalance.
    fn find_too_large(&self, balance: ByteBalance) -> Option<usize> {
        let is_it = |larger: &EnlargedBlock| {
            let by = -(larger.by as i64);
            let freed = if larger.freed.is_some() { by } else { 0 };
            (balance.allocated, balance.freed) == (by, freed)
        };
        let mut found = (0..self.larger.len()).filter(|at| self.larger.get(*at).is_some_and(is_it));
        found.next().filter(|_| found.next().is_none())
    }

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
                    return; // A snapshot has corrected it.
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
                    self.freed_corrections.push((stack, block.extent(), by));
                }
            }
        }
    }

    /// Counters outside an event start the levels, and check the sums.
    pub(crate) fn read(&mut self, counters: &AllocatorCounters, levels: CounterSnapshot) {
        if self.levels.is_none() && !self.from_zero {
            self.levels = Some(levels);
            self.freed_since = 0;
        }
        self.books.compare(CountedTotals::of(counters), self.seen());
        let off = self.books.difference();
        if let Some(at) = off.and_then(|difference| self.find_too_large(difference)) {
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

    /// Over all sites.
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

    pub(crate) fn held_by_pool(&self) -> [i64; 2] {
        [Pool::Small, Pool::Large].map(|pool| self.held.get(Metric::AllocatedBytes, pool))
    }

    pub(crate) fn balance(&self) -> Option<ByteBalance> {
        self.books.balance()
    }

    pub(crate) fn held(&self) -> Option<&BlockStatistics> {
        self.knows_held.then_some(&self.held)
    }

    /// A free of a block that no event or snapshot had shown.
    pub(crate) fn lose_track(&mut self) {
        self.knows_held = false;
    }

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
        if self.recently_freed.len() == MAX_RECENTLY_FREED {
            self.recently_freed.pop_front();
        }
        self.recently_freed.push_back(FreedBlock { address, died: time, block: freed });
        Some(freed)
    }

    /// As far back as remembered.
    pub(super) fn freed_after(&self, time: Nanos) -> Vec<(u64, Nanos, TrackedBlock)> {
        let freed = self.recently_freed.iter().filter(|freed| freed.died > time);
        freed.map(|freed| (freed.address, freed.died, freed.block)).collect()
    }

    /// By address, for a recent time.
    pub(crate) fn accounts_at(&self, time: Nanos) -> FxHashMap<u64, usize> {
        let freed = self.recently_freed.iter().filter(|freed| freed.died > time);
        let freed = freed.map(|freed| (freed.address, freed.block));
        let live = self.ledger.live.iter().map(|(address, block)| (*address, *block));
        let born = live.chain(freed).filter(|(_, block)| block.allocated_at <= time.0);
        let account = |block: TrackedBlock| match block.account as usize {
            OWNED.. => BEFORE,
            account => account,
        };
        born.map(|(address, block)| (address, account(block))).collect()
    }

    /// The last counters minus later frees.
    pub(crate) fn allocated_now(&self) -> Option<i64> {
        Some(self.levels?.allocated - self.freed_since as i64)
    }

    pub(crate) fn freed_since(&self) -> u64 {
        self.freed_since
    }

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
        // Of equal peaks, keep the one with more known stacks.
        let is_higher = self.peak.is_none_or(|before| {
            peak.bytes > before.bytes
                || (peak.bytes == before.bytes && self.ledger.known() > self.ledger.known_at_peak)
        });
        if is_higher {
            self.peak = Some(peak);
            self.ledger.record_peak(peak.time.0);
        }
    }

    /// Known blocks minus the counter, in bytes.
    pub(crate) fn excess_at_peak(&self) -> u64 {
        self.peak.map_or(0, |peak| self.ledger.held.saturating_sub(peak.bytes))
    }

    /// Bytes that a snapshot may not show yet.
    fn unsettled(&self, settled: u64) -> u64 {
        self.ledger.live.values().filter(|b| b.allocated_at >= settled).map(|b| b.size).sum()
    }
}
