//! What is older than a recording goes to its owners as soon as both are known: who they are, and which blocks are older.

use super::Profile;
use crate::analysis::owners::before_recording::owners_of_blocks;
use crate::model::{Nanos, OwnershipBreakdown};

impl Profile {
    /// Gives what is older than the recording to its owners; where no map has told of it yet, when one does.
    pub(super) fn on_owned_blocks(&mut self, snapshot: &OwnershipBreakdown, stood_still: Nanos) {
        if snapshot.blocks.is_empty() {
            return;
        }
        self.memory.add_work(8 * snapshot.blocks.len());
        for (device, owned) in owners_of_blocks(snapshot, &mut self.stacks.owners) {
            let is_mapped = match &mut self.exact {
                Some(exact) => exact.set_owners_of_before(device, &owned, stood_still),
                None => {
                    let profile = self.profiles.get_mut(&device);
                    profile.is_some_and(|profile| profile.set_owners_of_before(&owned))
                }
            };
            if !is_mapped {
                self.owned_before.insert(device, owned);
            }
        }
    }
}
