//! A ledger of living blocks: who holds how much now, at the highest moment, and has allocated in all.
//!
//! What made up the highest moment is kept without copying it at each new one: reaching a new height
//! only begins a new epoch, and an account notes what it held at the height when it first changes after it.

use rustc_hash::FxHashMap;

use super::extent::{BlockSizes, BlockStatistics};

/// Accounts that are no sites.
pub(crate) const BEFORE: usize = 0;
pub(crate) const NO_EVENT: usize = 1;
/// Events whose site was lost with a damaged part of the trace.
pub(crate) const NO_SITE: usize = 2;
/// Allocations too small for a stack, where others are drawn as samples.
pub(crate) const SMALL: usize = 3;
/// The account of site 0.
pub(crate) const SITES: usize = 4;

/// The account of the first list of owners of memory that is older than the recording; [`BEFORE`] has what has no owner.
pub(crate) const OWNED: usize = 1 << 31;

/// Bytes, and the bytes that they stand for where only a sample of the allocations has a stack.
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

/// Whom a block belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockOwner {
    pub(crate) account: usize,
    /// How many of its like the block stands for: 1 where each one has a stack, 0 where it has none.
    pub(crate) stands_for: f64,
}

impl BlockOwner {
    /// An account that stands for itself.
    pub(crate) fn sole(account: usize) -> BlockOwner {
        BlockOwner { account, stands_for: 1.0 }
    }

    pub(super) fn amount(self, bytes: u64) -> ScaledBytes {
        ScaledBytes { bytes, stands_for: (bytes as f64 * self.stands_for) as u64 }
    }
}

/// A living block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrackedBlock {
    /// Bytes it takes.
    pub(crate) size: u64,
    stands_for: u64,
    /// Bytes asked for; 0 where that is not known.
    pub(crate) requested: u64,
    /// Whether it is of the small pool.
    pub(crate) small: bool,
    pub(crate) account: u32,
    /// When it was allocated, in nanoseconds since the recording began; 0 when before.
    pub(crate) allocated_at: u64,
}

impl TrackedBlock {
    /// A block of `extent` that stands for `stands_for` bytes.
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

/// What one site holds and held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SiteAccount {
    /// Held now.
    live: ScaledBytes,
    held: ScaledBytes,
    /// Of what was held at the height, that of blocks that died too young to count.
    short_lived: ScaledBytes,
    epoch: u32,
    /// Allocated in all.
    pub(crate) allocated: ScaledBytes,
    /// Allocations in all.
    pub(crate) count: u64,
    /// The statistics of all that was allocated.
    pub(crate) statistics: BlockStatistics,
}

/// The blocks of one address space.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks {
    pub(crate) live: FxHashMap<u64, TrackedBlock>,
    accounts: Vec<SiteAccount>,
    /// Accounts from [`OWNED`] on.
    owned: Vec<SiteAccount>,
    /// Bytes held now by all.
    pub(crate) total: u64,
    /// Bytes held by all at the height.
    pub(crate) held: u64,
    /// Of these, those whose allocation was recorded.
    pub(crate) known_at_peak: u64,
    epoch: u32,
    epoch_began: u64,
    /// Blocks that lived for less, in nanoseconds, count neither at the height nor at the end.
    min_lifetime: u64,
}

impl LiveBlocks {
    /// An empty one that counts only blocks that live for `least_life` nanoseconds.
    pub(crate) fn new(min_lifetime: u64) -> LiveBlocks {
        LiveBlocks { min_lifetime, ..LiveBlocks::default() }
    }

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        // A table of addresses is half empty at times.
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

    /// Takes a new block; returns the one whose place it takes, which died unseen.
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

    /// Takes a block that was there already: one from before counts as held at the height too.
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

    /// The owners of a living block that is older than the recording have become known: from now on, and at the height, it
    /// belongs to their account.
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

    /// The same of a block that was freed at `died` already.
    pub(super) fn set_owner_of_freed(&mut self, block: TrackedBlock, died: u64, account: usize) {
        if block.account as usize == BEFORE && died > self.epoch_began {
            self.account(BEFORE).held.subtract(block.amount());
            self.account(account).held.add(block.amount());
        }
    }

    /// One that was found and taken for a block from before had only been ahead of its event: it was not held at the height.
    pub(crate) fn was_not_before(&mut self, block: TrackedBlock) {
        self.account(BEFORE).held.subtract(block.amount());
        self.held = self.held.saturating_sub(block.size);
    }

    /// Takes a block that an earlier part of the recording saw being born.
    pub(crate) fn insert_restored(&mut self, address: u64, block: TrackedBlock) {
        self.restore(address, block);
    }

    /// Lets a block go.
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

    /// Lets all blocks go: which of them still live is told anew.
    pub(crate) fn forget_living(&mut self) {
        let addresses: Vec<u64> = self.live.keys().copied().collect();
        for address in addresses {
            // None of them died young: when they died is not known.
            self.free(address, u64::MAX);
        }
    }

    /// Takes back a block that was let go, with nothing reached in between that it was part of.
    pub(crate) fn restore(&mut self, address: u64, block: TrackedBlock) {
        self.account(block.account as usize).live.add(block.amount());
        self.insert(address, block);
    }

    /// Corrects the size of a block, as of now and as of the height if it lived then.
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

    /// Corrects the size of a block that was let go at `died`, by this many bytes less.
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

    /// Remembers this moment, `now`, as the highest.
    pub(crate) fn record_peak(&mut self, now: u64) {
        self.epoch += 1;
        self.epoch_began = now;
        self.held = self.total;
        self.known_at_peak = self.known();
    }

    /// Bytes of live blocks whose allocation was recorded.
    pub(crate) fn known(&self) -> u64 {
        let unknown = self.accounts.iter().take(NO_EVENT + 1).chain(&self.owned);
        self.total.saturating_sub(unknown.map(|account| account.live.bytes).sum())
    }

    /// What each account held at the height; blocks that died too young are left out.
    ///
    /// A block that lives counts by its age at `now`: whether it will live for longer is not known.
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

    /// What each account holds now, at `now`; blocks too young are left out.
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

    /// What is older than the recording and has owners, at the height or now, by account; all of it is a part of what
    /// [`BEFORE`] has in [`LiveBlocks::at_peak`] and [`LiveBlocks::at_end`].
    pub(super) fn owned(&self, at_peak: bool) -> impl Iterator<Item = (usize, u64)> + '_ {
        let held = move |account| if at_peak { self.held_at_peak(account) } else { account.live };
        self.owned.iter().enumerate().map(move |(owned, account)| (owned, held(account).bytes))
    }

    /// What each account allocated in all.
    pub(crate) fn allocated(&self) -> Vec<ScaledBytes> {
        self.accounts.iter().map(|account| account.allocated).collect()
    }

    /// All accounts by index.
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
    fn the_height_is_what_was_held_when_it_was_reached() {
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
    fn blocks_that_die_young_are_taken_out_of_the_height() {
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
    fn a_block_at_a_place_taken_ends_the_one_before() {
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
    fn what_was_there_before_belongs_to_the_height_too() {
        let mut ledger = LiveBlocks::new(0);
        ledger.allocate(0x1000, 100, BlockOwner::sole(3), 1);
        ledger.record_peak(1);
        ledger.find(0x9000, 1000, BEFORE);
        assert_eq!(peak(&ledger), [(BEFORE, 1000), (3, 100)]);
        assert_eq!(ledger.held, 1100);
    }

    #[test]
    fn what_died_young_does_not_count_against_a_later_height() {
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
    fn a_corrected_size_holds_for_the_height_too() {
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
