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
