//! What a reading of the allocator's addresses tells: which blocks are new, and which are gone.

use rustc_hash::FxHashSet;

use super::polled::AllocationTotals;
use crate::model::AddressedBlock;
use crate::target::Addr;

/// What changed in the tables between two readings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressChanges {
    /// Blocks that are allocated now and were not before.
    pub allocated: Vec<AddressedBlock>,
    /// Addresses that were allocated before and are not now.
    pub freed: Vec<u64>,
}

impl AddressChanges {
    /// What these and later changes are together.
    pub fn followed_by(self, then: AddressChanges) -> AddressChanges {
        if self == AddressChanges::default() {
            return then;
        }
        let AddressChanges { mut allocated, mut freed } = self;
        let gone: FxHashSet<u64> = then.freed.iter().copied().collect();
        let came_and_went: FxHashSet<u64> =
            allocated.iter().map(|block| block.address).filter(|at| gone.contains(at)).collect();
        allocated.retain(|block| !came_and_went.contains(&block.address));
        freed.extend(then.freed.into_iter().filter(|at| !came_and_went.contains(at)));
        freed.sort_unstable();
        freed.dedup();
        allocated.extend(then.allocated);
        allocated.sort_unstable();
        AddressChanges { allocated, freed }
    }
}

/// What the counters have of the time between two readings and the tables do not tell; less than nothing where these tell what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UntoldChanges {
    /// Blocks that were allocated.
    pub allocations: i64,
    /// Blocks that were freed.
    pub frees: i64,
    /// The bytes of those that were allocated.
    pub allocated_bytes: i64,
}

impl UntoldChanges {
    /// Whether the tables tell what the counters have.
    pub fn is_nothing(self) -> bool {
        self == UntoldChanges::default()
    }

    /// That of both together.
    pub fn and(self, other: UntoldChanges) -> UntoldChanges {
        UntoldChanges {
            allocations: self.allocations.saturating_add(other.allocations),
            frees: self.frees.saturating_add(other.frees),
            allocated_bytes: self.allocated_bytes.saturating_add(other.allocated_bytes),
        }
    }

    /// Whether there are more changes than the counters have, or others.
    pub(super) fn is_late(self) -> bool {
        let is_other = self.allocations == 0 && self.allocated_bytes != 0;
        self.allocations < 0 || self.frees < 0 || is_other
    }
}

/// What the tables said at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressReading {
    /// The running totals of the counters at this instant.
    pub totals: AllocationTotals,
    /// What changed since the reading before; `None` for the first one, and where it was too much to tell.
    pub changes: Option<AddressChanges>,
    /// What it should tell and does not.
    pub untold: UntoldChanges,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressOutcome {
    /// The tables that have changed were read.
    Read(AddressReading),
    /// They were, and have changes that readings before should have told: a table had changed unnoticed.
    Late {
        /// What was read.
        reading: AddressReading,
        /// How many of the last readings may be those.
        readings: usize,
    },
    /// Nothing was allocated or freed since the last reading.
    Unchanged,
    /// The target changed the tables meanwhile: a thread is between them and the counters, or has gone on.
    Moving,
}

/// What is only in `new` and only in `old`; both are in order. A block at the address of another one, which was cut or joined to it, is in both.
pub(super) fn differences(
    old: &[(u64, Addr)],
    new: &[(u64, Addr)],
    allocated: &mut Vec<(u64, Addr)>,
    freed: &mut Vec<u64>,
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some((a, _)), b) if b.is_none_or(|(b, _)| a <= b) => {
                freed.push(*a);
                old.next();
            }
            (_, Some(entry)) => {
                allocated.push(**entry);
                new.next();
            }
            (_, None) => return,
        }
    }
}
