//! The sums of the events against those of the allocator: what was allocated and freed must come to the same.
//!
//! The counters are read while the job goes on, so they may be ahead of the events or behind. Where the numbers of
//! allocations and frees and the bytes asked for are equal, they are neither: then the bytes of the blocks must be equal, too.

use crate::model::{AllocatorCounters, Metric, Pool};

/// Running totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunningTotals {
    pub(crate) allocations: i64,
    /// `None` where frees are not seen one by one.
    pub(crate) frees: Option<i64>,
    pub(crate) requested: i64,
    pub(crate) allocated_bytes: i64,
    pub(crate) freed_bytes: i64,
}

impl RunningTotals {
    /// What the allocator counts.
    pub(crate) fn counted(counters: &AllocatorCounters) -> RunningTotals {
        let of = |metric| counters.stat(metric, Pool::All);
        RunningTotals {
            allocations: of(Metric::Allocation).allocated,
            frees: Some(of(Metric::Allocation).freed),
            requested: of(Metric::RequestedBytes).allocated,
            allocated_bytes: of(Metric::AllocatedBytes).allocated,
            freed_bytes: of(Metric::AllocatedBytes).freed,
        }
    }

    fn since(&self, before: &RunningTotals) -> RunningTotals {
        RunningTotals {
            allocations: self.allocations - before.allocations,
            frees: Some(self.frees.unwrap_or(0) - before.frees.unwrap_or(0)),
            requested: self.requested - before.requested,
            allocated_bytes: self.allocated_bytes - before.allocated_bytes,
            freed_bytes: self.freed_bytes - before.freed_bytes,
        }
    }

    fn is_less_than(&self, before: &RunningTotals) -> bool {
        self.allocations < before.allocations
            || self.requested < before.requested
            || self.allocated_bytes < before.allocated_bytes
            || self.freed_bytes < before.freed_bytes
    }
}

/// What the comparisons of bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteBalance {
    /// Comparisons.
    pub checks: u64,
    /// By how many bytes more was allocated than the events come to, at the last one; negative the other way.
    pub allocated: i64,
    /// The same of bytes freed.
    pub freed: i64,
}

impl ByteBalance {
    /// Whether nothing is missing and nothing too much.
    pub fn is_even(&self) -> bool {
        (self.allocated, self.freed) == (0, 0)
    }
}

/// The comparisons of one device.
#[derive(Debug, Default)]
pub(crate) struct BalanceCheck {
    /// Both sums where the comparison begins.
    base: Option<(RunningTotals, RunningTotals)>,
    /// What was off up to there.
    carried: (i64, i64),
    last: Option<(RunningTotals, RunningTotals)>,
    balance: ByteBalance,
}

impl BalanceCheck {
    /// Of an allocator that has counted nothing yet.
    pub(crate) fn from_zero() -> BalanceCheck {
        BalanceCheck {
            base: Some((RunningTotals::default(), RunningTotals::default())),
            ..BalanceCheck::default()
        }
    }

    /// What the comparisons came to; `None` where there was none.
    pub(crate) fn balance(&self) -> Option<ByteBalance> {
        (self.balance.checks > 0).then_some(self.balance)
    }

    /// Compares what the allocator counts with what the events come to.
    pub(crate) fn compare(&mut self, counted: RunningTotals, seen: RunningTotals) {
        if self.last.is_some_and(|(before, _)| counted.is_less_than(&before)) {
            // The job has begun to count anew (reset_accumulated_memory_stats).
            self.begin_at(None);
        }
        let last = self.last.replace((counted, seen));
        if self.base.is_some_and(|base| self.compare_since(base, counted, seen)) {
            return;
        }
        // The counters of the beginning may have been ahead of the events: those of another moment were not.
        match last {
            Some(last) if self.base != Some(last) && self.compare_since(last, counted, seen) => {
                self.begin_at(Some(last));
            }
            Some(_) => {}
            None if self.base.is_none() => self.begin_at(Some((counted, seen))),
            None => {}
        }
    }

    fn begin_at(&mut self, base: Option<(RunningTotals, RunningTotals)>) {
        self.base = base;
        self.carried = (self.balance.allocated, self.balance.freed);
        if base.is_none() {
            self.last = None;
        }
    }

    /// Compares what both grew by since `base`; says whether they can be compared.
    fn compare_since(
        &mut self,
        base: (RunningTotals, RunningTotals),
        counted: RunningTotals,
        seen: RunningTotals,
    ) -> bool {
        let knows_frees = seen.frees.is_some();
        let (counted, seen) = (counted.since(&base.0), seen.since(&base.1));
        let is_settled = counted.allocations == seen.allocations
            && counted.requested == seen.requested
            && (!knows_frees || counted.frees == seen.frees);
        if is_settled {
            let freed = if knows_frees { counted.freed_bytes - seen.freed_bytes } else { 0 };
            self.balance = ByteBalance {
                checks: self.balance.checks + 1,
                allocated: self.carried.0 + counted.allocated_bytes - seen.allocated_bytes,
                freed: self.carried.1 + freed,
            };
        }
        is_settled
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

    fn off(books: &BalanceCheck) -> Option<(u64, i64, i64)> {
        books.balance().map(|balance| (balance.checks, balance.allocated, balance.freed))
    }

    #[test]
    fn only_what_is_not_under_way_is_compared() {
        let mut books = BalanceCheck::from_zero();
        books.compare(sums(3, 1, 1536, 512), sums(2, 1, 1024, 512));
        assert_eq!(off(&books), None);
        books.compare(sums(3, 1, 1536, 512), sums(3, 1, 1536, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(sums(4, 2, 2048, 1024), sums(4, 2, 4096, 2048));
        assert_eq!(off(&books), Some((2, -2048, -1024)));
    }

    #[test]
    fn a_job_under_way_is_compared_from_a_moment_on_at_which_nothing_was() {
        let mut books = BalanceCheck::default();
        // One allocation is ahead of its event.
        books.compare(sums(101, 50, 10_000, 5000), sums(0, 0, 0, 0));
        books.compare(sums(102, 50, 10_512, 5000), sums(2, 0, 1024, 0));
        assert_eq!(off(&books), None);
        books.compare(sums(104, 51, 11_536, 5512), sums(4, 1, 2048, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(sums(105, 51, 12_048, 5512), sums(5, 1, 3072, 512));
        assert_eq!(off(&books), Some((2, -512, 0)));
    }

    #[test]
    fn what_is_off_stays_off_when_the_job_counts_anew() {
        let mut books = BalanceCheck::from_zero();
        books.compare(sums(1, 0, 512, 0), sums(1, 0, 1024, 0));
        books.compare(sums(0, 0, 0, 0), sums(1, 0, 1024, 0));
        books.compare(sums(2, 0, 1024, 0), sums(3, 0, 2048, 0));
        assert_eq!(off(&books), Some((2, -512, 0)));
    }
}
