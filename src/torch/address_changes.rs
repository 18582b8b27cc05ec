//! Differences between two reads of the address tables.

use rustc_hash::FxHashSet;

use super::polled::AllocationTotals;
use crate::model::AddressedBlock;
use crate::target::Addr;

/// What changed between two reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct AddressChanges {
    pub allocated: Vec<AddressedBlock>,
    pub freed: Vec<u64>,
}

impl AddressChanges {
    /// These changes, followed by `then`.
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

/// Counter changes that the tables lack; negative: the tables are ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct MissingChanges {
    pub allocations: i64,
    pub frees: i64,
    pub allocated_bytes: i64,
}

impl MissingChanges {
    /// Whether tables and counters agree.
    pub fn is_nothing(self) -> bool {
        self == MissingChanges::default()
    }

    /// The sum.
    pub fn and(self, other: MissingChanges) -> MissingChanges {
        MissingChanges {
            allocations: self.allocations.saturating_add(other.allocations),
            frees: self.frees.saturating_add(other.frees),
            allocated_bytes: self.allocated_bytes.saturating_add(other.allocated_bytes),
        }
    }

    pub(super) fn is_late(self) -> bool {
        let is_other = self.allocations == 0 && self.allocated_bytes != 0;
        self.allocations < 0 || self.frees < 0 || is_other
    }
}

/// Table changes, with the counters at that instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressDelta {
    /// The counters' totals.
    pub totals: AllocationTotals,
    /// Changes since the previous read; `None` for the first one, and if too many.
    pub changes: Option<AddressChanges>,
    /// What the tables should show and do not.
    pub missing: MissingChanges,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressOutcome {
    /// All changed tables were read.
    Read(AddressDelta),
    /// Read, with changes that earlier reads missed: a table had changed unnoticed.
    Late {
        /// The changes found.
        reading: AddressDelta,
        /// Recent reads that may have missed them.
        readings: usize,
    },
    /// No allocation or free since the last read.
    Unchanged,
    /// Changing: a thread is between tables and counters.
    Moving,
}

/// Entries only in `new` and only in `old`, both sorted. A replaced block at the same address is in
/// both.
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
