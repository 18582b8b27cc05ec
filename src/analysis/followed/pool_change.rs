//! What one followed change did to one pool, and which blocks that can have been.

use std::sync::Arc;

use crate::analysis::attribution::{BlockAttribution, BlockGroup};
use crate::analysis::followed::free_sites::FreeSite;
use crate::model::{CounterDelta, MIN_BLOCK, Pool};

/// Larger blocks are of the large pool (`kSmallSize`, c10/cuda/CUDACachingAllocator.cpp).
pub(in crate::analysis) const MAX_SMALL_BLOCK: u64 = 1 << 20;
/// Blocks of one change that are followed one by one.
pub(super) const MAX_AT_ONCE: i64 = 1 << 12;

/// What one followed change did to one pool.
#[derive(Debug, Clone, Copy)]
pub(in crate::analysis) struct PoolChange<'a> {
    pub(in crate::analysis) pool: Pool,
    pub(in crate::analysis) delta: CounterDelta,
    /// Whether the amounts are only lower limits.
    pub(in crate::analysis) is_open: bool,
    pub(in crate::analysis) attribution: &'a Arc<BlockAttribution>,
    /// In which changes, counted from 1, the frame that made its only allocation can have dropped its variables.
    pub(in crate::analysis) returned: Option<(usize, usize)>,
    /// Where the program was.
    pub(in crate::analysis) site: FreeSite,
}

/// How many blocks a change allocated in both pools.
pub(super) fn allocated(change: &[PoolChange<'_>]) -> u64 {
    change.iter().map(|pool| pool.delta.allocations.max(0) as u64).sum()
}

/// What one block was that a change allocated, if all were alike.
pub(super) fn even_group(change: &PoolChange<'_>) -> Option<BlockGroup> {
    even_kind(change.pool, &change.delta).filter(|_| !change.is_open)
}

/// The same of one pool.
pub(super) fn even_kind(pool: Pool, delta: &CounterDelta) -> Option<BlockGroup> {
    let count = delta.allocations;
    let even = |bytes: i64| (bytes >= 0 && bytes % count == 0).then_some((bytes / count) as u64);
    if count <= 0 {
        return None;
    }
    let (size, requested) = (even(delta.allocated_bytes)?, even(delta.requested_bytes)?);
    Some(BlockGroup { size, requested, pool })
}

/// What the blocks were that a change allocated, and how many, where they can only have been alike.
pub(super) fn sole_group(change: &PoolChange<'_>) -> Option<(BlockGroup, i64)> {
    let count = change.delta.allocations;
    let group = even_group(change)?;
    (count == 1 || group.size == MIN_BLOCK).then_some((group, count.min(MAX_AT_ONCE)))
}
