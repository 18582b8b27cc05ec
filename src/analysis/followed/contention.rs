//! How often more than one thread can have allocated.
//!
//! Where threads allocate at the same time, it is a guess which of them a counter delta belongs to,
//! and so is which of their blocks a free took. The scored set: of what looks probable in a server
//! of four threads, a quarter to a half is right; with a thread that allocates now and then, 90 %.

use crate::model::FollowedChange;

/// Allocations before the share says something.
const MIN_ALLOCATIONS: u64 = 64;
/// From one contested allocation in this many on, all are.
const CONTESTED_IN: u64 = 8;

/// Allocations of a recording.
#[derive(Debug, Default)]
pub(super) struct Contention {
    allocations: u64,
    contested: u64,
}

impl Contention {
    /// Takes a delta that `several` threads can have made, or one. Says whether that is usual: then
    /// all are contested.
    pub(super) fn add(&mut self, change: &FollowedChange, several: bool) -> bool {
        let allocations = u64::try_from(change.allocations()).unwrap_or(0);
        self.allocations = self.allocations.saturating_add(allocations);
        if several {
            self.contested = self.contested.saturating_add(allocations);
        }
        self.allocations >= MIN_ALLOCATIONS
            && self.contested.saturating_mul(CONTESTED_IN) > self.allocations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CounterDelta;

    fn delta() -> FollowedChange {
        let small =
            CounterDelta { allocations: 1, allocated_bytes: 512, ..CounterDelta::default() };
        FollowedChange { small, ..FollowedChange::empty() }
    }

    #[test]
    fn allocations_of_one_thread_are_contested_beside_many_that_are() {
        let mut contention = Contention::default();
        let mut contested =
            |several, times| (0..times).map(|_| contention.add(&delta(), several)).last();
        assert_eq!(contested(false, 90), Some(false));
        assert_eq!(contested(true, 10), Some(false), "one in ten");
        assert_eq!(contested(true, 10), Some(true));
        assert_eq!(contested(false, 1), Some(true), "one in six");
    }
}
