//! The sums of the events against those of the allocator: what was allocated and freed must come to the same.
//!
//! The counters are read while the job goes on. An allocation is counted before its event and a
//! free after it, so what is under way makes the allocator count more live blocks than the events
//! leave, never fewer: where it counts the fewest beyond the events, nothing is under way, and the
//! bytes of the blocks must be equal.

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

/// What the allocator counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CountedTotals {
    /// Since the job began, or since it reset them (`reset_accumulated_memory_stats`).
    pub(crate) totals: RunningTotals,
    /// Live blocks, which no reset changes, and their bytes.
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

    /// By how many live blocks the allocator is ahead of these; without events of frees, by how
    /// many allocations.
    fn behind(&self, counted: &CountedTotals) -> i64 {
        match self.frees {
            Some(frees) => counted.blocks - (self.allocations - frees),
            None => counted.totals.allocations - self.allocations,
        }
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

/// Both sums at a moment.
type BothTotals = (CountedTotals, RunningTotals);

/// The comparisons of one device.
#[derive(Debug, Default)]
pub(crate) struct BalanceCheck {
    /// Both sums where the comparison begins.
    base: Option<BothTotals>,
    /// What was off up to there.
    carried: (i64, i64),
    balance: ByteBalance,
}

impl BalanceCheck {
    /// Of an allocator that has counted nothing yet.
    pub(crate) fn from_zero() -> BalanceCheck {
        BalanceCheck { base: Some(BothTotals::default()), ..BalanceCheck::default() }
    }

    /// What the comparisons came to; `None` where there was none.
    pub(crate) fn balance(&self) -> Option<ByteBalance> {
        (self.balance.checks > 0).then_some(self.balance)
    }

    /// Compares what the allocator counts with what the events come to.
    pub(crate) fn compare(&mut self, counted: CountedTotals, seen: RunningTotals) {
        let Some(base) = self.base else { return self.begin_at(counted, seen) };
        match seen.behind(&counted).cmp(&base.1.behind(&base.0)) {
            // Something is under way.
            std::cmp::Ordering::Greater => return,
            // Something was at the beginning, and whenever it was compared with since: that said
            // nothing.
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
            // The job has reset its counts: what lives is known all the same.
            let held = counted.held - base.0.held;
            (held - (events.allocated_bytes - events.freed_bytes), 0)
        } else {
            return; // Events are missing, which the comparison of their numbers says.
        };
        self.balance = ByteBalance {
            checks: self.balance.checks + 1,
            allocated: self.carried.0 + off.0,
            freed: self.carried.1 + off.1,
        };
        if grew.allocations < events.allocations {
            self.begin_at(counted, seen);
        }
    }

    fn begin_at(&mut self, counted: CountedTotals, seen: RunningTotals) {
        self.base = Some((counted, seen));
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

    /// An allocator that has counted this since it began with 100 blocks of 51,200 bytes.
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
    fn only_what_is_not_under_way_is_compared() {
        let mut books = BalanceCheck::default();
        books.compare(counted(0, 0, 0, 0), sums(0, 0, 0, 0));
        books.compare(counted(3, 1, 1536, 512), sums(2, 1, 1024, 512));
        assert_eq!(off(&books), None);
        books.compare(counted(3, 1, 1536, 512), sums(3, 1, 1536, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(counted(4, 2, 2048, 1024), sums(4, 2, 4096, 2048));
        assert_eq!(off(&books), Some((2, -2048, -1024)));
    }

    #[test]
    fn frees_under_way_at_both_moments_are_no_difference() {
        let mut books = BalanceCheck::default();
        books.compare(counted(10, 4, 5120, 2048), sums(10, 4, 5120, 2048));
        // At each a free of another size was told and is not counted: as many frees, and other
        // bytes.
        books.compare(counted(12, 4, 6144, 2048), sums(12, 5, 6144, 9000));
        books.compare(counted(13, 5, 6656, 9000), sums(13, 6, 6656, 9512));
        assert_eq!(off(&books), None);
        books.compare(counted(13, 6, 6656, 9512), sums(13, 6, 6656, 9512));
        assert_eq!(off(&books), Some((1, 0, 0)));
    }

    #[test]
    fn what_was_compared_with_a_beginning_under_way_is_forgotten_with_it() {
        let mut books = BalanceCheck::default();
        // A free was told and is not counted, at both moments, of another size.
        books.compare(counted(10, 4, 5120, 2048), sums(10, 5, 5120, 2560));
        books.compare(counted(12, 5, 6144, 2560), sums(12, 6, 6144, 9000));
        assert_eq!(off(&books), Some((1, 0, -5928)));
        books.compare(counted(12, 6, 6144, 9000), sums(12, 6, 6144, 9000));
        books.compare(counted(13, 7, 6656, 9512), sums(13, 7, 6656, 9512));
        assert_eq!(off(&books), Some((2, 0, 0)));
    }

    #[test]
    fn a_job_under_way_is_compared_from_a_moment_on_at_which_nothing_was() {
        let mut books = BalanceCheck::default();
        // One allocation is ahead of its event.
        books.compare(counted(101, 50, 10_000, 5000), sums(0, 0, 0, 0));
        books.compare(counted(102, 50, 10_512, 5000), sums(2, 0, 1024, 0));
        assert_eq!(off(&books), None);
        books.compare(counted(104, 51, 11_536, 5512), sums(4, 1, 2048, 512));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(counted(105, 51, 12_048, 5512), sums(5, 1, 3072, 512));
        assert_eq!(off(&books), Some((2, -512, 0)));
    }

    /// The counters after a reset at a moment when `before` was counted.
    fn reset(now: CountedTotals, before: RunningTotals) -> CountedTotals {
        CountedTotals { totals: now.totals.since(&before), ..now }
    }

    #[test]
    fn what_lives_is_compared_where_the_job_has_reset_its_counts() {
        let mut books = BalanceCheck::default();
        books.compare(counted(1, 0, 512, 0), sums(1, 0, 512, 0));
        // From a reset to a reset: the counts are the same at both moments.
        let then = sums(3, 1, 1536, 512);
        books.compare(reset(counted(4, 2, 2048, 1024), then), sums(4, 2, 2048, 1024));
        assert_eq!(off(&books), Some((1, 0, 0)));
        books.compare(reset(counted(6, 2, 4096, 1024), then), sums(6, 2, 4608, 1024));
        assert_eq!(off(&books), Some((2, -512, 0)));
        let then = sums(7, 2, 5120, 1024);
        books.compare(reset(counted(7, 2, 4608, 1024), then), sums(7, 2, 5120, 1024));
        assert_eq!(off(&books), Some((3, -512, 0)), "what is off stays off");
    }
}
