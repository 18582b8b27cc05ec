//! How the allocator's cache is cut up, as a part of other documents.

use serde::{Deserialize, Serialize};

use crate::analysis::{Fragmentation, SegmentSum};

/// How the allocator's cache is cut up on one device, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragmentationJson {
    /// All segments.
    pub all: SegmentSumJson,
    /// Freed by the program, while another stream may still use it.
    pub pending_free: u64,
    /// How many free blocks there are.
    pub free_blocks: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// The free blocks by size, smallest first.
    pub free_by_size: Vec<SizeClassJson>,
    /// Segments of the default pool with nothing in use.
    pub wholly_free: SegmentSumJson,
    /// What `torch.cuda.empty_cache()` would return to the driver.
    pub releasable: u64,
    /// The pools of CUDA graphs and of `torch.cuda.MemPool`.
    pub private_pools: Vec<PrivatePoolJson>,
    /// Segments that expand.
    pub expandable: SegmentSumJson,
}

/// Sums over segments, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SegmentSumJson {
    /// How many segments.
    pub segments: u64,
    /// Their size.
    pub bytes: u64,
    /// The allocated part.
    pub allocated: u64,
    /// The free part.
    pub free: u64,
}

/// Free blocks of one size class: from `from` bytes to less than twice that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SizeClassJson {
    /// The least size of the class.
    pub from: u64,
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A private pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PrivatePoolJson {
    /// Its two numbers, as PyTorch has them.
    pub pool: [u64; 2],
    /// Its segments.
    pub sums: SegmentSumJson,
}

impl From<&SegmentSum> for SegmentSumJson {
    fn from(sum: &SegmentSum) -> SegmentSumJson {
        let SegmentSum { segments, bytes, allocated, free, .. } = *sum;
        SegmentSumJson { segments, bytes, allocated, free }
    }
}

impl From<&Fragmentation> for FragmentationJson {
    fn from(sums: &Fragmentation) -> FragmentationJson {
        let by_size = sums.by_size.iter();
        let pools = sums.private_pools.iter();
        FragmentationJson {
            all: (&sums.all).into(),
            pending_free: sums.pending_free,
            free_blocks: sums.free_blocks,
            largest_free: sums.largest_free,
            free_by_size: by_size
                .map(|c| SizeClassJson { from: c.from, blocks: c.blocks, bytes: c.bytes })
                .collect(),
            wholly_free: (&sums.wholly_free).into(),
            releasable: sums.releasable,
            private_pools: pools
                .map(|(pool, sum)| PrivatePoolJson { pool: [pool.0, pool.1], sums: sum.into() })
                .collect(),
            expandable: (&sums.expandable).into(),
        }
    }
}
