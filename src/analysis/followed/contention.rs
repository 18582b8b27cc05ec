//! How often more than one thread can have allocated.
//!
//! Where threads allocate at the same time, `decoder/threads` finds out which of them a counter
//! delta belongs to, once the whole recording is known. Which of their blocks a free took stays a
//! guess. The scored set: of the live blocks that would look probable in a server of four threads, a
//! quarter to four fifths are right; beside a thread that made one allocation in 23, half; in 46 or
//! fewer, 96 % and more.

use crate::model::FollowedChange;

/// So many say nothing yet.
const FEW: u64 = 32;
/// From one contested allocation in this many on, all are.
const CONTESTED_IN: u64 = 32;

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
        self.is_usual()
    }

    /// Whether more than one thread can have allocated, as a rule.
    pub(super) fn is_usual(&self) -> bool {
        self.contested > FEW + self.allocations / CONTESTED_IN
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
        assert_eq!(contested(true, FEW), Some(false), "few");
        assert_eq!(contested(true, 4), Some(true));
        assert_eq!(contested(false, 1), Some(true), "all are");
        assert_eq!(contested(false, 32 * 32), Some(false), "few of many");
    }
}
