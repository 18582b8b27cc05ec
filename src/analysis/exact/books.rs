//! Compares the sums of the events with the allocator's counters.
//!
//! The job runs on: an allocation is counted before its event, a free after it. So the allocator
//! has at least as many live blocks as the events; where the difference is least, nothing is in
//! progress, and the bytes must be equal. On a busy machine something is always in progress: a
//! difference in bytes counts once two comparisons in a row found it.

use crate::model::{AllocatorCounters, Metric, Pool};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunningTotals {
    pub(crate) allocations: i64,
    /// `None` where frees have no events.
    pub(crate) frees: Option<i64>,
    pub(crate) requested: i64,
    pub(crate) allocated_bytes: i64,
    pub(crate) freed_bytes: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CountedTotals {
    /// Since the beginning, or `reset_accumulated_memory_stats`.
    pub(crate) totals: RunningTotals,
    /// Live blocks and bytes, which are never reset.
    pub(crate) blocks: i64,
    pub(crate) held: i64,
}

impl CountedTotals {
    pub(crate) fn of(counters: &AllocatorCounters) -> CountedTotals {
        let of = |metric| counters.stat(metric, Pool::All);
        let (count, bytes) = (of(Metric::Allocation), of(Metric::AllocatedBytes));
        CountedTotals {
            totals: RunningTotals {
                allocations: count.allocated,
                frees: Some(count.freed),
                requested: of(Metric::RequestedBytes).allocated,
                allocated_bytes: bytes.allocated,
                freed_bytes: bytes.freed,
            },
            blocks: count.current,
            held: bytes.current,
        }
    }
}

impl RunningTotals {
    fn since(&self, before: &RunningTotals) -> RunningTotals {
        RunningTotals {
            allocations: self.allocations - before.allocations,
            frees: Some(self.frees.unwrap_or(0) - before.frees.unwrap_or(0)),
            requested: self.requested - before.requested,
            allocated_bytes: self.allocated_bytes - before.allocated_bytes,
            freed_bytes: self.freed_bytes - before.freed_bytes,
        }
    }

    /// The allocator's additional live blocks; without free events, allocations.
    fn behind(&self, counted: &CountedTotals) -> i64 {
        match self.frees {
            Some(frees) => counted.blocks - (self.allocations - frees),
            None => counted.totals.allocations - self.allocations,
        }
    }
}

/// Result of comparing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteBalance {
    /// Comparisons.
    pub checks: u64,
    /// Counters minus events, at the last comparison.
    pub allocated: i64,
    /// The same for freed bytes.
    pub freed: i64,
}

impl ByteBalance {
    /// No difference.
    pub fn is_even(&self) -> bool {
        (self.allocated, self.freed) == (0, 0)
    }
}

type BothTotals = (CountedTotals, RunningTotals);

#[derive(Debug, Default)]
pub(crate) struct BalanceCheck {
    /// Start of the comparison.
    base: Option<BothTotals>,
    /// Difference at `base`.
    carried: (i64, i64),
    balance: ByteBalance,
    /// A difference that was found once: at both moments, another block may have been in progress.
    suspected: Option<(i64, i64)>,
}

impl BalanceCheck {
    pub(crate) fn from_zero() -> BalanceCheck {
        BalanceCheck { base: Some(BothTotals::default()), ..BalanceCheck::default() }
    }

    pub(crate) fn balance(&self) -> Option<ByteBalance> {
        (self.balance.checks > 0).then_some(self.balance)
    }

    /// The difference of the last comparison, if any.
    pub(crate) fn difference(&self) -> Option<ByteBalance> {
        let found = match self.suspected {
            Some((allocated, freed)) => ByteBalance { allocated, freed, ..self.balance },
            None => self.balance()?,
        };
        Some(found).filter(|found| !found.is_even())
    }

    pub(crate) fn compare(&mut self, counted: CountedTotals, seen: RunningTotals) {
        let Some(base) = self.base else { return self.begin_at(counted, seen) };
        match seen.behind(&counted).cmp(&base.1.behind(&base.0)) {
            // An event is in progress.
            std::cmp::Ordering::Greater => return,
            // One was in progress at the start: comparisons since are void.
            std::cmp::Ordering::Less => {
                (self.balance.allocated, self.balance.freed) = self.carried;
                return self.begin_at(counted, seen);
            }
            std::cmp::Ordering::Equal => {}
        }
        let knows_frees = seen.frees.is_some();
        let grew = counted.totals.since(&base.0.totals);
        let events = seen.since(&base.1);
        let has_same_frees = !knows_frees || grew.frees == events.frees;
        let of_frees = |bytes| if knows_frees { bytes } else { 0 };
        let off = if (grew.allocations, grew.requested) == (events.allocations, events.requested)
            && has_same_frees
        {
            let freed = of_frees(grew.freed_bytes - events.freed_bytes);
            (grew.allocated_bytes - events.allocated_bytes, freed)
        } else if grew.allocations < events.allocations && knows_frees {
            // After a reset, live blocks are still comparable.
            let held = counted.held - base.0.held;
            (held - (events.allocated_bytes - events.freed_bytes), 0)
        } else {
            return; // Events are missing, as `on_counter_check` reports.
        };
        let (allocated, freed) = (self.carried.0 + off.0, self.carried.1 + off.1);
        let is_new = (allocated, freed) != (self.balance.allocated, self.balance.freed);
        if is_new && self.suspected.replace((allocated, freed)) != Some((allocated, freed)) {
            return;
        }
        self.suspected = None;
        self.balance = ByteBalance { checks: self.balance.checks + 1, allocated, freed };
        if grew.allocations < events.allocations {
            self.begin_at(counted, seen);
        }
    }

    fn begin_at(&mut self, counted: CountedTotals, seen: RunningTotals) {
        self.base = Some((counted, seen));
        self.suspected = None;
        self.carried = (self.balance.allocated, self.balance.freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(allocations: i64, frees: i64, bytes: i64, freed: i64) -> RunningTotals {
        RunningTotals {
            allocations,
            frees: Some(frees),
            requested: 100 * allocations,
            allocated_bytes: bytes,
            freed_bytes: freed,
        }
    }

    /// The allocator began with 100 blocks of 51,200 bytes.
    fn counted(allocations: i64, frees: i64, bytes: i64, freed: i64) -> CountedTotals {
        CountedTotals {
            totals: sums(allocations, frees, bytes, freed),
            blocks: 100 + allocations - frees,
            held: 51_200 + bytes - freed,
        }
    }

    fn off(books: &BalanceCheck) -> Option<(u64, i64, i64)> {
        books.balance().map(|balance| (balance.checks, balance.allocated, balance.freed))
    }

    #[test]
    fn only_settled_sums_are_compared() {
        let mut books = BalanceCheck::default();
        books.compare(counted(0, 0, 0, 0), sums(0, 0, 0, 0));
        books.compare(counted(3, 1, 1536, 512), sums(2, 1, 1024, 512));
        assert_eq!(off(&books), None);
        books.compare(counted(3, 1, 1536, 512), sums(3, 1, 1536, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(counted(4, 2, 2048, 1024), sums(4, 2, 4096, 2048));
        assert_eq!(off(&books), Some((1, 0, 0)), "it may have been in progress");
        books.compare(counted(5, 2, 2560, 1024), sums(5, 2, 4608, 2048));
        assert_eq!(off(&books), Some((2, -2048, -1024)));
    }

    #[test]
    fn other_blocks_in_progress_at_each_moment_are_no_difference() {
        let mut books = BalanceCheck::default();
        books.compare(counted(10, 4, 5120, 2048), sums(10, 5, 5120, 2560));
        for freed in [9000, 7000, 5000] {
            books.compare(counted(12, 5, 6144, 2560), sums(12, 6, 6144, freed));
        }
        assert_eq!(off(&books), None);
    }

    #[test]
    fn frees_in_progress_at_both_moments_are_no_difference() {
        let mut books = BalanceCheck::default();
        books.compare(counted(10, 4, 5120, 2048), sums(10, 4, 5120, 2048));
        // At each moment, a free of another size has its event but is not counted.
        books.compare(counted(12, 4, 6144, 2048), sums(12, 5, 6144, 9000));
        books.compare(counted(13, 5, 6656, 9000), sums(13, 6, 6656, 9512));
        assert_eq!(off(&books), None);
        books.compare(counted(13, 6, 6656, 9512), sums(13, 6, 6656, 9512));
        assert_eq!(off(&books), Some((1, 0, 0)));
    }

    #[test]
    fn comparisons_with_an_unsettled_start_are_void() {
        let mut books = BalanceCheck::default();
        books.compare(counted(10, 4, 5120, 2048), sums(10, 5, 5120, 2560));
        books.compare(counted(12, 5, 6144, 2560), sums(12, 6, 6144, 9000));
        books.compare(counted(12, 5, 6144, 2560), sums(12, 6, 6144, 9000));
        assert_eq!(off(&books), Some((1, 0, -5928)));
        books.compare(counted(12, 6, 6144, 9000), sums(12, 6, 6144, 9000));
        books.compare(counted(13, 7, 6656, 9512), sums(13, 7, 6656, 9512));
        assert_eq!(off(&books), Some((2, 0, 0)));
    }

    #[test]
    fn a_running_job_is_compared_from_a_settled_moment_on() {
        let mut books = BalanceCheck::default();
        // One allocation has no event yet.
        books.compare(counted(101, 50, 10_000, 5000), sums(0, 0, 0, 0));
        books.compare(counted(102, 50, 10_512, 5000), sums(2, 0, 1024, 0));
        assert_eq!(off(&books), None);
        books.compare(counted(104, 51, 11_536, 5512), sums(4, 1, 2048, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(counted(105, 51, 12_048, 5512), sums(5, 1, 3072, 512));
        books.compare(counted(106, 51, 12_560, 5512), sums(6, 1, 3584, 512));
        assert_eq!(off(&books), Some((2, -512, 0)));
    }

    fn reset(now: CountedTotals, before: RunningTotals) -> CountedTotals {
        CountedTotals { totals: now.totals.since(&before), ..now }
    }

    #[test]
    fn live_bytes_are_compared_after_a_counter_reset() {
        let mut books = BalanceCheck::default();
        books.compare(counted(1, 0, 512, 0), sums(1, 0, 512, 0));
        // Between two resets, the counts are equal.
        let then = sums(3, 1, 1536, 512);
        books.compare(reset(counted(4, 2, 2048, 1024), then), sums(4, 2, 2048, 1024));
        assert_eq!(off(&books), Some((1, 0, 0)));
        for _ in 0..2 {
            books.compare(reset(counted(6, 2, 4096, 1024), then), sums(6, 2, 4608, 1024));
        }
        assert_eq!(off(&books), Some((2, -512, 0)));
        let then = sums(7, 2, 5120, 1024);
        books.compare(reset(counted(7, 2, 4608, 1024), then), sums(7, 2, 5120, 1024));
        assert_eq!(off(&books), Some((3, -512, 0)), "what is off stays off");
    }
}
