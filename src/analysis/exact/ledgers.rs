//! The ledgers of an exact recording as they stand: every living block with its account, and what each account allocated.

use super::live_blocks::{BEFORE, LiveBlocks, OWNED};
use super::{ExactProfile, kind_of};
use crate::model::{CounterSnapshot, CudaIndex, MemoryKind};

/// A living block and the account it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountedBlock {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes that it stands for where only a sample of the allocations has a stack; else its size.
    pub(crate) stands_for: u64,
    pub(crate) account: usize,
    /// In nanoseconds since the recording began; 0 where that was not seen.
    pub(crate) allocated_at: u64,
}

impl AccountedBlock {
    /// Whether it is older than the recording.
    pub(crate) fn is_from_before(&self) -> bool {
        self.account == BEFORE || self.account >= OWNED
    }
}

impl ExactProfile {
    fn ledger(&self, kind: MemoryKind) -> Option<&LiveBlocks> {
        match kind {
            MemoryKind::Torch(device) => Some(&self.torch.get(&device)?.ledger),
            other => Some(&self.others.get(&kind_of(other)?)?.ledger),
        }
    }

    /// The blocks that live now, by address.
    pub(crate) fn living(&self, kind: MemoryKind) -> Vec<AccountedBlock> {
        let Some(ledger) = self.ledger(kind) else { return Vec::new() };
        let block = |(&address, block): (&u64, &super::live_blocks::TrackedBlock)| {
            let amount = block.amount();
            AccountedBlock {
                address,
                size: amount.bytes,
                stands_for: amount.stands_for,
                account: block.account as usize,
                allocated_at: block.allocated_at,
            }
        };
        let mut blocks: Vec<AccountedBlock> = ledger.live.iter().map(block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }

    /// What each account allocated so far: its number, bytes, the bytes that these stand for, and allocations.
    pub(crate) fn allocated_by_account(
        &self,
        kind: MemoryKind,
    ) -> impl Iterator<Item = (usize, u64, u64, u64)> + '_ {
        let accounts = self.ledger(kind).map_or(&[][..], LiveBlocks::accounts);
        let sums = accounts.iter().enumerate().filter(|(_, account)| account.count > 0);
        sums.map(|(number, account)| {
            (number, account.allocated.bytes, account.allocated.stands_for, account.count)
        })
    }

    /// The allocator's counters at the last event that told them.
    pub(crate) fn levels(&self, device: CudaIndex) -> Option<CounterSnapshot> {
        self.torch.get(&device)?.levels
    }
}
