//! Addresses of allocated blocks, for a fast poller. `NativeCachingAllocator::allocated_blocks`
//! (c10/cuda/CUDACachingAllocator.cpp, torch 2.3+) has 67 tables (`kNumMutexShard`); one short read
//! of their adjacent sizes shows which to read (`table_copies.rs`).

use super::address_changes::{
    AddressChanges, AddressDelta, AddressOutcome, MissingChanges, differences,
};
use super::containers::FlatTable;
use super::layout::BlockLayout;
use super::polled::{CounterPoller, PolledCounters, PoolCounters};
use super::table_copies::{TABLES, TableCopies, TableHeads};
use crate::model::AddressedBlock;
use crate::target::{Addr, Memory, MemoryError};

/// In the allocator; the tables were seen at 0x1100.
const SEARCHED: usize = 0x4000;
/// Rounds of reading changed tables again; each takes 2 to 4 µs.
const MAX_ROUNDS: usize = 8;
/// Takes little longer than a check.
const VERIFIED_AT_ONCE: usize = 6;

/// `None` up to torch 2.2.
pub(super) fn find(memory: &dyn Memory, allocator: Addr) -> Option<Addr> {
    let copy = memory.vec_up_to(allocator, SEARCHED);
    let is_table = |at: usize| copy.get(at..).is_some_and(|b| FlatTable::decode(b).is_some());
    let are_tables = |from: usize| (0..TABLES).all(|n| is_table(from + n * FlatTable::SIZE));
    (0..copy.len()).step_by(8).find(|at| are_tables(*at)).map(|at| allocator + at as u64)
}

/// Reads an allocator's tables, for a single device.
#[derive(Debug, Clone)]
pub struct AddressTables {
    copies: TableCopies,
    ahead: Option<TableHeads>,
    last: Option<PolledCounters>,
    tables: Vec<Vec<(u64, Addr)>>,
    /// Last read that may have missed changes: losing one address and gaining another leaves a head
    /// unchanged.
    doubted: Option<u64>,
}

impl AddressTables {
    pub(super) fn new(at: Addr, block: BlockLayout, counters: CounterPoller) -> AddressTables {
        AddressTables {
            copies: TableCopies::new(at, block, counters),
            ahead: None,
            last: None,
            tables: vec![Vec::new(); TABLES],
            doubted: None,
        }
    }

    /// Whether a table may have changed unnoticed: use `verify`.
    pub fn is_doubted(&self) -> bool {
        self.doubted.is_some()
    }

    /// Accepts the changed tables if they have as many addresses as the counters have blocks; else
    /// keeps its copies.
    pub fn read(&mut self, memory: &dyn Memory) -> Result<AddressOutcome, MemoryError> {
        let last = self.last.map(|last| last.totals());
        let ahead = self.ahead.take().filter(|heads| heads.totals() != last);
        let heads = match ahead {
            Some(ahead) => Some(ahead),
            None => self.copies.copy_heads(memory)?,
        };
        let Some(heads) = heads else { return Ok(AddressOutcome::Moving) };
        self.reach(memory, heads)
    }

    /// Copies some doubted tables; `Late` if one changed.
    pub fn verify(&mut self, memory: &dyn Memory) -> Result<AddressOutcome, MemoryError> {
        let Some(doubted) = self.doubted else { return Ok(AddressOutcome::Unchanged) };
        let tables = self.copies.older_than(doubted, VERIFIED_AT_ONCE);
        if tables.is_empty() {
            self.doubted = None;
            return Ok(AddressOutcome::Unchanged);
        }
        let Some(heads) = self.copies.read(memory, &tables, &[])? else {
            return Ok(AddressOutcome::Moving);
        };
        if heads.totals() == self.last.map(|last| last.totals()) {
            return self.reach(memory, heads);
        }
        self.ahead = Some(heads);
        Ok(AddressOutcome::Moving)
    }

    fn reach(
        &mut self,
        memory: &dyn Memory,
        mut heads: TableHeads,
    ) -> Result<AddressOutcome, MemoryError> {
        let last = self.last.map(|last| last.totals());
        for _ in 0..MAX_ROUNDS {
            let has_newer = self.copies.newer().next().is_some();
            if last.is_some() && heads.totals() == last && !has_newer {
                return Ok(AddressOutcome::Unchanged);
            }
            let changed = self.copies.outdated(&heads);
            if changed.is_empty()
                && let Some(now) = heads.settled()
            {
                return self.accept(memory, now);
            }
            let Some(then) = self.copies.read(memory, &changed, &[])? else {
                return Ok(AddressOutcome::Moving);
            };
            heads = then;
        }
        Ok(AddressOutcome::Moving)
    }

    /// Accepts the copies for counters `now`, unless a new block is gone.
    fn accept(
        &mut self,
        memory: &dyn Memory,
        now: PolledCounters,
    ) -> Result<AddressOutcome, MemoryError> {
        let totals = now.totals();
        let outcome = match self.last {
            None => {
                let missing = MissingChanges::default();
                AddressOutcome::Read(AddressDelta { totals, changes: None, missing })
            }
            Some(last) => {
                let Some(found) = self.changes(memory, &last, &now)? else {
                    return Ok(AddressOutcome::Moving);
                };
                let missing = missing_between(&last, &now, &found);
                if !missing.is_nothing() {
                    self.doubted = Some(self.copies.reading());
                }
                let reading = AddressDelta { totals, changes: Some(found), missing };
                match missing.is_late() {
                    true => {
                        let readings = self.copies.readings_since_swap(&self.tables);
                        AddressOutcome::Late { reading, readings }
                    }
                    false => AddressOutcome::Read(reading),
                }
            }
        };
        for (n, new) in self.copies.newer() {
            self.tables[n].clear();
            self.tables[n].extend_from_slice(new);
        }
        self.copies.accepted();
        self.last = Some(now);
        Ok(outcome)
    }

    /// `None` if a new block is unexpected.
    fn changes(
        &mut self,
        memory: &dyn Memory,
        last: &PolledCounters,
        now: &PolledCounters,
    ) -> Result<Option<AddressChanges>, MemoryError> {
        let (mut allocated, mut freed) = (Vec::new(), Vec::new());
        for (n, new) in self.copies.newer() {
            differences(&self.tables[n], new, &mut allocated, &mut freed);
        }
        freed.sort_unstable();
        let grew = allocated_between(last, now);
        let allocated = match (&allocated[..], grew) {
            ([], _) => Vec::new(),
            // For one allocation the counters suffice, unless an earlier read missed it.
            (&[(address, _)], Some((1, size, requested))) if self.doubted.is_none() => {
                vec![AddressedBlock { address, size, requested }]
            }
            _ => {
                let unknown = self.copies.unknown(&allocated);
                self.ahead = self.copies.read(memory, &[], &unknown)?;
                let Some(blocks) = self.copies.blocks(&allocated) else {
                    self.copies.doubt(&allocated);
                    return Ok(None);
                };
                let bytes = bytes_of(&blocks);
                // If no block came and went in between, the bytes are known.
                let is_all = |count| count == blocks.len() as u64;
                let is_wrong = |(count, grew, _)| is_all(count) && grew != bytes;
                if self.doubted.is_none() && grew.is_some_and(is_wrong) {
                    self.copies.forget_blocks();
                    return Ok(None);
                }
                blocks
            }
        };
        Ok(Some(AddressChanges { allocated, freed }))
    }
}

fn bytes_of(blocks: &[AddressedBlock]) -> u64 {
    blocks.iter().fold(0, |sum, block| sum.saturating_add(block.size))
}

fn missing_between(
    last: &PolledCounters,
    now: &PolledCounters,
    found: &AddressChanges,
) -> MissingChanges {
    let (from, to) = (last.totals(), now.totals());
    let bytes = bytes_of(&found.allocated);
    let allocations = to.allocations.wrapping_sub(from.allocations);
    let grew = allocated_between(last, now).map_or(bytes, |(_, grew, _)| grew);
    MissingChanges {
        allocations: allocations.wrapping_sub(found.allocated.len() as i64),
        frees: to.frees.wrapping_sub(from.frees).wrapping_sub(found.freed.len() as i64),
        allocated_bytes: (grew as i64).wrapping_sub(bytes as i64),
    }
}

fn allocated_between(last: &PolledCounters, now: &PolledCounters) -> Option<(u64, u64, u64)> {
    let grew = |of: fn(&PoolCounters) -> i64| {
        let sum = |counters: &PolledCounters| of(&counters.small).checked_add(of(&counters.large));
        u64::try_from(sum(now)?.checked_sub(sum(last)?)?).ok()
    };
    let count = grew(|pool| pool.allocations)?;
    Some((count, grew(|pool| pool.allocated_bytes)?, grew(|pool| pool.requested_bytes)?))
}

#[cfg(test)]
#[path = "address_tables_tests.rs"]
mod tests;
