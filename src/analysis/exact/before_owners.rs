//! Who owns the blocks of an exact recording that are older than it.

use rustc_hash::FxHashMap;

use super::ExactProfile;
use super::live_blocks::{BEFORE, OWNED};
use super::torch::TorchDevice;
use crate::analysis::owners::before_recording::{BlockOwners, OwnedBlocks};
use crate::model::{CudaIndex, Nanos, OwnerId};

/// Lists of owners, each with an account from [`OWNED`] on.
#[derive(Debug, Default)]
pub(super) struct BeforeOwners {
    lists: Vec<BlockOwners>,
    accounts: FxHashMap<BlockOwners, usize>,
}

impl BeforeOwners {
    /// The account of blocks with these owners.
    pub(super) fn account(&mut self, owners: &BlockOwners) -> usize {
        let next = OWNED + self.lists.len();
        *self.accounts.entry(owners.clone()).or_insert_with(|| {
            self.lists.push(owners.clone());
            next
        })
    }

    /// The owners of the blocks of an account, which is counted from [`OWNED`] on.
    pub(super) fn get(&self, number: usize) -> Option<&[(OwnerId, u64)]> {
        self.lists.get(number).map(|owners| &**owners)
    }
}

impl ExactProfile {
    /// Gives the blocks of a device that are older than the recording to those who owned them at `time`; says whether it is
    /// known which these blocks are.
    pub(crate) fn set_owners_of_before(
        &mut self,
        device: CudaIndex,
        owned: &OwnedBlocks,
        time: Nanos,
    ) -> bool {
        let Some(torch) = self.torch.get_mut(&device) else { return false };
        if torch.last_snapshot.is_none() {
            return false;
        }
        torch.set_owners_of_before(owned, time, &mut self.before_owners);
        true
    }
}

impl TorchDevice {
    fn set_owners_of_before(&mut self, owned: &OwnedBlocks, time: Nanos, lists: &mut BeforeOwners) {
        let size = |owners: &BlockOwners| owners.iter().map(|(_, bytes)| bytes).sum::<u64>();
        for (&address, owners) in owned {
            let live = self
                .ledger
                .live
                .get(&address)
                .filter(|block| block.account as usize == BEFORE && block.size == size(owners));
            if live.is_some() {
                self.ledger.set_owner(address, lists.account(owners));
            }
        }
        // Freed since the process was stopped: they were there at a height in between.
        for (address, died, block) in self.freed_after(time) {
            let is_it = |owners: &&BlockOwners| size(owners) == block.size;
            if let Some(owners) = owned.get(&address).filter(is_it) {
                self.ledger.set_owner_of_freed(block, died.0, lists.account(owners));
            }
        }
    }
}
