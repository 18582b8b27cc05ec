//! The caching allocator's counters, as in `torch.cuda.memory_stats`.

use std::fmt;
use std::str::FromStr;

/// PyTorch's allocator of CUDA memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocatorBackend {
    /// PyTorch has no CUDA support, or is not loaded.
    NotLoaded,
    /// CUDA is not initialised yet.
    NotInitialized,
    /// The native caching allocator: counters and blocks are readable.
    Native,
    /// `backend:cudaMallocAsync`: the driver's pool, without PyTorch's native counters and blocks.
    CudaMallocAsync,
    /// The program's own (`CUDAPluggableAllocator`), with its C++ type.
    Pluggable(String),
    /// An unknown allocator, with what was found.
    Unknown(String),
}

impl AllocatorBackend {
    /// Prefix of the text for another process's allocator.
    pub const COPY: &str = "a copy";

    /// Whether a fork copied it from another process.
    pub fn is_copy(&self) -> bool {
        matches!(self, AllocatorBackend::Unknown(what) if what.starts_with(AllocatorBackend::COPY))
    }
}

/// One statistic (`struct Stat` in c10/core/CachingDeviceAllocator.h).
///
/// `reset_peak_memory_stats` resets `peak`; `reset_accumulated_memory_stats` resets `allocated` and
/// `freed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Stat {
    /// Value now.
    pub current: i64,
    /// Highest value since the reset.
    pub peak: i64,
    /// Sum of increases.
    pub allocated: i64,
    /// Sum of decreases.
    pub freed: i64,
}

/// The nine statistics, in the order of `DeviceStats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Metric {
    /// Allocated blocks.
    Allocation,
    /// Segments from the driver.
    Segment,
    /// Blocks allocated or waiting to be freed.
    Active,
    /// Free blocks in used segments.
    InactiveSplit,
    /// Rounded bytes of allocated blocks: `torch.cuda.memory_allocated`.
    AllocatedBytes,
    /// Bytes from the driver: `torch.cuda.memory_reserved`.
    ReservedBytes,
    /// Bytes in active blocks.
    ActiveBytes,
    /// Bytes in inactive split blocks.
    InactiveSplitBytes,
    /// Bytes requested, before rounding.
    RequestedBytes,
}

impl Metric {
    /// All, in the order of `DeviceStats`.
    pub const ALL: [Metric; 9] = [
        Metric::Allocation,
        Metric::Segment,
        Metric::Active,
        Metric::InactiveSplit,
        Metric::AllocatedBytes,
        Metric::ReservedBytes,
        Metric::ActiveBytes,
        Metric::InactiveSplitBytes,
        Metric::RequestedBytes,
    ];

    /// First part of its key in `memory_stats`.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Allocation => "allocation",
            Metric::Segment => "segment",
            Metric::Active => "active",
            Metric::InactiveSplit => "inactive_split",
            Metric::AllocatedBytes => "allocated_bytes",
            Metric::ReservedBytes => "reserved_bytes",
            Metric::ActiveBytes => "active_bytes",
            Metric::InactiveSplitBytes => "inactive_split_bytes",
            Metric::RequestedBytes => "requested_bytes",
        }
    }

    /// Whether it counts bytes.
    pub fn is_bytes(self) -> bool {
        self.name().ends_with("bytes")
    }
}

/// Pools of a statistic (`enum class StatType` in c10/core/Allocator.h, CachingDeviceAllocator.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Pool {
    /// Both pools (`all`).
    All,
    /// Blocks of up to 1 MiB (`small_pool`).
    Small,
    /// Larger blocks (`large_pool`).
    Large,
}

impl Pool {
    /// All, in the order of a `StatArray`.
    pub const ALL: [Pool; 3] = [Pool::All, Pool::Small, Pool::Large];

    /// Second part of the key.
    pub fn name(self) -> &'static str {
        match self {
            Pool::All => "all",
            Pool::Small => "small_pool",
            Pool::Large => "large_pool",
        }
    }
}

/// A device's `torch.cuda.memory_stats`; `None`: this PyTorch lacks the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocatorCounters {
    /// `[Metric][Pool]`.
    pub stats: [[Stat; 3]; 9],
    /// `cudaMalloc` retries after freeing the cache.
    pub num_alloc_retries: i64,
    /// Out-of-memory errors.
    pub num_ooms: i64,
    /// Allocations larger than `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments larger than `max_split_size`.
    pub oversize_segments: Stat,
    /// `synchronize_and_free_events` calls (torch 2.3+).
    pub num_sync_all_streams: Option<i64>,
    /// Driver allocations (torch 2.3+).
    pub num_device_alloc: Option<i64>,
    /// Driver frees (torch 2.3+).
    pub num_device_free: Option<i64>,
    /// Larger blocks are not split, in bytes; `None`: unreadable.
    pub max_split_size: Option<i64>,
}

impl AllocatorCounters {
    /// One statistic.
    pub fn stat(&self, metric: Metric, pool: Pool) -> Stat {
        self.stats[metric as usize][pool as usize]
    }

    /// `torch.cuda.memory_allocated()`.
    #[expect(
        clippy::misnamed_getters,
        reason = "named as in PyTorch; `Stat::allocated` is a running total"
    )]
    pub fn allocated(&self) -> i64 {
        self.stat(Metric::AllocatedBytes, Pool::All).current
    }

    /// `torch.cuda.max_memory_allocated()`.
    pub fn max_allocated(&self) -> i64 {
        self.stat(Metric::AllocatedBytes, Pool::All).peak
    }

    /// `torch.cuda.memory_reserved()`.
    pub fn reserved(&self) -> i64 {
        self.stat(Metric::ReservedBytes, Pool::All).current
    }

    /// `torch.cuda.max_memory_reserved()`.
    pub fn max_reserved(&self) -> i64 {
        self.stat(Metric::ReservedBytes, Pool::All).peak
    }
}

/// The four numbers of a [`Stat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatField {
    /// [`Stat::current`].
    Current,
    /// [`Stat::peak`].
    Peak,
    /// [`Stat::allocated`].
    Allocated,
    /// [`Stat::freed`].
    Freed,
}

impl StatField {
    /// All, in the order of a `Stat`.
    pub const ALL: [StatField; 4] =
        [StatField::Current, StatField::Peak, StatField::Allocated, StatField::Freed];

    /// Third part of the key.
    pub fn name(self) -> &'static str {
        match self {
            StatField::Current => "current",
            StatField::Peak => "peak",
            StatField::Allocated => "allocated",
            StatField::Freed => "freed",
        }
    }
}

/// A key of `torch.cuda.memory_stats`, such as `active_bytes.all.peak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct StatKey {
    pub metric: Metric,
    pub pool: Pool,
    pub field: StatField,
}

impl StatKey {
    /// All 9 metrics x 3 pools x 4 fields.
    pub fn all() -> impl Iterator<Item = StatKey> {
        Metric::ALL.into_iter().flat_map(|metric| {
            Pool::ALL.into_iter().flat_map(move |pool| {
                StatField::ALL.into_iter().map(move |field| StatKey { metric, pool, field })
            })
        })
    }

    /// Its value.
    pub fn value_in(self, counters: &AllocatorCounters) -> i64 {
        let stat = counters.stat(self.metric, self.pool);
        match self.field {
            StatField::Current => stat.current,
            StatField::Peak => stat.peak,
            StatField::Allocated => stat.allocated,
            StatField::Freed => stat.freed,
        }
    }
}

impl fmt::Display for StatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.metric.name(), self.pool.name(), self.field.name())
    }
}

/// Text that is no key of `torch.cuda.memory_stats`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownStat(pub String);

impl fmt::Display for UnknownStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |parts: &[&str]| parts.join(", ");
        write!(
            f,
            "'{}' is not a key of torch.cuda.memory_stats; a key is METRIC.POOL.FIELD with METRIC one of {}; POOL one of {}; FIELD one of {}",
            self.0,
            names(&Metric::ALL.map(Metric::name)),
            names(&Pool::ALL.map(Pool::name)),
            names(&StatField::ALL.map(StatField::name)),
        )
    }
}

impl std::error::Error for UnknownStat {}

impl FromStr for StatKey {
    type Err = UnknownStat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        StatKey::all()
            .find(|key| key.to_string() == text)
            .ok_or_else(|| UnknownStat(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_from_its_text() {
        assert_eq!(StatKey::all().count(), 108);
        for key in StatKey::all() {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn a_wrong_key_lists_the_right_parts() {
        let message = "active_bytes.peak".parse::<StatKey>().unwrap_err().to_string();
        assert!(message.contains("requested_bytes") && message.contains("small_pool"), "{message}");
    }
}
