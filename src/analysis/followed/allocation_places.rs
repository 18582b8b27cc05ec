//! Where in the program's run an allocation lies: what was allocated just before it tells, in each iteration alike.
//!
//! Several lines allocate blocks of one kind: the projections of one layer, for instance. Between one allocation and the one that
//! is 32 allocations later, the counters of allocations grew by 32, and those of bytes by what the program asked for in between: the same
//! in each iteration and each layer, however the polls fell, as long as one poll fell on either end. Allocations with the same
//! sums before them are taken to be made by one line.

use std::collections::VecDeque;

use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

use crate::model::CounterDelta;

/// How many allocations back the sums reach, the most telling ones first.
const REACHES: [u64; 3] = [32, 8, 4];

/// The sums before an allocation, as far as polls fell on their ends: one number for each reach.
pub(in crate::analysis) type ReachSums = [Option<u64>; REACHES.len()];

/// The running sums of what was allocated.
#[derive(Debug, Default)]
pub(in crate::analysis) struct AllocationSums {
    count: u64,
    bytes: u64,
    requested: u64,
    /// The sums at the last polls.
    polls: VecDeque<(u64, u64, u64)>,
}

impl AllocationSums {
    /// The places of whatever is allocated next.
    pub(in crate::analysis) fn places(&self) -> ReachSums {
        REACHES.map(|reach| {
            let from = self.count.checked_sub(reach)?;
            let at = self.polls.binary_search_by_key(&from, |poll| poll.0).ok()?;
            let (_, bytes, requested) = *self.polls.get(at)?;
            let mut hasher = FxHasher::default();
            reach.hash(&mut hasher);
            (self.bytes.wrapping_sub(bytes), self.requested.wrapping_sub(requested))
                .hash(&mut hasher);
            Some(hasher.finish())
        })
    }

    /// Adds what a change allocated.
    pub(in crate::analysis) fn add(&mut self, pools: [&CounterDelta; 2]) {
        if pools.iter().all(|pool| pool.allocations <= 0) {
            return;
        }
        self.polls.push_back((self.count, self.bytes, self.requested));
        for pool in pools {
            self.count = self.count.wrapping_add(pool.allocations.max(0) as u64);
            self.bytes = self.bytes.wrapping_add(pool.allocated_bytes as u64);
            self.requested = self.requested.wrapping_add(pool.requested_bytes as u64);
        }
        let oldest = self.count.saturating_sub(REACHES[0]);
        while self.polls.front().is_some_and(|poll| poll.0 < oldest) {
            self.polls.pop_front();
        }
    }

    /// Begins anew: changes are missing.
    pub(in crate::analysis) fn clear(&mut self) {
        self.polls.clear();
    }
}
