//! The addresses that the allocator has given to the program, for a fast poller: which of them are new, and which are gone.
//!
//! `NativeCachingAllocator::allocated_blocks` (c10/cuda/CUDACachingAllocator.cpp, torch 2.3 and later) has each block that is allocated by
//! its address, in 67 tables (`kNumMutexShard`), chosen by a hash of the address. Their sizes lie side by side: one short read
//! tells which of them an allocation or a free has changed, and these are read.

use super::address_changes::{AddressChanges, AddressOutcome, AddressReading, differences};
use super::containers::FlatTable;
use super::layout::BlockLayout;
use super::polled::{CounterPoller, PolledCounters, PoolCounters};
use crate::model::AddressedBlock;
use crate::target::{Addr, AddressRange, Field, Memory, MemoryError};

/// `kNumMutexShard`.
const TABLES: usize = 67;
/// Bytes of an entry: its distance from the desired slot, the address, the `Block`.
const ENTRY: usize = 0x18;
const ADDRESS: Field<u64> = Field::at(0x08);
const BLOCK: Field<Addr> = Field::at(0x10);
/// How much of a `NativeCachingAllocator` is searched for the tables (0x1100 seen).
const SEARCHED: usize = 0x4000;
/// More entries than this in one table are not read: a bound for the time that a poll takes.
const MAX_SLOTS: u64 = 1 << 12;

/// Where the tables lie in the `NativeCachingAllocator` at `allocator`; `None` where it has no such tables (torch 2.1 and 2.2).
pub(super) fn find(memory: &dyn Memory, allocator: Addr) -> Option<Addr> {
    let copy = memory.vec_up_to(allocator, SEARCHED);
    let is_table = |at: usize| copy.get(at..).is_some_and(|b| FlatTable::decode(b).is_some());
    let are_tables = |from: usize| (0..TABLES).all(|n| is_table(from + n * FlatTable::SIZE));
    (0..copy.len()).step_by(8).find(|at| are_tables(*at)).map(|at| allocator + at as u64)
}

/// Reads the tables of an allocator that serves one device.
#[derive(Debug, Clone)]
pub struct AddressTables {
    at: Addr,
    block: BlockLayout,
    /// The counters of the device.
    counters: CounterPoller,
    /// What they were at the last reading.
    last: Option<PolledCounters>,
    tables: Vec<AddressTable>,
    /// Whether a table may have changed unnoticed since all of them were read: one that lost an address and got another has the head that it had.
    is_incomplete: bool,
    spans: Vec<AddressRange>,
    copy: Vec<u8>,
    changing: Vec<u8>,
}

/// One table, as it was read last.
#[derive(Debug, Clone)]
struct AddressTable {
    head: Option<FlatTable>,
    /// Its addresses and their `Block`s, in order.
    entries: Vec<(u64, Addr)>,
}

impl AddressTables {
    pub(super) fn new(at: Addr, block: BlockLayout, counters: CounterPoller) -> AddressTables {
        AddressTables {
            at,
            block,
            counters,
            last: None,
            tables: vec![AddressTable { head: None, entries: Vec::new() }; TABLES],
            is_incomplete: false,
            spans: Vec::new(),
            copy: Vec::new(),
            changing: Vec::new(),
        }
    }

    /// Whether a table may have changed unnoticed: `read_all` finds what did, once there is time for it.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Reads the tables that have changed. They are accepted only if they have as many addresses together as the counters say that
    /// there are blocks, and the counters still stand after they were copied.
    pub fn read(&mut self, memory: &dyn Memory) -> Result<AddressOutcome, MemoryError> {
        let Some(now) = self.look(memory)? else { return Ok(AddressOutcome::Moving) };
        let last = self.last.map(|last| last.totals());
        if last == Some(now.totals()) {
            return Ok(AddressOutcome::Unchanged);
        }
        let Some(heads) = self.heads(&now) else { return Ok(AddressOutcome::Moving) };
        let changed = (0..TABLES).filter(|&n| self.tables[n].head != Some(heads[n])).collect();
        let Some(reading) = self.read_tables(memory, &heads, changed, now)? else {
            return Ok(AddressOutcome::Moving);
        };
        let (Some(last), Some(found)) = (last, &reading.changes) else {
            self.is_incomplete = false;
            return Ok(AddressOutcome::Read(reading));
        };
        let allocations = reading.totals.allocations.wrapping_sub(last.allocations);
        let frees = reading.totals.frees.wrapping_sub(last.frees);
        let (allocated, freed) = (found.allocated.len() as i64, found.freed.len() as i64);
        self.is_incomplete |= (allocated, freed) != (allocations, frees);
        Ok(match allocated > allocations || freed > frees {
            true => AddressOutcome::Late(reading),
            false => AddressOutcome::Read(reading),
        })
    }

    /// Reads all tables while nothing changes: `Late` if some had changed unnoticed.
    pub fn read_all(&mut self, memory: &dyn Memory) -> Result<AddressOutcome, MemoryError> {
        let Some(now) = self.look(memory)? else { return Ok(AddressOutcome::Moving) };
        if self.last.is_none_or(|last| last.totals() != now.totals()) {
            return Ok(AddressOutcome::Moving);
        }
        let Some(heads) = self.heads(&now) else { return Ok(AddressOutcome::Moving) };
        let all = (0..TABLES).collect();
        let Some(reading) = self.read_tables(memory, &heads, all, now)? else {
            return Ok(AddressOutcome::Moving);
        };
        self.is_incomplete = false;
        Ok(match reading.changes == Some(AddressChanges::default()) {
            true => AddressOutcome::Unchanged,
            false => AddressOutcome::Late(reading),
        })
    }

    /// Copies the counters and the heads of the tables; `None` while a thread is about to change them.
    fn look(&mut self, memory: &dyn Memory) -> Result<Option<PolledCounters>, MemoryError> {
        let Some(counted) = self.counters.spans().next() else { return Ok(None) };
        self.spans.clear();
        self.spans.push(counted);
        self.spans.push(AddressRange { addr: self.at, len: TABLES * FlatTable::SIZE });
        self.copy.resize(counted.len + TABLES * FlatTable::SIZE, 0);
        memory.read_spans(&self.spans, &mut self.copy)?;
        let counters = &self.copy[..counted.len];
        self.changing.clear();
        self.changing.extend_from_slice(self.counters.changing_part(counters).unwrap_or_default());
        Ok(self.counters.decode(counters).filter(|now| now.fit))
    }

    /// The heads that were copied, if they have as many addresses as there are blocks `now`.
    fn heads(&self, now: &PolledCounters) -> Option<Vec<FlatTable>> {
        let (_, heads) = self.copy.split_at_checked(self.copy.len() - TABLES * FlatTable::SIZE)?;
        let heads = heads.chunks_exact(FlatTable::SIZE).map(FlatTable::decode);
        let heads = heads.collect::<Option<Vec<FlatTable>>>()?;
        let count = heads.iter().fold(0u64, |sum, head| sum.saturating_add(head.count));
        (i64::try_from(count) == Ok(now.blocks)).then_some(heads)
    }

    /// Reads some of the tables, which have these heads; `None` where the target has gone on.
    fn read_tables(
        &mut self,
        memory: &dyn Memory,
        heads: &[FlatTable],
        changed: Vec<usize>,
        now: PolledCounters,
    ) -> Result<Option<AddressReading>, MemoryError> {
        if changed.iter().any(|&n| heads[n].slots > MAX_SLOTS) {
            return Ok(None);
        }
        self.spans.clear();
        for &n in &changed {
            let slots = if heads[n].count == 0 { 0 } else { heads[n].slots as usize };
            self.spans.push(AddressRange { addr: heads[n].entries, len: ENTRY * slots });
        }
        if !self.copy_spans(memory)? {
            return Ok(None);
        }
        let mut new = Vec::with_capacity(changed.len());
        let mut copy = &self.copy[..];
        for (&n, span) in changed.iter().zip(&self.spans) {
            let (entries, rest) = copy.split_at(span.len);
            copy = rest;
            let used = entries.chunks_exact(ENTRY).filter(|entry| FlatTable::is_used(entry[0]));
            let entries = used.filter_map(|entry| Some((ADDRESS.get(entry)?, BLOCK.get(entry)?)));
            let mut entries: Vec<(u64, Addr)> = entries.collect();
            entries.sort_unstable();
            entries.dedup_by_key(|(address, _)| *address);
            if entries.len() as u64 != heads[n].count {
                return Ok(None);
            }
            new.push(entries);
        }
        let changes = match self.last {
            None => None,
            Some(last) => match self.changes(memory, &changed, &new, &last, &now)? {
                Some(changes) => Some(changes),
                None => return Ok(None),
            },
        };
        for (n, entries) in changed.into_iter().zip(new) {
            self.tables[n] = AddressTable { head: Some(heads[n]), entries };
        }
        self.last = Some(now);
        Ok(Some(AddressReading { totals: now.totals(), changes }))
    }

    /// What is different in the `changed` tables; `None` where the target has gone on.
    fn changes(
        &mut self,
        memory: &dyn Memory,
        changed: &[usize],
        new: &[Vec<(u64, Addr)>],
        last: &PolledCounters,
        now: &PolledCounters,
    ) -> Result<Option<AddressChanges>, MemoryError> {
        let (mut allocated, mut freed) = (Vec::new(), Vec::new());
        for (&n, new) in changed.iter().zip(new) {
            differences(&self.tables[n].entries, new, &mut allocated, &mut freed);
        }
        freed.sort_unstable();
        let blocks = match (&allocated[..], only_allocation(last, now)) {
            ([], _) => Vec::new(),
            // What the counters say of the only allocation need not be read.
            (&[(address, _)], Some((size, requested))) => {
                vec![AddressedBlock { address, size, requested }]
            }
            _ => {
                let len = self.block.len();
                self.spans.clear();
                self.spans.extend(allocated.iter().map(|&(_, addr)| AddressRange { addr, len }));
                if !self.copy_spans(memory)? {
                    return Ok(None);
                }
                let Some(blocks) = self.blocks(&allocated) else { return Ok(None) };
                blocks
            }
        };
        Ok(Some(AddressChanges { allocated: blocks, freed }))
    }

    /// The blocks that were allocated, by address; `None` where one is none (any more).
    fn blocks(&self, allocated: &[(u64, Addr)]) -> Option<Vec<AddressedBlock>> {
        let block = |(copy, &(address, _)): (&[u8], &(u64, Addr))| {
            let raw = self.block.decode(copy).filter(|b| b.allocated && b.address == address)?;
            Some(AddressedBlock { address, size: raw.size, requested: raw.requested })
        };
        let blocks = self.copy.chunks_exact(self.block.len()).zip(allocated).map(block);
        let mut blocks: Vec<AddressedBlock> = blocks.collect::<Option<_>>()?;
        blocks.sort_unstable();
        Some(blocks)
    }

    /// Copies what `spans` say, and what tells of changes of the counters after it: `false` where they have changed.
    fn copy_spans(&mut self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        let len = self.spans.iter().map(|span| span.len).sum();
        let counters: usize = self.counters.changing_spans().map(|span| span.len).sum();
        self.copy.resize(len + counters, 0);
        let spans = self.spans.len();
        self.spans.extend(self.counters.changing_spans());
        let read = memory.read_spans(&self.spans, &mut self.copy);
        self.spans.truncate(spans);
        read?;
        Ok(self.copy[len..] == self.changing)
    }
}

/// The bytes, and the bytes asked for, of what was allocated between two states of the counters, if it was one block.
fn only_allocation(last: &PolledCounters, now: &PolledCounters) -> Option<(u64, u64)> {
    let grew = |of: fn(&PoolCounters) -> i64| {
        let sum = |counters: &PolledCounters| of(&counters.small).checked_add(of(&counters.large));
        u64::try_from(sum(now)?.checked_sub(sum(last)?)?).ok()
    };
    (grew(|pool| pool.allocations)? == 1)
        .then_some((grew(|pool| pool.allocated_bytes)?, grew(|pool| pool.requested_bytes)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::model::Metric;
    use crate::target::MemoryImage;
    use crate::torch::layout::{CounterLayout, STAT};
    use crate::torch::polled::AllocationTotals;

    const DEVICE: u64 = 0x10_0000;
    const HEADS: u64 = 0x20_0000;
    const ENTRIES: u64 = 0x30_0000;
    const BLOCKS: u64 = 0x40_0000;
    const ALLOCATION: (usize, u64) = (Metric::Allocation as usize, 1);
    const BYTES: (usize, u64) = (Metric::AllocatedBytes as usize, 1);

    /// An allocator with blocks of 512 bytes in the small pool; the last of the 67 tables has them all.
    #[derive(Default)]
    struct Allocator {
        blocks: Vec<u64>,
        allocated: i64,
        freed: i64,
        /// How many blocks the counters have more than the table.
        ahead: i64,
    }

    fn layout() -> CounterLayout {
        CounterLayout::with_gap(0x20, &[0; 0x20])
    }

    fn tables() -> AddressTables {
        let counters = CounterPoller::new(&layout(), &[Addr(DEVICE)]);
        AddressTables::new(Addr(HEADS), BlockLayout { size: 0x30 }, counters)
    }

    impl Allocator {
        fn allocate(&mut self, address: u64) {
            self.blocks.push(address);
            self.allocated += 1;
        }

        fn free(&mut self, address: u64) {
            self.blocks.retain(|block| *block != address);
            self.freed += 1;
        }

        fn memory(&self) -> MemoryImage {
            let mut memory = MemoryImage::default();
            memory.insert(Addr(DEVICE), &[0; 0x2000]);
            let metrics = [ALLOCATION, BYTES, (Metric::RequestedBytes as usize, 1)];
            for (metric, size) in metrics.map(|(m, _)| (m, if m == ALLOCATION.0 { 1 } else { 512 }))
            {
                for pool in 0..2 {
                    let at = Addr(DEVICE) + (layout().array(metric) + pool * STAT) as u64;
                    let current = self.allocated + self.ahead - self.freed;
                    let stat = [current, current, self.allocated + self.ahead, self.freed];
                    let bytes = stat.iter().flat_map(|n| (n * size).to_le_bytes());
                    memory.insert(at, &bytes.collect::<Vec<u8>>());
                }
            }
            for table in 0..TABLES as u64 {
                let count = if table + 1 == TABLES as u64 { self.blocks.len() as u64 } else { 0 };
                let mut head = vec![0; FlatTable::SIZE];
                head[..8].copy_from_slice(&ENTRIES.to_le_bytes());
                head[8] = 15;
                head[0x11] = 1;
                head[0x14..0x18].copy_from_slice(&0.5f32.to_bits().to_le_bytes());
                head[0x18..].copy_from_slice(&count.to_le_bytes());
                memory.insert(Addr(HEADS) + table * FlatTable::SIZE as u64, &head);
            }
            let mut entries = vec![0xff; 16 * ENTRY];
            for (slot, address) in self.blocks.iter().enumerate() {
                let entry = &mut entries[slot * ENTRY..][..ENTRY];
                entry[0] = 0;
                entry[8..16].copy_from_slice(&address.to_le_bytes());
                entry[16..].copy_from_slice(&(BLOCKS + address).to_le_bytes());
                let layout = BlockLayout { size: 0x30 };
                let mut block = vec![0; layout.len()];
                block[0x30..0x38].copy_from_slice(&512u64.to_le_bytes());
                block[0x38..0x40].copy_from_slice(&500u64.to_le_bytes());
                block[0x48..0x50].copy_from_slice(&address.to_le_bytes());
                block[0x50..0x52].copy_from_slice(&[1, 1]);
                memory.insert(Addr(BLOCKS + address), &block);
            }
            memory.insert(Addr(ENTRIES), &entries);
            memory
        }
    }

    fn read(tables: &mut AddressTables, allocator: &Allocator) -> AddressOutcome {
        tables.read(&allocator.memory()).unwrap()
    }

    fn changes(outcome: AddressOutcome) -> AddressChanges {
        let (AddressOutcome::Read(reading) | AddressOutcome::Late(reading)) = outcome else {
            panic!("{outcome:?}");
        };
        reading.changes.unwrap()
    }

    #[test]
    fn the_first_reading_is_where_the_changes_begin() {
        let (mut tables, mut allocator) = (tables(), Allocator::default());
        allocator.allocate(0x7000);
        let AddressOutcome::Read(first) = read(&mut tables, &allocator) else { panic!() };
        assert_eq!(first.totals, AllocationTotals { allocations: 1, frees: 0 });
        assert_eq!(first.changes, None);
        assert_eq!(read(&mut tables, &allocator), AddressOutcome::Unchanged);
        allocator.allocate(0x8000);
        let block = AddressedBlock { address: 0x8000, size: 512, requested: 512 };
        let found = changes(read(&mut tables, &allocator));
        assert_eq!((&found.allocated[..], &found.freed[..]), (&[block][..], &[][..]));
        allocator.free(0x7000);
        let found = changes(read(&mut tables, &allocator));
        assert_eq!((&found.allocated[..], &found.freed[..]), (&[][..], &[0x7000][..]));
    }

    /// The counters say what all of them asked for together; each block says it for itself.
    #[test]
    fn of_several_allocations_the_blocks_are_read() {
        let (mut tables, mut allocator) = (tables(), Allocator::default());
        allocator.allocate(0x7000);
        read(&mut tables, &allocator);
        allocator.allocate(0x9000);
        allocator.allocate(0x8000);
        let found = changes(read(&mut tables, &allocator));
        let block = |address| AddressedBlock { address, size: 512, requested: 500 };
        assert_eq!(found.allocated, [block(0x8000), block(0x9000)]);
    }

    /// One block goes and another comes: the table has as many as before.
    #[test]
    fn a_table_that_lost_a_block_and_got_another_is_found_when_all_are_read() {
        let (mut tables, mut allocator) = (tables(), Allocator::default());
        allocator.allocate(0x7000);
        read(&mut tables, &allocator);
        assert!(!tables.is_incomplete());
        allocator.free(0x7000);
        allocator.allocate(0x8000);
        assert_eq!(changes(read(&mut tables, &allocator)), AddressChanges::default());
        assert!(tables.is_incomplete());
        let late = tables.read_all(&allocator.memory()).unwrap();
        assert!(matches!(late, AddressOutcome::Late(_)), "{late:?}");
        let found = changes(late);
        assert_eq!((found.allocated[0].address, &found.freed[..]), (0x8000, &[0x7000][..]));
        assert!(!tables.is_incomplete());
        let again = tables.read_all(&allocator.memory()).unwrap();
        assert_eq!(again, AddressOutcome::Unchanged);
        allocator.allocate(0x9000);
        let moved = tables.read_all(&allocator.memory()).unwrap();
        assert_eq!(moved, AddressOutcome::Moving);
    }

    /// The table is read again for a third block, before there was time to read all.
    #[test]
    fn more_changes_than_the_counters_have_are_late() {
        let (mut tables, mut allocator) = (tables(), Allocator::default());
        allocator.allocate(0x7000);
        read(&mut tables, &allocator);
        allocator.free(0x7000);
        allocator.allocate(0x8000);
        let unnoticed = read(&mut tables, &allocator);
        assert!(matches!(unnoticed, AddressOutcome::Read(_)), "{unnoticed:?}");
        allocator.allocate(0x9000);
        let late = read(&mut tables, &allocator);
        assert!(matches!(late, AddressOutcome::Late(_)), "{late:?}");
        let found = changes(late);
        let allocated: Vec<u64> = found.allocated.iter().map(|block| block.address).collect();
        assert_eq!((&allocated[..], &found.freed[..]), (&[0x8000, 0x9000][..], &[0x7000][..]));
    }

    /// A thread has counted its block and not entered it yet.
    #[test]
    fn tables_that_do_not_have_what_the_counters_say_are_not_taken() {
        let (mut tables, mut allocator) = (tables(), Allocator::default());
        allocator.allocate(0x7000);
        read(&mut tables, &allocator);
        allocator.ahead = 1;
        assert_eq!(read(&mut tables, &allocator), AddressOutcome::Moving);
        allocator.ahead = 0;
        allocator.allocate(0x8000);
        assert_eq!(changes(read(&mut tables, &allocator)).allocated.len(), 1);
    }

    /// The counters of the second copy are others.
    #[test]
    fn what_was_copied_while_the_counters_moved_is_not_taken() {
        struct Moving(AtomicU32, MemoryImage, MemoryImage);
        impl Memory for Moving {
            fn read_spans(
                &self,
                spans: &[AddressRange],
                out: &mut [u8],
            ) -> Result<(), MemoryError> {
                let reads = self.0.fetch_add(1, Ordering::Relaxed);
                let memory = if reads == 0 { &self.1 } else { &self.2 };
                memory.read_spans(spans, out)
            }
        }
        let mut allocator = Allocator::default();
        allocator.allocate(0x7000);
        let before = allocator.memory();
        allocator.allocate(0x8000);
        allocator.free(0x7000);
        let memory = Moving(AtomicU32::new(0), before, allocator.memory());
        assert_eq!(tables().read(&memory).unwrap(), AddressOutcome::Moving);
    }

    #[test]
    fn the_tables_are_found_by_their_shape() {
        let mut allocator = Allocator::default();
        allocator.allocate(0x7000);
        let memory = allocator.memory();
        let mut copy = vec![0; TABLES * FlatTable::SIZE];
        memory.read(Addr(HEADS), &mut copy).unwrap();
        let mut image = MemoryImage::default();
        let object = [vec![0; 0x118], copy.clone(), vec![0; SEARCHED]].concat();
        image.insert(Addr(0x50_0000), &object);
        assert_eq!(find(&image, Addr(0x50_0000)), Some(Addr(0x50_0118)));
        let short = [vec![0; 0x118], copy[FlatTable::SIZE..].to_vec(), vec![0; SEARCHED]].concat();
        image.insert(Addr(0x60_0000), &short);
        assert_eq!(find(&image, Addr(0x60_0000)), None);
    }
}
