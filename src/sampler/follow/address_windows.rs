//! Matches address readings to counter deltas.
//!
//! A reading is true for one state of the running totals. If the poller saw this state at the end
//! of a delta, that delta gets all addresses since the last reading; else the next reading does.

use std::collections::VecDeque;

use crate::model::{FollowedAddresses, FollowedChange};
use crate::torch::{AddressChanges, AddressDelta, AllocationTotals};

const MAX_WAITING: usize = 1 << 16;

#[derive(Default)]
pub(super) struct AddressWindows {
    waiting: VecDeque<(u64, AddressDelta)>,
    /// Since the last delta with addresses; `None` while that delta's allocated addresses are
    /// unknown.
    unmatched: Option<AddressChanges>,
    changes: u32,
}

impl AddressWindows {
    pub(super) fn add(&mut self, readings: Vec<(u64, AddressDelta)>) {
        self.waiting.extend(readings);
        if self.waiting.len() > MAX_WAITING {
            self.forget();
        }
    }

    pub(super) fn forget(&mut self) {
        *self = AddressWindows::default();
    }

    /// `totals` are those after the delta.
    pub(super) fn complete(&mut self, change: &mut FollowedChange, totals: AllocationTotals) {
        self.changes = self.changes.saturating_add(1);
        if change.totals_reset {
            self.waiting.retain(|(ended, _)| *ended > change.after.0);
            self.unmatched = None;
            return;
        }
        while let Some((_, reading)) = self.waiting.front() {
            let at = reading.totals;
            if at.allocations > totals.allocations || at.frees > totals.frees {
                return;
            }
            let Some((_, reading)) = self.waiting.pop_front() else { return };
            let is_end = at == totals;
            let found = match (self.unmatched.take(), reading.changes) {
                (Some(before), Some(then)) => Some(before.followed_by(then)),
                _ => None,
            };
            if !is_end {
                self.unmatched = found;
                continue;
            }
            let changes = std::mem::take(&mut self.changes);
            self.unmatched = Some(AddressChanges::default());
            let fits = |list: usize| list <= FollowedAddresses::MAX;
            let found = found.filter(|f| fits(f.allocated.len()) && fits(f.freed.len()));
            change.addresses = found.map(|AddressChanges { allocated, freed }| {
                Box::new(FollowedAddresses { changes, allocated, freed })
            });
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AddressedBlock, Nanos};
    use crate::torch::MissingChanges;

    fn change(totals: (i64, i64)) -> (FollowedChange, AllocationTotals) {
        (FollowedChange::empty(), AllocationTotals { allocations: totals.0, frees: totals.1 })
    }

    fn block(address: u64) -> AddressedBlock {
        AddressedBlock { address, size: 512, requested: 512 }
    }

    fn reading(totals: (i64, i64), allocated: &[u64], freed: &[u64]) -> (u64, AddressDelta) {
        let totals = AllocationTotals { allocations: totals.0, frees: totals.1 };
        let allocated = allocated.iter().map(|at| block(*at)).collect();
        let changes = Some(AddressChanges { allocated, freed: freed.to_vec() });
        (1, AddressDelta { totals, changes, missing: MissingChanges::default() })
    }

    fn first(totals: (i64, i64)) -> (u64, AddressDelta) {
        let (time, mut reading) = reading(totals, &[], &[]);
        reading.changes = None;
        (time, reading)
    }

    type Summary = Option<(u32, Vec<u64>, Vec<u64>)>;

    fn summary(windows: &mut AddressWindows, totals: &[(i64, i64)]) -> Vec<Summary> {
        let summary = |totals: &(i64, i64)| {
            let (mut change, totals) = change(*totals);
            windows.complete(&mut change, totals);
            let found = *change.addresses?;
            let allocated = found.allocated.iter().map(|block| block.address).collect();
            Some((found.changes, allocated, found.freed))
        };
        totals.iter().map(summary).collect()
    }

    #[test]
    fn a_reading_goes_to_the_delta_with_its_totals() {
        let mut windows = AddressWindows::default();
        windows.add(vec![first((1, 0)), reading((2, 0), &[7], &[]), reading((3, 1), &[9], &[7])]);
        assert_eq!(
            summary(&mut windows, &[(1, 0), (2, 0), (3, 0), (3, 1)]),
            [None, Some((1, vec![7], vec![])), None, Some((2, vec![9], vec![7]))]
        );
    }

    /// Block 7 was allocated and freed in between; 5 was freed and allocated again.
    #[test]
    fn an_unseen_state_goes_to_the_next_delta() {
        let mut windows = AddressWindows::default();
        let between = reading((2, 1), &[7], &[5]);
        windows.add(vec![first((1, 0)), between, reading((4, 2), &[5, 8], &[7])]);
        let found = summary(&mut windows, &[(1, 0), (4, 2)]);
        assert_eq!(found, [None, Some((1, vec![5, 8], vec![5]))]);
    }

    #[test]
    fn a_delta_needs_known_earlier_allocations_to_get_addresses() {
        let mut windows = AddressWindows::default();
        windows.add(vec![first((1, 0)), reading((2, 0), &[7], &[]), reading((3, 0), &[8], &[])]);
        assert_eq!(summary(&mut windows, &[(2, 0), (3, 0)]), [None, Some((1, vec![8], vec![]))]);
        windows.add(vec![first((5, 0)), reading((6, 0), &[9], &[])]);
        let found = summary(&mut windows, &[(4, 0), (5, 0), (6, 0)]);
        assert_eq!(found, [None, None, Some((1, vec![9], vec![]))]);
    }

    #[test]
    fn later_readings_belong_to_later_deltas() {
        let mut windows = AddressWindows::default();
        windows.add(vec![first((1, 0))]);
        assert_eq!(summary(&mut windows, &[(1, 0), (2, 0)]), [None, None]);
        windows.add(vec![reading((2, 0), &[7], &[]), reading((3, 0), &[8], &[])]);
        assert_eq!(summary(&mut windows, &[(3, 0)]), [Some((2, vec![7, 8], vec![]))]);
    }

    #[test]
    fn totals_from_before_a_reset_are_dropped() {
        let mut windows = AddressWindows::default();
        windows.add(vec![first((9, 0)), reading((10, 0), &[7], &[])]);
        assert_eq!(summary(&mut windows, &[(9, 0)]), [None]);
        let (mut reset, totals) = change((1, 0));
        (reset.totals_reset, reset.after) = (true, Nanos(2));
        windows.complete(&mut reset, totals);
        windows.add(vec![(3, reading((1, 0), &[7, 8], &[]).1), (3, reading((2, 0), &[9], &[]).1)]);
        assert_eq!(summary(&mut windows, &[(2, 0), (3, 0)]), [None, None]);
        windows.add(vec![(4, reading((4, 0), &[6], &[]).1)]);
        assert_eq!(summary(&mut windows, &[(4, 0)]), [Some((2, vec![6], vec![]))]);
    }
}
