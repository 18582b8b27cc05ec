//! Copies of the address tables of a running target. A copy is valid if the table's head did not
//! change; the next read covers only changed tables. So the reader catches up with a target that
//! never pauses.

use rustc_hash::FxHashMap;

use super::containers::FlatTable;
use super::layout::BlockLayout;
use super::polled::{AllocationTotals, CounterPoller, PolledCounters};
use crate::model::AddressedBlock;
use crate::target::{Addr, AddressRange, Field, Memory, MemoryError};

/// `kNumMutexShard`.
pub(super) const TABLES: usize = 67;
/// Distance from the desired slot, address, `Block`.
pub(super) const ENTRY: usize = 0x18;
const ADDRESS: Field<u64> = Field::at(0x08);
const BLOCK: Field<Addr> = Field::at(0x10);
/// Bounds the time of a read.
const MAX_SLOTS: u64 = 1 << 12;

/// Counters, heads, counters again.
#[derive(Debug, Clone)]
pub(super) struct TableHeads {
    /// `None` if they changed.
    pub(super) counters: Option<PolledCounters>,
    heads: Vec<FlatTable>,
}

impl TableHeads {
    pub(super) fn totals(&self) -> Option<AllocationTotals> {
        self.counters.map(|now| now.totals())
    }

    /// The counters, if the tables have as many addresses as these have blocks.
    pub(super) fn settled(&self) -> Option<PolledCounters> {
        let count = self.heads.iter().fold(0u64, |sum, head| sum.saturating_add(head.count));
        self.counters.filter(|now| i64::try_from(count) == Ok(now.blocks))
    }
}

#[derive(Debug, Clone)]
pub(super) struct TableCopies {
    at: Addr,
    block: BlockLayout,
    counters: CounterPoller,
    tables: Vec<TableCopy>,
    reading: u64,
    /// Since the last accepted read.
    blocks: FxHashMap<(u64, Addr), AddressedBlock>,
    spans: Vec<AddressRange>,
    copy: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct TableCopy {
    head: Option<FlatTable>,
    entries: Vec<(u64, Addr)>,
    /// The last read that copied it.
    reading: u64,
    /// `reading` at the last accepted read, if changed since.
    before: Option<u64>,
}

impl TableCopies {
    pub(super) fn new(at: Addr, block: BlockLayout, counters: CounterPoller) -> TableCopies {
        TableCopies {
            at,
            block,
            counters,
            tables: vec![TableCopy::default(); TABLES],
            reading: 1,
            blocks: FxHashMap::default(),
            spans: Vec::new(),
            copy: Vec::new(),
        }
    }

    pub(super) fn copy_heads(
        &mut self,
        memory: &dyn Memory,
    ) -> Result<Option<TableHeads>, MemoryError> {
        self.spans.clear();
        self.copy_with_heads(memory)
    }

    pub(super) fn outdated(&self, now: &TableHeads) -> Vec<(usize, FlatTable)> {
        let heads = now.heads.iter().copied().enumerate();
        heads.filter(|(n, head)| self.tables[*n].head != Some(*head)).collect()
    }

    pub(super) fn older_than(&self, reading: u64, most: usize) -> Vec<(usize, FlatTable)> {
        let tables = self.tables.iter().enumerate().filter(|(_, table)| table.reading < reading);
        tables.filter_map(|(n, table)| Some((n, table.head?))).take(most).collect()
    }

    pub(super) fn reading(&self) -> u64 {
        self.reading
    }

    pub(super) fn newer(&self) -> impl Iterator<Item = (usize, &[(u64, Addr)])> {
        let newer = self.tables.iter().enumerate().filter(|(_, table)| table.before.is_some());
        newer.map(|(n, table)| (n, &table.entries[..]))
    }

    /// How many reads may lack entries: replaced addresses show only in a later copy.
    pub(super) fn readings_since_swap(&self, known: &[Vec<(u64, Addr)>]) -> usize {
        let copied = |(table, known): (&TableCopy, &Vec<(u64, Addr)>)| {
            let copied = table.before?;
            let kept = table.entries.iter().filter(|entry| known.binary_search(entry).is_ok());
            (kept.count() < table.entries.len().min(known.len())).then_some(copied)
        };
        let copied = self.tables.iter().zip(known).filter_map(copied).min();
        copied.map_or(1, |copied| self.reading.saturating_sub(copied) as usize)
    }

    pub(super) fn unknown(&self, allocated: &[(u64, Addr)]) -> Vec<(u64, Addr)> {
        let is_unknown = |entry: &&(u64, Addr)| !self.blocks.contains_key(entry);
        allocated.iter().filter(is_unknown).copied().collect()
    }

    pub(super) fn blocks(&self, allocated: &[(u64, Addr)]) -> Option<Vec<AddressedBlock>> {
        let block = |entry: &(u64, Addr)| self.blocks.get(entry).copied();
        let mut blocks: Vec<AddressedBlock> = allocated.iter().map(block).collect::<Option<_>>()?;
        blocks.sort_unstable();
        Some(blocks)
    }

    /// Rereads the tables of these unreadable blocks.
    pub(super) fn doubt(&mut self, allocated: &[(u64, Addr)]) {
        for gone in self.unknown(allocated) {
            let has_it = |table: &&mut TableCopy| table.entries.binary_search(&gone).is_ok();
            self.tables.iter_mut().filter(has_it).for_each(|table| table.head = None);
        }
    }

    pub(super) fn forget_blocks(&mut self) {
        self.blocks.clear();
    }

    pub(super) fn accepted(&mut self) {
        self.tables.iter_mut().for_each(|table| table.before = None);
        self.blocks.clear();
        self.reading += 1;
    }

    /// Copies tables with expected heads, and blocks, then the heads again.
    pub(super) fn read(
        &mut self,
        memory: &dyn Memory,
        tables: &[(usize, FlatTable)],
        blocks: &[(u64, Addr)],
    ) -> Result<Option<TableHeads>, MemoryError> {
        if tables.iter().any(|(_, head)| head.slots > MAX_SLOTS) {
            return Ok(None);
        }
        self.spans.clear();
        let range = |head: &FlatTable| {
            let slots = if head.count == 0 { 0 } else { head.slots as usize };
            AddressRange { addr: head.entries, len: ENTRY * slots }
        };
        self.spans.extend(tables.iter().map(|(_, head)| range(head)));
        let len = self.block.len();
        self.spans.extend(blocks.iter().map(|&(_, addr)| AddressRange { addr, len }));
        let Some(after) = self.copy_with_heads(memory)? else { return Ok(None) };
        let mut copy = &self.copy[..];
        for &(n, head) in tables {
            let (bytes, rest) = copy.split_at(range(&head).len);
            copy = rest;
            if head == after.heads[n] {
                self.tables[n].take(head, bytes, self.reading);
            }
        }
        for (bytes, &(address, at)) in copy.chunks_exact(len).zip(blocks) {
            if let Some(raw) = self.block.decode(bytes)
                && raw.allocated
                && raw.address == address
            {
                let block = AddressedBlock { address, size: raw.size, requested: raw.requested };
                self.blocks.insert((address, at), block);
            }
        }
        Ok(Some(after))
    }

    fn copy_with_heads(&mut self, memory: &dyn Memory) -> Result<Option<TableHeads>, MemoryError> {
        let Some(counted) = self.counters.spans().next() else { return Ok(None) };
        let len: usize = self.spans.iter().map(|span| span.len).sum();
        let heads = TABLES * FlatTable::SIZE;
        self.spans.push(counted);
        self.spans.push(AddressRange { addr: self.at, len: heads });
        self.spans.extend(self.counters.changing_spans().take(1));
        self.copy.resize(self.spans.iter().map(|span| span.len).sum(), 0);
        memory.read_spans(&self.spans, &mut self.copy)?;
        let (counters, rest) = self.copy[len..].split_at(counted.len);
        let (heads, again) = rest.split_at(heads);
        let stood = self.counters.changing_part(counters) == Some(again);
        let counters = self.counters.decode(counters).filter(|now| now.fit && stood);
        let heads = heads.chunks_exact(FlatTable::SIZE).map(FlatTable::decode);
        let heads = heads.collect::<Option<Vec<FlatTable>>>();
        Ok(heads.map(|heads| TableHeads { counters, heads }))
    }
}

impl TableCopy {
    fn take(&mut self, head: FlatTable, bytes: &[u8], reading: u64) {
        let used = bytes.chunks_exact(ENTRY).filter(|entry| FlatTable::is_used(entry[0]));
        let entries = used.filter_map(|entry| Some((ADDRESS.get(entry)?, BLOCK.get(entry)?)));
        let mut entries: Vec<(u64, Addr)> = entries.collect();
        entries.sort_unstable();
        entries.dedup_by_key(|(address, _)| *address);
        if entries.len() as u64 != head.count {
            return;
        }
        if self.entries != entries {
            self.before = self.before.or(Some(self.reading));
        }
        (self.head, self.entries, self.reading) = (Some(head), entries, reading);
    }
}
