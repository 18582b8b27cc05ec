//! A block's sizes, and the allocator's statistics for it.

use crate::model::{Metric, Pool, block_size};

/// Rounded requests up to this size use the small pool (kSmallSize), which splits off every
/// remainder. `roundup_power2_divisions` does not cross it: it is a power of two.
pub(crate) const SMALL_POOL: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSizes {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) small: bool,
}

impl BlockSizes {
    pub(crate) fn new(size: u64, requested: u64) -> BlockSizes {
        BlockSizes { size, requested, small: block_size(requested) <= SMALL_POOL }
    }
}

impl From<u64> for BlockSizes {
    fn from(size: u64) -> BlockSizes {
        BlockSizes::new(size, size)
    }
}

/// Count, bytes and requested bytes, each of all pools, the small and the large one.
pub(crate) const STATISTICS: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockStatistics(pub(crate) [i64; STATISTICS]);

impl BlockStatistics {
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

    /// Adds a block in place: called for every event.
    pub(crate) fn add_block(&mut self, extent: BlockSizes) {
        self.each_of_block(extent, |sum, value| *sum += value);
    }

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

    /// `None` if the metric is not a statistic of blocks.
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
    fn adding_and_subtracting_a_block_matches_its_statistics() {
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
