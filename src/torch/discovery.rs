//! Finds the devices' allocators by shape (11 layouts in PyTorch 2.1 to 2.15): a vector of
//! `DeviceCachingAllocator`s, each a recursive mutex, `DeviceStats`, two `BlockPool`s that begin
//! with `std::set`s, and hash tables, first `active_blocks` (c10/cuda/CUDACachingAllocator.cpp).
//! Each step checks invariants, the last one the sums over blocks (`check`).

use super::check::{array_is_whole, counters_are_whole};
use super::containers::{FlatTable, TreeHeader, TreeNode};
use super::layout::{
    ARRAYS_BEFORE_GAP, BlockLayout, CounterLayout, PoolLayout, PoolsLayout, STAT_ARRAY, STATS,
    stat_at,
};
use crate::abi::CounterAddresses;
use crate::model::{Metric, Pool};
use crate::target::{Addr, Field, Memory, MemoryError};

/// In the allocator; the vector was seen at 0x50 to 0x5838.
const SEARCHED: usize = 0x8000;
const MAX_DEVICES: u64 = 128;
/// 0x608 to 0xc28 seen.
const OBJECT_SIZES: std::ops::RangeInclusive<usize> = 0x500..=0x4000;
/// If malloc stores no object size.
const DEFAULT_SIZE: usize = 0xc80;
const LARGEST_GAP: usize = 0x100;
/// Between `oversize_segments` and the pools.
const TAIL: std::ops::RangeInclusive<usize> = 0x08..=0x60;
const SAMPLES: usize = 64;
/// `max_split_size` exceeds `kLargeBuffer`, or is -1.
const MIN_MAX_SPLIT_BYTES: i64 = 20 << 20;

#[derive(Debug, Clone)]
pub(super) struct DiscoveredDevices {
    pub(super) vector: Addr,
    pub(super) range: [u64; 2],
    pub(super) objects: Vec<Addr>,
    pub(super) counters: CounterLayout,
}

impl DiscoveredDevices {
    pub(super) fn levels(
        &self,
        blocks: Option<Addr>,
    ) -> impl Iterator<Item = CounterAddresses> + '_ {
        let of = |metric: Metric| self.counters.array(metric as usize);
        let [allocated, reserved, active] =
            [Metric::AllocatedBytes, Metric::ReservedBytes, Metric::ActiveBytes].map(of);
        self.objects.iter().map(move |object| CounterAddresses {
            allocated: object.0 + allocated as u64,
            reserved: (reserved - allocated) as u32,
            active: (active - allocated) as u32,
            blocks: blocks.map(|at| at.0),
        })
    }
}

#[derive(Debug)]
pub(super) enum SearchOutcome {
    Found(Box<DiscoveredDevices>),
    NotInitialized,
    Unknown(String),
}

pub(super) fn devices(memory: &dyn Memory, allocator: Addr) -> SearchOutcome {
    let words = words_at(memory, allocator, SEARCHED);
    let mut unknown = None;
    for (index, triple) in words.windows(3).enumerate() {
        let &[begin, end, capacity] = triple else { continue };
        let bytes = end.wrapping_sub(begin);
        let is_vector = Addr(begin).is_plausible()
            && begin % 16 == 0
            && begin < end
            && end <= capacity
            && bytes % 8 == 0
            && bytes / 8 <= MAX_DEVICES
            && capacity - begin <= 8 * MAX_DEVICES;
        if !is_vector {
            continue;
        }
        let pointers: Vec<Addr> =
            words_at(memory, Addr(begin), bytes as usize).into_iter().map(Addr).collect();
        if pointers.len() as u64 != bytes / 8 || !pointers.iter().all(|p| is_object(*p)) {
            continue;
        }
        let copies: Vec<Vec<u8>> = pointers.iter().map(|p| copy_object(memory, *p)).collect();
        if copies.iter().any(|copy| copy.len() < *OBJECT_SIZES.start()) {
            continue;
        }
        match counter_layout(memory, &pointers, &copies) {
            Ok(counters) => {
                return SearchOutcome::Found(Box::new(DiscoveredDevices {
                    vector: allocator + 8 * index as u64,
                    range: [begin, end],
                    objects: pointers,
                    counters,
                }));
            }
            // Objects of other vectors do not begin like an allocator.
            Err(why) if copies.iter().all(|c| CounterLayout::with_gap(0, c).mutex) => {
                unknown = Some(why);
            }
            Err(_) => {}
        }
    }
    unknown.map_or(SearchOutcome::NotInitialized, SearchOutcome::Unknown)
}

/// Whether `operator new` can have returned it.
fn is_object(addr: Addr) -> bool {
    addr.is_plausible() && addr.0.is_multiple_of(16)
}

/// Copies it to the end of its heap chunk; empty if it cannot be an allocator.
pub(super) fn copy_object(memory: &dyn Memory, addr: Addr) -> Vec<u8> {
    let len = match chunk_size(memory, addr) {
        Some(size) if OBJECT_SIZES.contains(&size) => size,
        _ => DEFAULT_SIZE,
    };
    let mut bytes: Vec<u8> =
        words_at(memory, addr, len).into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// glibc heap chunk (malloc/malloc.c, `mchunk_size`).
pub(super) fn chunk_size(memory: &dyn Memory, addr: Addr) -> Option<usize> {
    let size = memory.u64(addr - 8).ok()? & !7;
    usize::try_from(size.checked_sub(8)?).ok()
}

fn words_at(memory: &dyn Memory, addr: Addr, len: usize) -> Vec<u64> {
    let mut words = Vec::with_capacity(len / 8);
    let mut done = 0;
    while done < len {
        let here = addr + done as u64;
        let part = (4096 - (here.0 % 4096) as usize).min(len - done);
        let Ok(bytes) = memory.vec(here, part) else { break };
        words.extend(
            bytes.chunks_exact(8).filter_map(|c| c.try_into().ok()).map(u64::from_le_bytes),
        );
        done += part;
    }
    words
}

fn counter_layout(
    memory: &dyn Memory,
    addrs: &[Addr],
    copies: &[Vec<u8>],
) -> Result<CounterLayout, String> {
    let arrays_hold = |copy: &[u8]| {
        (0..ARRAYS_BEFORE_GAP).all(|metric| {
            let at = STATS + metric * STAT_ARRAY;
            let stats = [0, 1, 2].map(|pool| stat_at(copy, at + pool * 0x20).unwrap_or_default());
            array_is_whole(&stats)
        })
    };
    if !copies.iter().all(|copy| arrays_hold(copy)) {
        return Err("the first six statistics of a device do not add up".to_owned());
    }
    let gap = (0..=LARGEST_GAP)
        .step_by(8)
        .find(|gap| gap_fits(*gap, copies))
        .ok_or("the last three statistics of a device were not found")?;
    let mut why = String::new();
    for (addr, copy) in addrs.iter().zip(copies) {
        let mut layout = CounterLayout::with_gap(gap, copy);
        match pool_groups(memory, *addr, copy, gap) {
            Ok((first, ..)) => {
                add_tail(&mut layout, copy, first);
                return Ok(layout);
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The last three arrays may be `gap` bytes after the first six.
fn gap_fits(gap: usize, copies: &[Vec<u8>]) -> bool {
    let mut in_use = false;
    for copy in copies {
        let Some(counters) = CounterLayout::with_gap(gap, copy).decode(copy) else { return false };
        if !counters_are_whole(&counters) {
            return false;
        }
        in_use |= counters.stat(Metric::ActiveBytes, Pool::All).current > 0;
    }
    // Zeros fit anywhere: without blocks, only known gaps count.
    let table = copies.iter().all(|copy| {
        copy.get(STATS + ARRAYS_BEFORE_GAP * STAT_ARRAY..)
            .is_some_and(|bytes| FlatTable::decode(bytes).is_some())
    });
    in_use || gap == if table { FlatTable::SIZE } else { 0 }
}

fn add_tail(layout: &mut CounterLayout, copy: &[u8], pools: usize) {
    let start = CounterLayout::fixed_end(layout.gap);
    let number = |at: usize| Field::<i64>::at(start + 8 * at).get(copy).unwrap_or(0);
    let words = (pools - start) / 8;
    // Before `max_split_size`: three counters since 2.3, `num_oom_rejections` since 2.12.
    let counters = if words >= 4 { 3 } else { 0 };
    // In MiB; what follows is no counter.
    let is_limit =
        |value: i64| value == -1 || (value > MIN_MAX_SPLIT_BYTES && value % (1 << 20) == 0);
    if let Some(at) = (counters..words).find(|at| is_limit(number(*at))) {
        layout.max_split = Some(Field::at(start + 8 * at));
        if counters == 3 && (0..3).all(|at| number(at) >= 0) {
            layout.driver_calls = Some([0, 1, 2].map(|at| Field::at(start + 8 * at)));
        }
        layout.end = start + 8 * (at + 1);
    }
}

/// Offsets of large and small pool; number of sets.
fn pool_groups(
    memory: &dyn Memory,
    addr: Addr,
    copy: &[u8],
    gap: usize,
) -> Result<(usize, usize, usize), String> {
    let start = CounterLayout::fixed_end(gap);
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for at in (start..copy.len().saturating_sub(TreeHeader::SIZE)).step_by(8) {
        if !is_tree(memory, copy, addr, at) {
            continue;
        }
        match groups.last_mut() {
            Some((first, count)) if *first + *count * TreeHeader::SET == at => *count += 1,
            _ => groups.push((at, 1)),
        }
        if groups.len() == 3 {
            break;
        }
    }
    let [(large, sets), (small, others), ..] = groups[..] else {
        return Err(format!("{} of the 2 block pools of a device were found", groups.len()));
    };
    let (large, small) = (large - TreeHeader::IN_SET, small - TreeHeader::IN_SET);
    let pool = PoolLayout { sets };
    let kind = |at: usize| pool.is_small().get(copy.get(at..)?);
    let owner = |at: usize| pool.owner().get(copy.get(at..)?);
    if sets < 2 || sets != others || kind(large) != Some(0) || kind(small) != Some(1) {
        return Err(format!("the block pools of a device begin with {sets} and {others} sets"));
    }
    if owner(large) != Some(Addr(0)) || owner(small) != Some(Addr(0)) {
        return Err("the block pools of a device have an owner".to_owned());
    }
    if !large.checked_sub(start).is_some_and(|tail| TAIL.contains(&tail)) {
        return Err(format!("the block pools of a device begin at {large:#x}"));
    }
    Ok((large, small, sets))
}

pub(super) fn is_tree(memory: &dyn Memory, copy: &[u8], addr: Addr, at: usize) -> bool {
    let here = addr + at as u64;
    let Some(header) = copy.get(at..).and_then(|bytes| TreeHeader::decode(bytes, here)) else {
        return false;
    };
    header.count == 0
        || memory
            .bytes(header.root)
            .is_ok_and(|node| TreeNode::decode(&node).is_some_and(|n| n.parent == here))
}

pub(super) fn pools(
    memory: &dyn Memory,
    addr: Addr,
    counters: &CounterLayout,
) -> Result<PoolsLayout, String> {
    let copy = copy_object(memory, addr);
    let (large, small, sets) = pool_groups(memory, addr, &copy, counters.gap)?;
    let pool = PoolLayout { sets };
    let mut tables = (small + pool.len()..copy.len())
        .step_by(8)
        .filter_map(|at| Some((at, FlatTable::decode(copy.get(at..)?)?)));
    let (active, table) = tables.next().ok_or("the table of active blocks was not found")?;
    let tables: Vec<usize> = tables.map(|(at, _)| at).collect();
    let expected = counters.decode(&copy).map_or(0, |c| c.stat(Metric::Active, Pool::All).current);
    if u64::try_from(expected) != Ok(table.count) {
        return Err(format!(
            "the table of active blocks has {} entries, the counter is {expected}",
            table.count
        ));
    }
    let end = tables.last().map_or(active, |last| *last) + FlatTable::SIZE;
    Ok(PoolsLayout { pools: [large, small], pool, active, tables, end })
}

/// `Ok(None)` before the device's first block.
pub(super) fn block_layout(
    memory: &dyn Memory,
    addr: Addr,
    index: u32,
    layout: &PoolsLayout,
) -> Result<Option<BlockLayout>, String> {
    let samples = sample_blocks(memory, addr, layout).map_err(|e| e.to_string())?;
    if samples.is_empty() {
        return Ok(None);
    }
    let own = layout.pools.map(|pool| addr + pool as u64);
    let fits = |block: &BlockLayout| {
        samples.iter().all(|bytes| {
            block.decode(bytes).is_some_and(|raw| {
                u32::try_from(raw.device) == Ok(index)
                    && (own.contains(&raw.pool) || is_private(memory, raw.pool, layout.pool))
            })
        })
    };
    let candidates = BlockLayout::SIZES.step_by(8).map(|size| BlockLayout { size });
    let found: Vec<BlockLayout> = candidates.filter(fits).collect();
    match found[..] {
        [one] => Ok(Some(one)),
        _ => Err(format!("{} layouts fit the {} blocks checked", found.len(), samples.len())),
    }
}

/// Whether its owner, a `PrivatePool`, contains it.
fn is_private(memory: &dyn Memory, pool: Addr, layout: PoolLayout) -> bool {
    is_object(pool - (pool.0 % 16))
        && memory
            .pointer(layout.owner().in_target(pool))
            .is_ok_and(|owner| owner < pool && pool.0 - owner.0 < 0x400)
}

fn sample_blocks(
    memory: &dyn Memory,
    addr: Addr,
    layout: &PoolsLayout,
) -> Result<Vec<[u8; BlockLayout::MAX_LEN]>, MemoryError> {
    let copy = memory.vec(addr, layout.end)?;
    let mut blocks = Vec::new();
    if let Some(table) = copy.get(layout.active..).and_then(FlatTable::decode)
        && table.count > 0
    {
        let len = FlatTable::POINTER_ENTRY * table.slots.min(4096) as usize;
        let entries = memory.vec(table.entries, len)?;
        let used = entries
            .chunks_exact(FlatTable::POINTER_ENTRY)
            .filter(|entry| FlatTable::is_used(entry[0]))
            .filter_map(|entry| Field::<Addr>::at(8).get(entry));
        blocks.extend(used.take(SAMPLES));
    }
    for pool in layout.pools {
        let at = pool + TreeHeader::IN_SET;
        let header = copy.get(at..).and_then(|b| TreeHeader::decode(b, addr + at as u64));
        if let Some(header) = header.filter(|h| h.count > 0)
            && let Some(node) = TreeNode::decode(&memory.bytes(header.root)?)
        {
            blocks.push(node.value);
        }
    }
    blocks.into_iter().filter(|b| is_object(*b)).map(|block| memory.bytes(block)).collect()
}
