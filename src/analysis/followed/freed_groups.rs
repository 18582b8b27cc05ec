//! Which blocks a followed change freed: their number and their sums are known, and which groups
//! have blocks alive.
//!
//! The allocator counts a block as freed, and takes the bytes that had been asked for it off only
//! some hundred instructions later. So a poll may see a free whose bytes asked for come with a
//! later change; what is still to come is kept for each pool.

use crate::analysis::attribution::BlockGroup;
use crate::model::{CounterDelta, Pool};

/// Blocks freed in one change that are told apart.
const MAX_FREES: u64 = 12;
/// Groups tried, the youngest first.
const MAX_GROUPS: usize = 64;
/// Steps of one search.
const MAX_SEARCH: u32 = 4000;

/// What one change freed in one pool.
#[derive(Debug, Clone, Copy)]
pub(in crate::analysis) struct PoolFrees {
    pool: Pool,
    count: u64,
    bytes: u64,
    requested: i64,
}

impl PoolFrees {
    pub(in crate::analysis) fn new(pool: Pool, delta: &CounterDelta) -> PoolFrees {
        PoolFrees {
            pool,
            count: delta.frees.max(0) as u64,
            bytes: delta.freed_bytes.max(0) as u64,
            requested: delta.freed_requested_bytes,
        }
    }
}

/// Finds them, change by change.
#[derive(Debug, Default)]
pub(in crate::analysis) struct FreedGroups {
    /// Bytes asked for of blocks found that no change has told yet, in the small and in the large
    /// pool.
    untold: [i64; 2],
}

impl FreedGroups {
    /// The group of each block that a change freed; empty where nothing fits. `live` has how many
    /// blocks of a group are alive, `groups` the groups of which some are, the one allocated last
    /// first.
    pub(in crate::analysis) fn find(
        &mut self,
        frees: &PoolFrees,
        live: impl Fn(&BlockGroup) -> usize,
        groups: impl FnOnce() -> Vec<BlockGroup>,
    ) -> Vec<BlockGroup> {
        let pool = usize::from(frees.pool == Pool::Large);
        let untold = &mut self.untold[pool];
        if frees.count == 0 {
            // What the map before has told is no debt of this one.
            *untold = (*untold - frees.requested).max(0);
            return Vec::new();
        }
        let wanted = PoolFrees { requested: frees.requested - *untold, ..*frees };
        let mut groups = groups();
        groups.retain(|group| group.size <= frees.bytes);
        groups.truncate(MAX_GROUPS);
        let search = SubsetSearch { live: &live, groups, left: MAX_SEARCH, found: None };
        let found = search.run(&wanted);
        if found.is_empty() {
            *untold = 0;
            return found;
        }
        let asked: i64 = found.iter().map(|group| group.requested as i64).sum();
        *untold = asked - wanted.requested;
        found
    }
}

struct SubsetSearch<'a, L> {
    live: &'a L,
    groups: Vec<BlockGroup>,
    left: u32,
    found: Option<Vec<BlockGroup>>,
}

impl<L: Fn(&BlockGroup) -> usize> SubsetSearch<'_, L> {
    fn run(mut self, frees: &PoolFrees) -> Vec<BlockGroup> {
        if frees.count > MAX_FREES {
            return Vec::new();
        }
        if let Ok(requested) = u64::try_from(frees.requested) {
            self.search(0, frees.count, frees.bytes, requested, frees.pool, &mut Vec::new());
            if let Some(found) = self.found.take() {
                return found;
            }
            // The bytes asked for the last one are still to be told.
            for last in self.groups.clone() {
                let Some(bytes) = frees.bytes.checked_sub(last.size) else { continue };
                let mut taken = vec![last];
                self.left = self.left.max(64);
                self.search(0, frees.count - 1, bytes, requested, frees.pool, &mut taken);
                if let Some(found) = self.found.take() {
                    return found;
                }
            }
        }
        // What was to be told is in disorder: one block of this size.
        let same_size = self.groups.iter().find(|group| group.size == frees.bytes);
        same_size.filter(|_| frees.count == 1).copied().into_iter().collect()
    }

    fn search(
        &mut self,
        from: usize,
        count: u64,
        bytes: u64,
        requested: u64,
        pool: Pool,
        taken: &mut Vec<BlockGroup>,
    ) {
        if self.left == 0 || self.found.is_some() {
            return;
        }
        self.left -= 1;
        if count == 0 {
            if bytes == 0 && requested == 0 {
                self.found = Some(taken.clone());
            }
            return;
        }
        if count == 1 {
            let last = BlockGroup { size: bytes, requested, pool };
            // In order, so that no answer is found twice.
            let at = self.groups.iter().position(|group| *group == last);
            let used = taken.iter().filter(|group| **group == last).count();
            if at.is_some_and(|at| at >= from) && (self.live)(&last) > used {
                taken.push(last);
                self.found = Some(taken.clone());
                taken.pop();
            }
            return;
        }
        for at in from..self.groups.len() {
            let group = self.groups[at];
            let (Some(bytes), Some(requested)) =
                (bytes.checked_sub(group.size), requested.checked_sub(group.requested))
            else {
                continue;
            };
            let used = taken.iter().filter(|taken| **taken == group).count();
            if (self.live)(&group) > used {
                taken.push(group);
                self.search(at, count - 1, bytes, requested, pool, taken);
                taken.pop();
            }
        }
    }
}
