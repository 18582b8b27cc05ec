//! Offsets in one libc10_cuda build.

use crate::model::{AllocatorCounters, Metric, Pool, Stat};
use crate::target::{Addr, Field};

/// Current, peak, allocated, freed.
pub(super) const STAT: usize = 0x20;
/// A `Stat` for each [`Pool`].
pub(super) const STAT_ARRAY: usize = 3 * STAT;
/// Torch 2.13 inserted a table after these.
pub(super) const ARRAYS_BEFORE_GAP: usize = 6;
/// After the `std::recursive_mutex` (torch 2.1 to 2.15).
pub(super) const STATS: usize = 0x28;
/// Of `pthread_mutex_t` (glibc sysdeps/x86/nptl/bits/struct_mutex.h).
pub(super) const MUTEX_OWNER: Field<u32> = Field::at(0x08);
const MUTEX_KIND: Field<u32> = Field::at(0x10);
const MUTEX_RECURSIVE: u32 = 1;

/// In a `DeviceCachingAllocator` (c10/cuda/CUDACachingAllocator.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterLayout {
    /// Bytes after `reserved_bytes`: 0, or 0x20 since torch 2.13.
    pub(super) gap: usize,
    /// A glibc recursive mutex, owned during changes, comes first.
    pub(super) mutex: bool,
    /// `num_sync_all_streams`, `num_device_alloc`, `num_device_free`.
    pub(super) driver_calls: Option<[Field<i64>; 3]>,
    pub(super) max_split: Option<Field<i64>>,
    pub(super) end: usize,
}

impl CounterLayout {
    pub(super) fn with_gap(gap: usize, object: &[u8]) -> CounterLayout {
        CounterLayout {
            gap,
            mutex: MUTEX_KIND.get(object) == Some(MUTEX_RECURSIVE),
            driver_calls: None,
            max_split: None,
            end: Self::fixed_end(gap),
        }
    }

    /// End of the last counter with the same offset in all versions.
    pub(super) fn fixed_end(gap: usize) -> usize {
        STATS + Metric::ALL.len() * STAT_ARRAY + gap + 0x10 + 2 * STAT
    }

    pub(super) fn array(&self, metric: usize) -> usize {
        let gap = if metric >= ARRAYS_BEFORE_GAP { self.gap } else { 0 };
        STATS + metric * STAT_ARRAY + gap
    }

    pub(super) fn decode(&self, object: &[u8]) -> Option<AllocatorCounters> {
        let mut counters = AllocatorCounters::default();
        for (metric, of_metric) in counters.stats.iter_mut().enumerate() {
            for (pool, stat) in of_metric.iter_mut().enumerate() {
                *stat = stat_at(object, self.array(metric) + pool * STAT)?;
            }
        }
        let number = |at: usize| Field::<i64>::at(at).get(object);
        let after = self.array(Metric::ALL.len());
        counters.num_alloc_retries = number(after)?;
        counters.num_ooms = number(after + 8)?;
        counters.oversize_allocations = stat_at(object, after + 0x10)?;
        counters.oversize_segments = stat_at(object, after + 0x10 + STAT)?;
        if let Some([sync, alloc, free]) = self.driver_calls {
            counters.num_sync_all_streams = sync.get(object);
            counters.num_device_alloc = alloc.get(object);
            counters.num_device_free = free.get(object);
        }
        counters.max_split_size = self.max_split.and_then(|field| field.get(object));
        Some(counters)
    }

    pub(super) fn is_locked(&self, object: &[u8]) -> Option<bool> {
        if !self.mutex {
            return None;
        }
        MUTEX_OWNER.get(object).map(|owner| owner != 0)
    }
}

pub(super) fn stat_at(object: &[u8], offset: usize) -> Option<Stat> {
    let number = |at: usize| Field::<i64>::at(offset + at).get(object);
    Some(Stat {
        current: number(0)?,
        peak: number(8)?,
        allocated: number(0x10)?,
        freed: number(0x18)?,
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolsLayout {
    /// `large_blocks`, `small_blocks`.
    pub(super) pools: [usize; 2],
    pub(super) pool: PoolLayout,
    /// `active_blocks`.
    pub(super) active: usize,
    /// Later tables; one may be `graph_pools`.
    pub(super) tables: Vec<usize>,
    pub(super) end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolLayout {
    /// Sets: 2 (blocks, unmapped), 3 since torch 2.13.
    pub(super) sets: usize,
}

impl PoolLayout {
    pub(super) fn is_small(self) -> Field<u8> {
        Field::at(self.sets * super::containers::TreeHeader::SET)
    }

    /// Null for the device's own pools.
    pub(super) fn owner(self) -> Field<Addr> {
        Field::at(self.sets * super::containers::TreeHeader::SET + 8)
    }

    pub(super) fn len(self) -> usize {
        self.owner().end()
    }
}

/// Size at 0x30 up to torch 2.10, 0x38 since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLayout {
    pub(super) size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawBlock {
    pub(super) device: i8,
    pub(super) stream: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) pool: Addr,
    pub(super) address: u64,
    pub(super) allocated: bool,
    pub(super) mapped: bool,
    pub(super) prev: Addr,
    pub(super) next: Addr,
}

impl BlockLayout {
    pub(super) const SIZES: std::ops::RangeInclusive<usize> = 0x20..=0x78;
    pub(super) const MAX_LEN: usize = 0x78 + 0x38;

    pub(super) fn pool(self) -> Field<Addr> {
        Field::at(self.size + 0x10)
    }

    pub(super) fn len(self) -> usize {
        self.size + 0x38
    }

    /// After `event_count` (4 or 8 bytes) and two `shared_ptr`s.
    pub(super) fn expandable_segment(self) -> [Field<Addr>; 2] {
        [0x68, 0x60].map(|at| Field::at(self.size + at))
    }

    pub(super) fn decode(self, bytes: &[u8]) -> Option<RawBlock> {
        let number = |at: usize| Field::<u64>::at(self.size + at).get(bytes);
        let flag = |at: usize| match Field::<u8>::at(self.size + at).get(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let link = |at: usize| match Field::<Addr>::at(self.size + at).get(bytes)? {
            Addr(0) => Some(Addr(0)),
            addr => (addr.is_plausible() && addr.0 % 16 == 0).then_some(addr),
        };
        let block = RawBlock {
            device: Field::<i8>::at(0).get(bytes)?,
            stream: Field::<u64>::at(8).get(bytes)?,
            size: number(0)?,
            requested: number(8)?,
            pool: self.pool().get(bytes)?,
            address: number(0x18)?,
            allocated: flag(0x20)?,
            mapped: flag(0x21)?,
            prev: link(0x28)?,
            next: link(0x30)?,
        };
        let sound = (1..1 << 56).contains(&block.size)
            && block.address != 0
            && block.address.checked_add(block.size).is_some()
            && (!block.allocated || (block.mapped && block.requested <= block.size));
        sound.then_some(block)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PrivateLayout {
    /// `graph_pools_freeable` follows, with pools that no graph uses
    /// (c10/cuda/CUDACachingAllocator.cpp).
    pub(super) table: usize,
    pub(super) pools: [usize; 2],
}

pub(super) fn pool_of(small: bool) -> Pool {
    if small { Pool::Small } else { Pool::Large }
}
