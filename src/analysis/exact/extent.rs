//! What a block takes, and the allocator's statistics that it counts in.

use crate::model::{Metric, Pool};

/// The allocator's unit: kMinBlockSize (c10/cuda/CUDACachingAllocator.cpp).
pub(crate) const UNIT: u64 = 512;
/// Requests of up to this many bytes, rounded, come from the small pool (kSmallSize), in which every remainder is split
/// off. Rounding to parts of powers of two does not lead across it, for it is one.
pub(crate) const SMALL_POOL: u64 = 1 << 20;

/// A block's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSizes {
    /// Bytes it takes.
    pub(crate) size: u64,
    /// Bytes asked for.
    pub(crate) requested: u64,
    /// Whether it is of the small pool.
    pub(crate) small: bool,
}

impl BlockSizes {
    /// A block of `size` bytes for a request of `requested`.
    pub(crate) fn new(size: u64, requested: u64) -> BlockSizes {
        BlockSizes { size, requested, small: rounded(requested) <= SMALL_POOL }
    }
}

impl From<u64> for BlockSizes {
    fn from(size: u64) -> BlockSizes {
        BlockSizes::new(size, size)
    }
}

/// The least that a block for a request of `requested` bytes takes. A damaged trace may tell of any size.
pub(crate) fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(UNIT).unwrap_or(u64::MAX)
}

/// How many statistics there are of a block: numbers, bytes, bytes asked for, each of all pools, the small, the large one.
pub(crate) const STATISTICS: usize = 9;

/// One value for each statistic of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockStatistics(pub(crate) [i64; STATISTICS]);

impl BlockStatistics {
    /// What a block adds.
    pub(crate) fn new(extent: BlockSizes) -> BlockStatistics {
        let mut all = BlockStatistics::default();
        let pool = if extent.small { Pool::Small } else { Pool::Large };
        for (kind, value) in
            [1, extent.size as i64, extent.requested as i64].into_iter().enumerate()
        {
            for pool in [Pool::All, pool] {
                all.0[3 * kind + pool as usize] = value;
            }
        }
        all
    }

    /// Adds what a block adds. Only what changes is touched: this is done for every event.
    pub(crate) fn add_block(&mut self, extent: BlockSizes) {
        self.each_of_block(extent, |sum, value| *sum += value);
    }

    /// Takes away what a block added.
    pub(crate) fn subtract_block(&mut self, extent: BlockSizes) {
        self.each_of_block(extent, |sum, value| *sum -= value);
    }

    fn each_of_block(&mut self, extent: BlockSizes, change: impl Fn(&mut i64, i64)) {
        let pool = if extent.small { Pool::Small } else { Pool::Large };
        let values = [1, extent.size as i64, extent.requested as i64];
        for (sums, value) in self.0.chunks_exact_mut(3).zip(values) {
            change(&mut sums[Pool::All as usize], value);
            change(&mut sums[pool as usize], value);
        }
    }

    /// The place of a statistic; `None` for those that are not of blocks.
    pub(crate) fn index(metric: Metric, pool: Pool) -> Option<usize> {
        let kind = match metric {
            Metric::Allocation => 0,
            Metric::AllocatedBytes => 1,
            Metric::RequestedBytes => 2,
            _ => return None,
        };
        Some(3 * kind + pool as usize)
    }

    pub(crate) fn get(&self, metric: Metric, pool: Pool) -> i64 {
        Self::index(metric, pool).map_or(0, |index| self.0[index])
    }

    pub(crate) fn add(&mut self, other: &BlockStatistics) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    pub(crate) fn subtract(&mut self, other: &BlockStatistics) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a -= b);
    }

    pub(crate) fn raise(&mut self, other: &BlockStatistics) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = (*a).max(b));
    }

    pub(crate) fn since(&self, before: &BlockStatistics) -> BlockStatistics {
        let mut grown = *self;
        grown.subtract(before);
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_added_and_taken_away_in_place_as_by_its_statistics() {
        for extent in [BlockSizes::new(512, 100), BlockSizes::new(4 << 20, (4 << 20) - 7)] {
            let mut sums = BlockStatistics([5, 1, 4, 700, 100, 600, 70, 10, 60]);
            let before = sums;
            sums.add_block(extent);
            assert_eq!(sums.since(&before), BlockStatistics::new(extent));
            assert_eq!(sums.get(Metric::Allocation, Pool::All), 6);
            sums.subtract_block(extent);
            assert_eq!(sums, before);
        }
    }
}
