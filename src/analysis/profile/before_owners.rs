//! Gives older memory to its owners.

use super::Profile;
use crate::analysis::owners::owners_of_blocks;
use crate::model::{Nanos, OwnershipBreakdown};

impl Profile {
    /// If no snapshot has shown which blocks are older, this waits for the next one.
    pub(super) fn on_owned_blocks(&mut self, snapshot: &OwnershipBreakdown, stood_still: Nanos) {
        if snapshot.blocks.is_empty() {
            return;
        }
        self.memory.add_work(8 * snapshot.blocks.len());
        for (device, owned) in owners_of_blocks(snapshot, &mut self.stacks.owners) {
            let is_mapped = match &mut self.exact {
                Some(exact) => exact.set_older_owners(device, &owned, stood_still),
                None => {
                    let profile = self.profiles.get_mut(&device);
                    profile.is_some_and(|profile| profile.set_older_owners(&owned))
                }
            };
            if !is_mapped {
                self.owned_before.insert(device, owned);
            }
        }
    }
}
