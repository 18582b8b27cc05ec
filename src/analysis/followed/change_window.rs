//! The changes since the tables of addresses were read last, and what is known of them while they
//! are replayed (`addressed_changes.rs`).

use std::sync::Arc;

use crate::analysis::attribution::{BlockAttribution, BlockGroup};
use crate::analysis::followed::pool_change::{PoolChange, allocated, sole_group};
use crate::model::{CounterDelta, Pool};

/// One change of a window, and what it is likely to have been where it was several blocks.
pub(in crate::analysis) struct WindowChange<'a> {
    pub(in crate::analysis) pools: [PoolChange<'a>; 2],
    pub(in crate::analysis) parts: Vec<[PoolChange<'a>; 2]>,
}

impl<'a> WindowChange<'a> {
    /// The blocks that its parts allocated, if these tell each of them.
    pub(super) fn blocks_of_parts(&self) -> Option<Vec<(BlockGroup, PoolChange<'a>)>> {
        let is_one = |part: &[PoolChange<'_>; 2]| allocated(part) <= 1;
        let is_known = !self.parts.is_empty() && self.parts.iter().all(is_one);
        if !is_known || self.pools.iter().any(|pool| pool.is_open) {
            return None;
        }
        let made = self.parts.iter().flatten().filter(|part| part.delta.allocations > 0);
        let blocks: Option<Vec<_>> = made.map(|part| Some((sole_group(part)?.0, *part))).collect();
        blocks.filter(|blocks| blocks.len() as u64 == allocated(&self.pools))
    }
}

/// What is known of a window while it is replayed.
#[derive(Default)]
pub(super) struct Window<'a> {
    /// The number of its first change.
    pub(super) first: usize,
    /// The groups of which it allocated blocks, one by one.
    pub(super) made: Vec<BlockGroup>,
    /// Allocations of several blocks in one change that no address was found for.
    pub(super) several: Vec<SeveralAllocations<'a>>,
    /// What was freed in each change.
    frees: Vec<WindowFree<'a>>,
    /// What of it no block was found for until now, in the small and in the large pool.
    hidden: [CounterDelta; 2],
}

/// What one change of a window, or a part of it, freed in one pool.
#[derive(Clone, Copy)]
pub(super) struct WindowFree<'a> {
    /// The number of the change, and of the step.
    pub(super) change: usize,
    pub(super) step: usize,
    /// The change up to it that allocated last, and the one before it.
    pub(super) last: Option<usize>,
    pub(super) last_before: Option<usize>,
    pub(super) pool: PoolChange<'a>,
    /// What of it no block was found for until now.
    pub(super) left: CounterDelta,
}

impl WindowFree<'_> {
    /// Whether what is left of it is one block of `group`.
    fn is_one_of(&self, group: BlockGroup) -> bool {
        let left = (self.left.frees, self.left.freed_bytes, self.left.freed_requested_bytes);
        self.pool.pool == group.pool && left == (1, group.size as i64, group.requested as i64)
    }

    /// Whether it may have been a block of `group`.
    fn can_be_of(&self, group: BlockGroup) -> bool {
        self.pool.pool == group.pool && self.pool.delta.freed_bytes >= group.size as i64
    }
}

/// Allocations of several blocks in one change.
pub(super) struct SeveralAllocations<'a> {
    /// The number of the change.
    pub(super) change: usize,
    pub(super) pool: PoolChange<'a>,
    /// What they are likely to have been.
    pub(super) parts: Vec<PoolChange<'a>>,
}

impl<'a> Window<'a> {
    /// One whose first change has this number.
    pub(super) fn new(first: usize) -> Window<'a> {
        Window { first, ..Window::default() }
    }

    /// The change of several allocations that has room for a block of `group`, with its number; the
    /// block is taken out of it.
    pub(super) fn take_of_several(
        &mut self,
        group: BlockGroup,
    ) -> Option<(usize, Arc<BlockAttribution>)> {
        let several = self.several.iter_mut().find(|several| {
            let delta = &several.pool.delta;
            several.pool.pool == group.pool
                && delta.allocations > 0
                && delta.allocated_bytes >= group.size as i64
        })?;
        several.pool.delta.allocations -= 1;
        several.pool.delta.allocated_bytes -= group.size as i64;
        several.pool.delta.requested_bytes -= group.requested as i64;
        let is_it =
            |part: &PoolChange<'_>| sole_group(part).is_some_and(|(of_part, _)| of_part == group);
        // Where not all are alive, the youngest are.
        let part = several.parts.iter().rposition(is_it);
        let charge = match part {
            Some(part) => several.parts.remove(part).attribution.clone(),
            None => several.pool.attribution.clone(),
        };
        Some((several.change, charge))
    }

    /// The first block of a pool that was allocated together with others in change `from` or later
    /// and has no address yet: taken out of these.
    pub(super) fn take_rest_of_several(
        &mut self,
        pool: Pool,
        from: usize,
    ) -> Option<(BlockGroup, usize, Arc<BlockAttribution>)> {
        let is_it = |of: &&SeveralAllocations<'_>| {
            of.pool.pool == pool && of.change >= from && of.pool.delta.allocations > 0
        };
        let group = self.several.iter().filter(is_it).find_map(|several| {
            let mut groups = several.parts.iter().chain([&several.pool]).filter_map(sole_group);
            groups.next().map(|(group, _)| group)
        })?;
        let (change, charge) = self.take_of_several(group)?;
        Some((group, change, charge))
    }

    /// Notes what a change freed in one pool.
    pub(super) fn note_free(&mut self, freed: WindowFree<'a>) {
        let hidden = &mut self.hidden[usize::from(freed.pool.pool == Pool::Large)];
        hidden.frees += freed.left.frees;
        hidden.freed_bytes += freed.left.freed_bytes;
        hidden.freed_requested_bytes += freed.left.freed_requested_bytes;
        self.frees.push(freed);
    }

    /// What was freed in a pool and no block was found for until now.
    pub(super) fn hidden(&self, pool: Pool) -> &CounterDelta {
        &self.hidden[usize::from(pool == Pool::Large)]
    }

    /// Whether a block of `group` may be among what was freed and no block was found for.
    pub(super) fn may_hide(&self, group: BlockGroup) -> bool {
        let hidden = self.hidden(group.pool);
        hidden.frees > 0 && hidden.freed_bytes >= group.size as i64
    }

    /// A block of `group` that was freed is found.
    pub(super) fn found(&mut self, group: BlockGroup) {
        take_out(&mut self.hidden[usize::from(group.pool == Pool::Large)], group);
    }

    /// The change that most likely freed a block of `group`, which is taken out of what is left of
    /// it.
    pub(super) fn take_free(&mut self, group: BlockGroup) -> Option<WindowFree<'a>> {
        let frees = || self.frees.iter();
        let at = frees()
            .position(|freed| freed.is_one_of(group))
            .or_else(|| frees().rposition(|freed| freed.can_be_of(group)))?;
        let freed = self.frees.get_mut(at)?;
        take_out(&mut freed.left, group);
        Some(*freed)
    }

    /// The first change that freed something in a pool.
    pub(super) fn first_free(&self, pool: Pool) -> Option<&WindowFree<'a>> {
        self.frees.iter().find(|freed| freed.pool.pool == pool)
    }
}

/// Takes a block that was freed out of what was.
fn take_out(freed: &mut CounterDelta, group: BlockGroup) {
    freed.frees -= 1;
    freed.freed_bytes -= group.size as i64;
    freed.freed_requested_bytes -= group.requested as i64;
}
