//! A ledger of living blocks: who holds how much now, at the highest moment, and has allocated in all.
//!
//! What made up the highest moment is kept without copying it at each new one: reaching a new height
//! only begins a new epoch, and an account notes what it held at the height when it first changes after it.

use rustc_hash::FxHashMap;

/// Accounts that are no sites.
pub(crate) const BEFORE: usize = 0;
pub(crate) const NO_EVENT: usize = 1;
/// Events whose site was lost with a damaged part of the trace.
pub(crate) const NO_SITE: usize = 2;
/// The account of site 0.
pub(crate) const SITES: usize = 3;

/// A living block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Bytes it takes.
    pub(crate) size: u64,
    pub(crate) account: u32,
    /// When it was allocated, in nanoseconds since the recording began; 0 when before.
    pub(crate) born: u64,
}

/// What one site holds and held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// Bytes held now.
    pub(crate) live: u64,
    held: u64,
    /// Of what was held at the height, bytes of blocks that died too young to count.
    young: u64,
    epoch: u32,
    /// Bytes allocated in all.
    pub(crate) allocated: u64,
    /// Allocations in all.
    pub(crate) count: u64,
}

/// The blocks of one address space.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) live: FxHashMap<u64, Block>,
    accounts: Vec<Account>,
    /// Bytes held now by all.
    pub(crate) total: u64,
    /// Bytes held by all at the height.
    pub(crate) held: u64,
    epoch: u32,
    epoch_began: u64,
    /// Blocks that lived for less, in nanoseconds, count neither at the height nor at the end.
    least_life: u64,
}

impl Ledger {
    /// An empty one that counts only blocks that live for `least_life` nanoseconds.
    pub(crate) fn new(least_life: u64) -> Ledger {
        Ledger { least_life, ..Ledger::default() }
    }

    fn account(&mut self, index: usize) -> &mut Account {
        if index >= self.accounts.len() {
            self.accounts.resize(index + 1, Account::default());
        }
        let epoch = self.epoch;
        let account = &mut self.accounts[index];
        if account.epoch != epoch {
            (account.epoch, account.held, account.young) = (epoch, account.live, 0);
        }
        account
    }

    /// Takes a new block; returns the one whose place it takes, which died unseen.
    pub(crate) fn allocate(
        &mut self,
        address: u64,
        size: u64,
        account: usize,
        born: u64,
    ) -> Option<Block> {
        let replaced = self.free(address, born);
        let entry = self.account(account);
        entry.live += size;
        entry.allocated += size;
        entry.count += 1;
        self.total += size;
        self.live.insert(address, Block { size, account: account as u32, born });
        replaced
    }

    /// Takes a block that was there already: it counts as held at the height too.
    pub(crate) fn find(&mut self, address: u64, size: u64, account: usize) {
        let entry = self.account(account);
        entry.live += size;
        if account == BEFORE {
            entry.held += size;
            self.held += size;
        }
        self.total += size;
        self.live.insert(address, Block { size, account: account as u32, born: 0 });
    }

    /// Lets a block go.
    pub(crate) fn free(&mut self, address: u64, now: u64) -> Option<Block> {
        let block = self.live.remove(&address)?;
        let (began, least) = (self.epoch_began, self.least_life);
        let account = self.account(block.account as usize);
        account.live = account.live.saturating_sub(block.size);
        let too_young = block.born > 0 && now.saturating_sub(block.born) < least;
        if too_young && block.born <= began {
            account.young += block.size;
        }
        self.total = self.total.saturating_sub(block.size);
        Some(block)
    }

    /// Corrects the size of a block.
    pub(crate) fn resize(&mut self, address: u64, size: u64) {
        let Some(block) = self.live.get_mut(&address) else { return };
        let (old, index) = (std::mem::replace(&mut block.size, size), block.account as usize);
        let account = self.account(index);
        account.live = account.live.saturating_sub(old) + size;
        self.total = self.total.saturating_sub(old) + size;
    }

    /// Remembers this moment, `now`, as the highest.
    pub(crate) fn reach(&mut self, now: u64) {
        self.epoch += 1;
        self.epoch_began = now;
        self.held = self.total;
    }

    /// Bytes that each account held at the height; those of blocks that died too young are left out.
    pub(crate) fn at_height(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.accounts.iter().enumerate().map(|(index, account)| {
            let held = if account.epoch == self.epoch { account.held } else { account.live };
            (index, held.saturating_sub(account.young))
        })
    }

    /// Bytes that each account holds now, at `now`; blocks too young are left out.
    pub(crate) fn at_end(&self, now: u64) -> FxHashMap<usize, u64> {
        let mut held = FxHashMap::default();
        for block in self.live.values() {
            if block.born == 0 || now.saturating_sub(block.born) >= self.least_life {
                *held.entry(block.account as usize).or_default() += block.size;
            }
        }
        held
    }

    /// All accounts by index.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (usize, &Account)> {
        self.accounts.iter().enumerate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn height(ledger: &Ledger) -> Vec<(usize, u64)> {
        ledger.at_height().filter(|h| h.1 > 0).collect()
    }

    #[test]
    fn the_height_is_what_was_held_when_it_was_reached() {
        let mut ledger = Ledger::new(0);
        ledger.allocate(0x1000, 100, 3, 1);
        ledger.allocate(0x2000, 50, 4, 2);
        ledger.reach(2);
        ledger.free(0x1000, 3);
        ledger.allocate(0x3000, 10, 5, 4);
        assert_eq!(height(&ledger), [(3, 100), (4, 50)]);
        assert_eq!((ledger.held, ledger.total), (150, 60));
        ledger.allocate(0x4000, 500, 3, 5);
        ledger.reach(5);
        ledger.free(0x2000, 6);
        ledger.free(0x4000, 6);
        assert_eq!(height(&ledger), [(3, 500), (4, 50), (5, 10)]);
    }

    #[test]
    fn blocks_that_die_young_are_taken_out_of_the_height() {
        let mut ledger = Ledger::new(10);
        ledger.allocate(0x1000, 100, 3, 1);
        ledger.allocate(0x2000, 50, 4, 2);
        ledger.reach(2);
        ledger.free(0x1000, 5);
        ledger.free(0x2000, 50);
        assert_eq!(height(&ledger), [(4, 50)]);
        ledger.allocate(0x3000, 7, 4, 60);
        assert_eq!(ledger.at_end(65).get(&4), None);
        assert_eq!(ledger.at_end(70).get(&4), Some(&7));
    }

    #[test]
    fn a_block_at_a_place_taken_ends_the_one_before() {
        let mut ledger = Ledger::new(0);
        ledger.allocate(0x1000, 100, 3, 1);
        let replaced = ledger.allocate(0x1000, 30, 4, 2);
        assert_eq!(replaced.map(|b| b.size), Some(100));
        assert_eq!(ledger.total, 30);
        ledger.resize(0x1000, 40);
        assert_eq!(ledger.total, 40);
        assert!(ledger.free(0x2000, 3).is_none());
    }

    #[test]
    fn what_was_there_before_belongs_to_the_height_too() {
        let mut ledger = Ledger::new(0);
        ledger.allocate(0x1000, 100, 3, 1);
        ledger.reach(1);
        ledger.find(0x9000, 1000, BEFORE);
        assert_eq!(height(&ledger), [(BEFORE, 1000), (3, 100)]);
        assert_eq!(ledger.held, 1100);
    }
}
