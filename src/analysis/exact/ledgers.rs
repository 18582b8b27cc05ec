//! Live blocks and allocations by account.

use super::live_blocks::{BEFORE, LiveBlocks, OWNED};
use super::{ExactProfile, kind_of};
use crate::model::{CounterSnapshot, CudaIndex, MemoryKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountedBlock {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes that it represents where only a sample has stacks; else its size.
    pub(crate) stands_for: u64,
    pub(crate) account: usize,
    /// In nanoseconds since the recording began; 0 if unknown.
    pub(crate) allocated_at: u64,
}

impl AccountedBlock {
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

    /// Account number, bytes, represented bytes and allocations, for each account.
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

    /// The counters at the last event, if it had them.
    pub(crate) fn levels(&self, device: CudaIndex) -> Option<CounterSnapshot> {
        self.torch.get(&device)?.levels
    }
}
