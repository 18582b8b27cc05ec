//! Owners of older blocks in exact recordings.

use rustc_hash::FxHashMap;

use super::ExactProfile;
use super::live_blocks::{BEFORE, OWNED};
use super::torch::TorchDevice;
use crate::analysis::owners::{BlockOwners, OwnedBlocks};
use crate::model::{CudaIndex, Nanos, OwnerId};

/// Lists of owners, with accounts from [`OWNED`] on.
#[derive(Debug, Default)]
pub(super) struct BeforeOwners {
    lists: Vec<BlockOwners>,
    accounts: FxHashMap<BlockOwners, usize>,
}

impl BeforeOwners {
    pub(super) fn account(&mut self, owners: &BlockOwners) -> usize {
        let next = OWNED + self.lists.len();
        *self.accounts.entry(owners.clone()).or_insert_with(|| {
            self.lists.push(owners.clone());
            next
        })
    }

    /// The owners of account [`OWNED`] + `number`.
    pub(super) fn get(&self, number: usize) -> Option<&[(OwnerId, u64)]> {
        self.lists.get(number).map(|owners| &**owners)
    }
}

impl ExactProfile {
    /// Gives older blocks to their owners at `time`; returns whether these blocks are known.
    pub(crate) fn set_older_owners(
        &mut self,
        device: CudaIndex,
        owned: &OwnedBlocks,
        time: Nanos,
    ) -> bool {
        let Some(torch) = self.torch.get_mut(&device) else { return false };
        if torch.last_snapshot.is_none() {
            return false;
        }
        torch.set_older_owners(owned, time, &mut self.before_owners);
        true
    }
}

impl TorchDevice {
    fn set_older_owners(&mut self, owned: &OwnedBlocks, time: Nanos, lists: &mut BeforeOwners) {
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
        // Freed since the snapshot: they may have lived at a peak in between.
        for (address, died, block) in self.freed_after(time) {
            let is_it = |owners: &&BlockOwners| size(owners) == block.size;
            if let Some(owners) = owned.get(&address).filter(is_it) {
                self.ledger.set_owner_of_freed(block, died.0, lists.account(owners));
            }
        }
    }
}
