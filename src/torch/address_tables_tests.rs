//! An allocator that changes its tables between and during reads.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::model::Metric;
use crate::target::{AddressRange, MemoryImage};
use crate::torch::AllocationTotals;
use crate::torch::layout::{CounterLayout, STAT};
use crate::torch::table_copies::ENTRY;

const DEVICE: u64 = 0x10_0000;
const HEADS: u64 = 0x20_0000;
const ENTRIES: u64 = 0x30_0000;
const BLOCKS: u64 = 0x40_0000;
const ALLOCATION: (usize, u64) = (Metric::Allocation as usize, 1);
const BYTES: (usize, u64) = (Metric::AllocatedBytes as usize, 1);

/// 512-byte blocks in the small pool, all in the last table.
#[derive(Default)]
struct Allocator {
    blocks: Vec<u64>,
    allocated: i64,
    freed: i64,
    ahead: i64,
    moved: u64,
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
        for (metric, size) in metrics.map(|(m, _)| (m, if m == ALLOCATION.0 { 1 } else { 512 })) {
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
            entry[16..].copy_from_slice(&(BLOCKS + self.moved + address).to_le_bytes());
            let layout = BlockLayout { size: 0x30 };
            let mut block = vec![0; layout.len()];
            block[0x30..0x38].copy_from_slice(&512u64.to_le_bytes());
            block[0x38..0x40].copy_from_slice(&500u64.to_le_bytes());
            block[0x48..0x50].copy_from_slice(&address.to_le_bytes());
            block[0x50..0x52].copy_from_slice(&[1, 1]);
            memory.insert(Addr(BLOCKS + self.moved + address), &block);
        }
        memory.insert(Addr(ENTRIES), &entries);
        memory
    }
}

fn read(tables: &mut AddressTables, allocator: &Allocator) -> AddressOutcome {
    tables.read(&allocator.memory()).unwrap()
}

fn read_one() -> (AddressTables, Allocator) {
    let (mut tables, mut allocator) = (tables(), Allocator::default());
    allocator.allocate(0x7000);
    read(&mut tables, &allocator);
    (tables, allocator)
}

fn changes(outcome: AddressOutcome) -> AddressChanges {
    let (AddressOutcome::Read(reading) | AddressOutcome::Late { reading, .. }) = outcome else {
        panic!("{outcome:?}");
    };
    reading.changes.unwrap()
}

#[test]
fn changes_begin_after_the_first_read() {
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

#[test]
fn several_allocations_are_read_from_their_blocks() {
    let (mut tables, mut allocator) = read_one();
    allocator.allocate(0x9000);
    allocator.allocate(0x8000);
    let found = changes(read(&mut tables, &allocator));
    let block = |address| AddressedBlock { address, size: 512, requested: 500 };
    assert_eq!(found.allocated, [block(0x8000), block(0x9000)]);
}

fn verify(tables: &mut AddressTables, allocator: &Allocator) -> AddressOutcome {
    for _ in 0..TABLES {
        let outcome = tables.verify(&allocator.memory()).unwrap();
        if outcome != AddressOutcome::Unchanged || !tables.is_doubted() {
            return outcome;
        }
    }
    panic!("tables are verified over and over");
}

fn readings(outcome: &AddressOutcome) -> usize {
    let AddressOutcome::Late { readings, .. } = outcome else { panic!("{outcome:?}") };
    *readings
}

fn swapped() -> (AddressTables, Allocator) {
    let (tables, mut allocator) = read_one();
    assert!(!tables.is_doubted());
    allocator.free(0x7000);
    allocator.allocate(0x8000);
    (tables, allocator)
}

fn allocated(found: &AddressChanges) -> Vec<u64> {
    found.allocated.iter().map(|block| block.address).collect()
}

#[test]
fn verification_finds_a_swapped_block() {
    let (mut tables, allocator) = swapped();
    assert_eq!(changes(read(&mut tables, &allocator)), AddressChanges::default());
    assert!(tables.is_doubted());
    let late = verify(&mut tables, &allocator);
    assert_eq!(readings(&late), 2);
    let found = changes(late);
    assert_eq!((found.allocated[0].address, &found.freed[..]), (0x8000, &[0x7000][..]));
    assert_eq!(verify(&mut tables, &allocator), AddressOutcome::Unchanged);
    assert!(!tables.is_doubted());
}

#[test]
fn more_changes_than_the_counters_have_are_late() {
    let (mut tables, mut allocator) = swapped();
    let unnoticed = read(&mut tables, &allocator);
    assert!(matches!(unnoticed, AddressOutcome::Read(_)), "{unnoticed:?}");
    allocator.allocate(0x9000);
    let late = read(&mut tables, &allocator);
    assert_eq!(readings(&late), 2);
    let found = changes(late);
    assert_eq!((&allocated(&found)[..], &found.freed[..]), (&[0x8000, 0x9000][..], &[0x7000][..]));
}

#[test]
fn verification_finds_a_new_block_at_the_same_address() {
    let (mut tables, mut allocator) = read_one();
    allocator.free(0x7000);
    allocator.allocate(0x7000);
    allocator.moved = 0x100;
    let AddressOutcome::Read(reading) = read(&mut tables, &allocator) else { panic!() };
    let missing = MissingChanges { allocations: 1, frees: 1, allocated_bytes: 512 };
    assert_eq!(reading.missing, missing);
    let late = verify(&mut tables, &allocator);
    let AddressOutcome::Late { reading, .. } = &late else { panic!("{late:?}") };
    assert!(reading.missing.and(missing).is_nothing());
    let found = changes(late);
    assert_eq!((&allocated(&found)[..], &found.freed[..]), (&[0x7000][..], &[0x7000][..]));
}

/// A hidden and a late block together match the count.
#[test]
fn a_block_whose_size_contradicts_the_counters_is_late() {
    let missing = |allocations, frees, allocated_bytes| {
        MissingChanges { allocations, frees, allocated_bytes }.is_late()
    };
    assert!(missing(0, 0, 512) && missing(-1, 0, -512) && missing(0, -1, 0));
    assert!(!missing(0, 0, 0) && !missing(1, 1, 512));
}

#[test]
fn changes_during_verification_are_read_next() {
    let (mut tables, mut allocator) = read_one();
    allocator.allocate(0x8000);
    allocator.free(0x8000);
    assert_eq!(changes(read(&mut tables, &allocator)), AddressChanges::default());
    allocator.allocate(0x9000);
    let moved = tables.verify(&allocator.memory()).unwrap();
    assert_eq!(moved, AddressOutcome::Moving);
    let found = changes(read(&mut tables, &allocator));
    assert_eq!(found.allocated[0].address, 0x9000);
}

#[test]
fn tables_that_contradict_the_counters_are_refused() {
    let (mut tables, mut allocator) = read_one();
    allocator.ahead = 1;
    assert_eq!(read(&mut tables, &allocator), AddressOutcome::Moving);
    allocator.ahead = 0;
    allocator.allocate(0x8000);
    assert_eq!(changes(read(&mut tables, &allocator)).allocated.len(), 1);
}

/// The last state repeats.
struct Moving {
    states: Vec<MemoryImage>,
    copies: AtomicU32,
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

#[test]
fn a_table_that_changed_during_its_copy_is_copied_again() {
    let mut allocator = Allocator::default();
    allocator.allocate(0x7000);
    let mut tables = tables();
    read(&mut tables, &allocator);
    allocator.allocate(0x8000);
    let before = allocator.memory();
    allocator.allocate(0x9000);
    let memory = Moving::new(vec![before, allocator.memory()]);
    let found = changes(tables.read(&memory).unwrap());
    assert_eq!(allocated(&found), [0x8000, 0x9000]);
}

#[test]
fn constant_changes_are_reported_as_moving() {
    let mut allocator = Allocator::default();
    let states = (1..=2 * MAX_ROUNDS as u64).map(|n| {
        allocator.allocate(0x1000 * n);
        allocator.free(0x1000 * n);
        allocator.allocate(0x1000 * n);
        allocator.memory()
    });
    let memory = Moving::new(states.collect());
    assert_eq!(tables().read(&memory).unwrap(), AddressOutcome::Moving);
}

#[test]
fn valid_copies_of_a_failed_attempt_are_reused() {
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
