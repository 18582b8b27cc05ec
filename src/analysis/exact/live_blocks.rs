//! Bytes of each account now, at the peak, and in all.
//!
//! A new peak only begins an epoch: an account saves its level at its first change in it.

use rustc_hash::FxHashMap;

use super::extent::{BlockSizes, BlockStatistics};

pub(crate) const BEFORE: usize = 0;
pub(crate) const NO_EVENT: usize = 1;
/// The site was lost in a damaged part of the trace.
pub(crate) const NO_SITE: usize = 2;
/// Allocations too small for a stack, where others are sampled.
pub(crate) const SMALL: usize = 3;
pub(crate) const SITES: usize = 4;

/// The first account of owners of older memory; [`BEFORE`] has the rest.
pub(crate) const OWNED: usize = 1 << 31;

/// Bytes, and the bytes that they represent where stacks are sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ScaledBytes {
    pub(crate) bytes: u64,
    pub(crate) stands_for: u64,
}

impl ScaledBytes {
    fn add(&mut self, other: ScaledBytes) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.stands_for = self.stands_for.saturating_add(other.stands_for);
    }

    fn subtract(&mut self, other: ScaledBytes) {
        *self = self.without(other);
    }

    fn without(self, other: ScaledBytes) -> ScaledBytes {
        ScaledBytes {
            bytes: self.bytes.saturating_sub(other.bytes),
            stands_for: self.stands_for.saturating_sub(other.stands_for),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockOwner {
    pub(crate) account: usize,
    /// Number of allocations that it represents: 1 if each has a stack, 0 if it has none.
    pub(crate) stands_for: f64,
}

impl BlockOwner {
    pub(crate) fn sole(account: usize) -> BlockOwner {
        BlockOwner { account, stands_for: 1.0 }
    }

    pub(super) fn amount(self, bytes: u64) -> ScaledBytes {
        ScaledBytes { bytes, stands_for: (bytes as f64 * self.stands_for) as u64 }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TrackedBlock {
    pub(crate) size: u64,
    stands_for: u64,
    /// 0 if unknown.
    pub(crate) requested: u64,
    pub(crate) small: bool,
    pub(crate) account: u32,
    /// In nanoseconds since the recording began; 0 if earlier.
    pub(crate) allocated_at: u64,
}

impl TrackedBlock {
    pub(crate) fn new(
        extent: BlockSizes,
        stands_for: u64,
        account: usize,
        born: u64,
    ) -> TrackedBlock {
        let BlockSizes { size, requested, small } = extent;
        TrackedBlock {
            size,
            stands_for,
            requested,
            small,
            account: account as u32,
            allocated_at: born,
        }
    }

    pub(crate) fn extent(&self) -> BlockSizes {
        BlockSizes { size: self.size, requested: self.requested, small: self.small }
    }

    pub(crate) fn amount(&self) -> ScaledBytes {
        ScaledBytes { bytes: self.size, stands_for: self.stands_for }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SiteAccount {
    live: ScaledBytes,
    held: ScaledBytes,
    /// The part of `held` whose blocks died too young to count.
    short_lived: ScaledBytes,
    epoch: u32,
    pub(crate) allocated: ScaledBytes,
    pub(crate) count: u64,
    pub(crate) statistics: BlockStatistics,
}

#[derive(Debug, Default)]
pub(crate) struct LiveBlocks {
    pub(crate) live: FxHashMap<u64, TrackedBlock>,
    accounts: Vec<SiteAccount>,
    owned: Vec<SiteAccount>,
    pub(crate) total: u64,
    /// Live bytes at the peak.
    pub(crate) held: u64,
    /// The part whose allocation was recorded.
    pub(crate) known_at_peak: u64,
    epoch: u32,
    epoch_began: u64,
    /// In nanoseconds; younger blocks do not count.
    min_lifetime: u64,
}

impl LiveBlocks {
    pub(crate) fn new(min_lifetime: u64) -> LiveBlocks {
        LiveBlocks { min_lifetime, ..LiveBlocks::default() }
    }

    pub(crate) fn memory(&self) -> u64 {
        // A hash table is at times half empty.
        let blocks = self.live.len() * 2 * size_of::<(u64, TrackedBlock)>();
        let accounts = self.accounts.len() + self.owned.len();
        (blocks + accounts * size_of::<SiteAccount>()) as u64
    }

    fn account(&mut self, index: usize) -> &mut SiteAccount {
        let epoch = self.epoch;
        let (accounts, index) = match index.checked_sub(OWNED) {
            Some(owned) => (&mut self.owned, owned),
            None => (&mut self.accounts, index),
        };
        if index >= accounts.len() {
            accounts.resize(index + 1, SiteAccount::default());
        }
        let account = &mut accounts[index];
        if account.epoch != epoch {
            (account.epoch, account.held, account.short_lived) =
                (epoch, account.live, ScaledBytes::default());
        }
        account
    }

    /// Returns the replaced block, whose free was missed.
    pub(crate) fn allocate(
        &mut self,
        address: u64,
        extent: impl Into<BlockSizes>,
        owner: BlockOwner,
        born: u64,
    ) -> Option<TrackedBlock> {
        let replaced = self.free(address, born);
        let extent = extent.into();
        let amount = owner.amount(extent.size);
        let entry = self.account(owner.account);
        entry.live.add(amount);
        entry.allocated.add(amount);
        entry.count += 1;
        entry.statistics.add_block(extent);
        self.insert(address, TrackedBlock::new(extent, amount.stands_for, owner.account, born));
        replaced
    }

    fn insert(&mut self, address: u64, block: TrackedBlock) {
        self.total = self.total.saturating_add(block.size);
        self.live.insert(address, block);
    }

    /// Adds a block without an event; one from [`BEFORE`] also counts at the peak.
    pub(crate) fn find(&mut self, address: u64, extent: impl Into<BlockSizes>, account: usize) {
        let extent = extent.into();
        let size = extent.size;
        let amount = BlockOwner::sole(account).amount(size);
        let entry = self.account(account);
        entry.live.add(amount);
        if account == BEFORE {
            entry.held.add(amount);
            self.held += size;
        }
        self.insert(address, TrackedBlock::new(extent, amount.stands_for, account, 0));
    }

    /// Moves a live block from [`BEFORE`], also at the peak.
    pub(super) fn set_owner(&mut self, address: u64, account: usize) {
        let Some(block) = self.live.get_mut(&address) else { return };
        if block.account as usize != BEFORE {
            return;
        }
        block.account = account as u32;
        let amount = block.amount();
        let before = self.account(BEFORE);
        before.live.subtract(amount);
        before.held.subtract(amount);
        let owned = self.account(account);
        owned.live.add(amount);
        owned.held.add(amount);
    }

    /// The same for a freed block.
    pub(super) fn set_owner_of_freed(&mut self, block: TrackedBlock, died: u64, account: usize) {
        if block.account as usize == BEFORE && died > self.epoch_began {
            self.account(BEFORE).held.subtract(block.amount());
            self.account(account).held.add(block.amount());
        }
    }

    /// The block's event was late, so it did not live at the peak.
    pub(crate) fn remove_from_peak(&mut self, block: TrackedBlock) {
        self.account(BEFORE).held.subtract(block.amount());
        self.held = self.held.saturating_sub(block.size);
    }

    pub(crate) fn insert_restored(&mut self, address: u64, block: TrackedBlock) {
        self.restore(address, block);
    }

    pub(crate) fn free(&mut self, address: u64, now: u64) -> Option<TrackedBlock> {
        let block = self.live.remove(&address)?;
        let (began, least) = (self.epoch_began, self.min_lifetime);
        let account = self.account(block.account as usize);
        account.live.subtract(block.amount());
        let too_young = block.allocated_at > 0 && now.saturating_sub(block.allocated_at) < least;
        if too_young && block.allocated_at <= began {
            account.short_lived.add(block.amount());
        }
        self.total = self.total.saturating_sub(block.size);
        Some(block)
    }

    /// The next records list the live blocks again.
    pub(crate) fn forget_living(&mut self) {
        let addresses: Vec<u64> = self.live.keys().copied().collect();
        for address in addresses {
            // Unknown time of death: none is short-lived.
            self.free(address, u64::MAX);
        }
    }

    /// Valid only if no peak was recorded since the removal.
    pub(crate) fn restore(&mut self, address: u64, block: TrackedBlock) {
        self.account(block.account as usize).live.add(block.amount());
        self.insert(address, block);
    }

    /// Also at the peak, if it lived then.
    pub(crate) fn resize(&mut self, address: u64, size: u64) {
        let Some(block) = self.live.get_mut(&address) else { return };
        let old = block.amount();
        let share = size as f64 / old.bytes.max(1) as f64;
        block.size = size;
        block.stands_for = (old.stands_for as f64 * share) as u64;
        let (new, born, index) = (block.amount(), block.allocated_at, block.account as usize);
        let extent = block.extent();
        let at_peak = born <= self.epoch_began && index != NO_EVENT;
        let account = self.account(index);
        account.live.subtract(old);
        account.live.add(new);
        account.allocated.subtract(old);
        account.allocated.add(new);
        account
            .statistics
            .subtract(&BlockStatistics::new(BlockSizes { size: old.bytes, ..extent }));
        account.statistics.add(&BlockStatistics::new(extent));
        if at_peak {
            account.held.subtract(old);
            account.held.add(new);
            self.held = self.held.saturating_sub(old.bytes) + new.bytes;
        }
        self.total = self.total.saturating_sub(old.bytes) + new.bytes;
    }

    pub(crate) fn shrink_freed(&mut self, block: TrackedBlock, died: u64, less: u64) {
        let share = less as f64 / block.size.max(1) as f64;
        let amount =
            ScaledBytes { bytes: less, stands_for: (block.stands_for as f64 * share) as u64 };
        let at_peak = block.allocated_at <= self.epoch_began && died > self.epoch_began;
        let account = self.account(block.account as usize);
        account.allocated.subtract(amount);
        account.statistics.subtract(&BlockStatistics::new(block.extent()));
        account
            .statistics
            .add(&BlockStatistics::new(BlockSizes { size: block.size - less, ..block.extent() }));
        if at_peak {
            account.held.subtract(amount);
            self.held = self.held.saturating_sub(less);
        }
    }

    pub(crate) fn record_peak(&mut self, now: u64) {
        self.epoch += 1;
        self.epoch_began = now;
        self.held = self.total;
        self.known_at_peak = self.known();
    }

    pub(crate) fn known(&self) -> u64 {
        let unknown = self.accounts.iter().take(NO_EVENT + 1).chain(&self.owned);
        self.total.saturating_sub(unknown.map(|account| account.live.bytes).sum())
    }

    /// Without short-lived blocks; live blocks count by their age at `now`.
    pub(crate) fn at_peak(&self, now: u64) -> Vec<ScaledBytes> {
        let held = |account: &SiteAccount| self.held_at_peak(account);
        let mut all: Vec<ScaledBytes> = self.accounts.iter().map(held).collect();
        let owned = self.owned.iter().map(held);
        add_to_before(&mut all, owned);
        if self.min_lifetime > 0 {
            for block in self.live.values() {
                let young = block.allocated_at > 0
                    && now.saturating_sub(block.allocated_at) < self.min_lifetime;
                if young && block.allocated_at <= self.epoch_began {
                    let held = &mut all[block.account as usize];
                    *held = held.without(block.amount());
                }
            }
        }
        all
    }

    /// Without young blocks.
    pub(crate) fn at_end(&self, now: u64) -> Vec<ScaledBytes> {
        let mut held = vec![ScaledBytes::default(); self.accounts.len().max(1)];
        for block in self.live.values() {
            if block.allocated_at == 0
                || now.saturating_sub(block.allocated_at) >= self.min_lifetime
            {
                let account = block.account as usize;
                held[if account >= OWNED { BEFORE } else { account }].add(block.amount());
            }
        }
        held
    }

    fn held_at_peak(&self, account: &SiteAccount) -> ScaledBytes {
        match account.epoch == self.epoch {
            true => account.held.without(account.short_lived),
            false => account.live,
        }
    }

    /// Part of [`BEFORE`] in [`LiveBlocks::at_peak`] and [`LiveBlocks::at_end`].
    pub(super) fn owned(&self, at_peak: bool) -> impl Iterator<Item = (usize, u64)> + '_ {
        let held = move |account| if at_peak { self.held_at_peak(account) } else { account.live };
        self.owned.iter().enumerate().map(move |(owned, account)| (owned, held(account).bytes))
    }

    pub(crate) fn allocated(&self) -> Vec<ScaledBytes> {
        self.accounts.iter().map(|account| account.allocated).collect()
    }

    pub(crate) fn accounts(&self) -> &[SiteAccount] {
        &self.accounts
    }
}

fn add_to_before(all: &mut Vec<ScaledBytes>, owned: impl Iterator<Item = ScaledBytes>) {
    for amount in owned {
        if all.is_empty() {
            all.push(ScaledBytes::default());
        }
        all[BEFORE].add(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(ledger: &LiveBlocks) -> Vec<(usize, u64)> {
        let held = ledger.at_peak(1 << 40).into_iter().enumerate();
        held.map(|(i, h)| (i, h.bytes)).filter(|h| h.1 > 0).collect()
    }

    #[test]
    fn the_peak_keeps_what_was_live_then() {
        let mut ledger = LiveBlocks::new(0);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        ledger.allocate(0x2000, 50, BlockOwner::sole(4), 2);
        ledger.record_peak(2);
        ledger.free(0x1000, 3);
        ledger.allocate(0x3000, 10, BlockOwner::sole(5), 4);
        assert_eq!(peak(&ledger), [(3, 100), (4, 50)]);
        assert_eq!((ledger.held, ledger.total), (150, 60));
        ledger.allocate(0x4000, 500, BlockOwner::sole(3), 5);
        ledger.record_peak(5);
        ledger.free(0x2000, 6);
        ledger.free(0x4000, 6);
        assert_eq!(peak(&ledger), [(3, 500), (4, 50), (5, 10)]);
    }

    #[test]
    fn short_lived_blocks_do_not_count_at_the_peak() {
        let mut ledger = LiveBlocks::new(10);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        ledger.allocate(0x2000, 50, BlockOwner::sole(4), 2);
        ledger.record_peak(2);
        ledger.free(0x1000, 5);
        ledger.free(0x2000, 50);
        assert_eq!(peak(&ledger), [(4, 50)]);
        ledger.allocate(0x3000, 7, BlockOwner::sole(4), 60);
        assert_eq!(ledger.at_end(65)[4].bytes, 0);
        assert_eq!(ledger.at_end(70)[4].bytes, 7);
    }

    #[test]
    fn an_allocation_at_a_live_address_replaces_the_block() {
        let mut ledger = LiveBlocks::new(0);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        let replaced = ledger.allocate(0x1000, 30, BlockOwner::sole(4), 2);
        assert_eq!(replaced.map(|b| b.size), Some(100));
        assert_eq!(ledger.total, 30);
        ledger.resize(0x1000, 40);
        assert_eq!(ledger.total, 40);
        assert!(ledger.free(0x2000, 3).is_none());
    }

    #[test]
    fn older_blocks_count_at_the_peak() {
        let mut ledger = LiveBlocks::new(0);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        ledger.record_peak(1);
        ledger.find(0x9000, 1000, BEFORE);
        assert_eq!(peak(&ledger), [(BEFORE, 1000), (3, 100)]);
        assert_eq!(ledger.held, 1100);
    }

    #[test]
    fn short_lived_blocks_do_not_change_a_later_peak() {
        let mut ledger = LiveBlocks::new(10);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        ledger.allocate(0x2000, 50, BlockOwner::sole(3), 1);
        ledger.record_peak(1);
        ledger.free(0x1000, 5);
        ledger.allocate(0x3000, 900, BlockOwner::sole(4), 6);
        ledger.record_peak(6);
        assert_eq!(peak(&ledger), [(3, 50), (4, 900)]);
    }

    #[test]
    fn a_corrected_size_also_changes_the_peak() {
        let mut ledger = LiveBlocks::new(0);
        ledger.allocate(0x1000, 100, BlockOwner { account: 4, stands_for: 3.0 }, 1);
        ledger.record_peak(1);
        ledger.allocate(0x2000, 10, BlockOwner::sole(5), 2);
        ledger.resize(0x1000, 150);
        ledger.resize(0x2000, 20);
        assert_eq!(peak(&ledger), [(4, 150)]);
        assert_eq!((ledger.held, ledger.total), (150, 170));
        assert_eq!(ledger.at_peak(0)[4].stands_for, 450);
    }
}
