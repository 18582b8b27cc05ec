//! The addresses that the allocator has given to the program, for a fast poller: which of them are new, and which are gone.
//!
//! `NativeCachingAllocator::allocated_blocks` (c10/cuda/CUDACachingAllocator.cpp, torch 2.3 and later) has each block that is allocated by
//! its address, in 67 tables (`kNumMutexShard`), chosen by a hash of the address. Their sizes lie side by side: one short read
//! tells which of them an allocation or a free has changed, and these are read (`table_copies.rs`).

use super::address_changes::{AddressChanges, AddressOutcome, AddressReading, differences};
use super::containers::FlatTable;
use super::layout::BlockLayout;
use super::polled::{AllocationTotals, CounterPoller, PolledCounters, PoolCounters};
use super::table_copies::{TABLES, TableCopies, TableHeads};
use crate::model::AddressedBlock;
use crate::target::{Addr, Memory, MemoryError};

/// How much of a `NativeCachingAllocator` is searched for the tables (0x1100 seen).
const SEARCHED: usize = 0x4000;
/// So often the tables that changed meanwhile are read in one attempt; each time takes 2 to 4 us.
const MOST_ROUNDS: usize = 8;

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
    copies: TableCopies,
    /// The heads as they were copied last, where nothing of what they have is read yet.
    ahead: Option<TableHeads>,
    /// What the counters of the device were at the last reading.
    last: Option<PolledCounters>,
    /// The addresses in each table then, with their `Block`s, in order.
    tables: Vec<Vec<(u64, Addr)>>,
    /// Whether a table may have changed unnoticed since all of them were read: one that lost an address and got another has the head that it had.
    is_incomplete: bool,
}

impl AddressTables {
    pub(super) fn new(at: Addr, block: BlockLayout, counters: CounterPoller) -> AddressTables {
        AddressTables {
            copies: TableCopies::new(at, block, counters),
            ahead: None,
            last: None,
            tables: vec![Vec::new(); TABLES],
            is_incomplete: false,
        }
    }

    /// Whether a table may have changed unnoticed: `read_all` finds what did, once there is time for it.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Reads the tables that have changed. They are accepted only if they have as many addresses together as the counters say that
    /// there are blocks. What an attempt copied and could not accept need not be copied again.
    pub fn read(&mut self, memory: &dyn Memory) -> Result<AddressOutcome, MemoryError> {
        let last = self.last.map(|last| last.totals());
        let ahead = self.ahead.take().filter(|heads| heads.totals() != last);
        let heads = match ahead {
            Some(ahead) => Some(ahead),
            None => self.copies.look(memory)?,
        };
        let Some(heads) = heads else { return Ok(AddressOutcome::Moving) };
        if last.is_some() && heads.totals() == last {
            return Ok(AddressOutcome::Unchanged);
        }
        let Some(reading) = self.reach(memory, heads, |_| true)? else {
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
        let last = self.last.map(|last| last.totals());
        let stands = |totals| Some(totals) == last;
        let Some(heads) = self.copies.look(memory)? else { return Ok(AddressOutcome::Moving) };
        if !heads.totals().is_some_and(stands) {
            return Ok(AddressOutcome::Moving);
        }
        let all: Vec<usize> = (0..TABLES).collect();
        let Some(heads) = self.copies.read(memory, &heads, &all, &[])? else {
            return Ok(AddressOutcome::Moving);
        };
        let Some(reading) = self.reach(memory, heads, stands)? else {
            return Ok(AddressOutcome::Moving);
        };
        self.is_incomplete = false;
        Ok(match reading.changes == Some(AddressChanges::default()) {
            true => AddressOutcome::Unchanged,
            false => AddressOutcome::Late(reading),
        })
    }

    /// Copies what has changed until the newest copies are those of one state of the counters, one that is `wanted`; `None` where
    /// the target is always ahead.
    fn reach(
        &mut self,
        memory: &dyn Memory,
        mut heads: TableHeads,
        wanted: impl Fn(AllocationTotals) -> bool,
    ) -> Result<Option<AddressReading>, MemoryError> {
        for _ in 0..MOST_ROUNDS {
            if heads.totals().is_some_and(|totals| !wanted(totals)) {
                return Ok(None);
            }
            let changed = self.copies.outdated(&heads);
            if changed.is_empty()
                && let Some(now) = heads.settled()
            {
                return self.accept(memory, heads, now);
            }
            let Some(then) = self.copies.read(memory, &heads, &changed, &[])? else {
                return Ok(None);
            };
            heads = then;
        }
        Ok(None)
    }

    /// Takes the newest copies as what the tables were when the counters were `now`; `None` where a new block is gone already.
    fn accept(
        &mut self,
        memory: &dyn Memory,
        heads: TableHeads,
        now: PolledCounters,
    ) -> Result<Option<AddressReading>, MemoryError> {
        let changes = match self.last {
            None => None,
            Some(last) => match self.changes(memory, heads, &last, &now)? {
                Some(changes) => Some(changes),
                None => return Ok(None),
            },
        };
        for (n, new) in self.copies.newer() {
            self.tables[n].clear();
            self.tables[n].extend_from_slice(new);
        }
        self.copies.accepted();
        self.last = Some(now);
        Ok(Some(AddressReading { totals: now.totals(), changes }))
    }

    /// What is different in the newest copies; `None` where a new block is not what it seemed to be.
    fn changes(
        &mut self,
        memory: &dyn Memory,
        heads: TableHeads,
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
            // What the counters say of the only allocation need not be read.
            (&[(address, _)], Some((1, size, requested))) => {
                vec![AddressedBlock { address, size, requested }]
            }
            _ => {
                let unknown = self.copies.unknown(&allocated);
                self.ahead = self.copies.read(memory, &heads, &[], &unknown)?;
                let Some(blocks) = self.copies.blocks(&allocated) else {
                    self.copies.doubt(&allocated);
                    return Ok(None);
                };
                let bytes = blocks.iter().fold(0u64, |sum, block| sum.saturating_add(block.size));
                // Where none came and went in between, their bytes together are known.
                let is_all = |count| count == blocks.len() as u64;
                if grew.is_some_and(|(count, grew, _)| is_all(count) && grew != bytes) {
                    self.copies.forget_blocks();
                    return Ok(None);
                }
                blocks
            }
        };
        Ok(Some(AddressChanges { allocated, freed }))
    }
}

/// How many blocks were allocated between two states of the counters, their bytes, and the bytes asked for.
fn allocated_between(last: &PolledCounters, now: &PolledCounters) -> Option<(u64, u64, u64)> {
    let grew = |of: fn(&PoolCounters) -> i64| {
        let sum = |counters: &PolledCounters| of(&counters.small).checked_add(of(&counters.large));
        u64::try_from(sum(now)?.checked_sub(sum(last)?)?).ok()
    };
    let count = grew(|pool| pool.allocations)?;
    Some((count, grew(|pool| pool.allocated_bytes)?, grew(|pool| pool.requested_bytes)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::model::Metric;
    use crate::target::{AddressRange, MemoryImage};
    use crate::torch::layout::{CounterLayout, STAT};
    use crate::torch::table_copies::ENTRY;

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

    /// A memory that is another at each copy, and the last one from then on.
    struct Moving {
        states: Vec<MemoryImage>,
        copies: AtomicU32,
        /// How many bytes were copied.
        bytes: AtomicU32,
    }

    impl Moving {
        fn new(states: Vec<MemoryImage>) -> Moving {
            Moving { states, copies: AtomicU32::new(0), bytes: AtomicU32::new(0) }
        }
    }

    impl Memory for Moving {
        fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            let copy = self.copies.fetch_add(1, Ordering::Relaxed) as usize;
            self.bytes.fetch_add(out.len() as u32, Ordering::Relaxed);
            self.states[copy.min(self.states.len() - 1)].read_spans(spans, out)
        }
    }

    /// The table has another head after the copy than before it.
    #[test]
    fn what_was_copied_while_its_table_changed_is_copied_again() {
        let mut allocator = Allocator::default();
        allocator.allocate(0x7000);
        let mut tables = tables();
        read(&mut tables, &allocator);
        allocator.allocate(0x8000);
        let before = allocator.memory();
        allocator.allocate(0x9000);
        let memory = Moving::new(vec![before, allocator.memory()]);
        let found = changes(tables.read(&memory).unwrap());
        let addresses: Vec<u64> = found.allocated.iter().map(|block| block.address).collect();
        assert_eq!(addresses, [0x8000, 0x9000]);
    }

    /// The target allocates between any two copies: nothing is accepted, as little as if nothing had been copied.
    #[test]
    fn a_target_that_never_stands_still_is_moving() {
        let mut allocator = Allocator::default();
        let states = (1..=2 * MOST_ROUNDS as u64).map(|n| {
            allocator.allocate(0x1000 * n);
            allocator.free(0x1000 * n);
            allocator.allocate(0x1000 * n);
            allocator.memory()
        });
        let memory = Moving::new(states.collect());
        assert_eq!(tables().read(&memory).unwrap(), AddressOutcome::Moving);
    }

    /// Another table changes while one is copied: this one need not be copied again.
    #[test]
    fn what_is_good_of_an_attempt_is_not_copied_again() {
        let mut allocator = Allocator::default();
        allocator.allocate(0x7000);
        let mut first = tables();
        read(&mut first, &allocator);
        allocator.allocate(0x8000);
        let standing = Moving::new(vec![allocator.memory()]);
        first.clone().read(&standing).unwrap();
        let heads =
            TABLES * FlatTable::SIZE + CounterPoller::new(&layout(), &[Addr(DEVICE)]).poll_len();
        assert_eq!(standing.bytes.into_inner() as usize, 2 * heads + 16 * ENTRY);
        // The counters of the second copy are ahead of the tables, as while another thread enters its block.
        let before = allocator.memory();
        allocator.ahead = 1;
        let ahead = allocator.memory();
        let memory = Moving::new(vec![before, ahead, allocator.memory()]);
        assert_eq!(first.read(&memory).unwrap(), AddressOutcome::Moving);
        allocator.ahead = 0;
        let memory = Moving::new(vec![allocator.memory()]);
        let found = changes(first.read(&memory).unwrap());
        assert_eq!(found.allocated[0].address, 0x8000);
        assert_eq!(memory.bytes.into_inner() as usize, heads);
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
