//! The allocator's cache, as text and JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::label::one_line;
use crate::analysis::{Fragmentation, SegmentSum};
use crate::model::AllocatorBackend;
use crate::model::PoolId;
use crate::model::{bytes, count, number, percent};

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
    /// What is cached, by why it is not used or returned: `private_pool`, `pending`,
    /// `other_stream`, `returnable`, `pinned` and `pieces`; those with any.
    pub reasons: BTreeMap<String, u64>,
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
            reasons: sums.reasons.iter().map(|(why, size)| (why.key().to_owned(), *size)).collect(),
        }
    }
}

/// `users`: what a private pool belongs to.
pub(crate) fn fragmentation_text(
    out: &mut dyn Write,
    sums: &Fragmentation,
    indent: &str,
    by_size: bool,
    users: &dyn Fn(PoolId) -> String,
) -> io::Result<()> {
    let Fragmentation { all, .. } = sums;
    if all.segments == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "{indent}cached free: {} in {}, the largest {}; {}",
        bytes(all.free),
        number(sums.free_blocks, "block"),
        bytes(sums.largest_free),
        number(all.segments, "segment"),
    )?;
    if by_size {
        free_by_size_text(out, sums, indent)?;
    }
    if sums.pending_free > 0 {
        let size = bytes(sums.pending_free);
        writeln!(out, "{indent}freed, but in use on another stream: {size}")?;
    }
    let whole = &sums.wholly_free;
    writeln!(
        out,
        "{indent}empty_cache() would return: {} (wholly free: {}, {})",
        bytes(sums.releasable),
        number(whole.segments, "segment"),
        bytes(whole.bytes)
    )?;
    for (reason, size) in &sums.reasons {
        writeln!(out, "{indent}  {:<35} {:>11}", reason.name(), bytes(*size))?;
    }
    for (pool, sum) in &sums.private_pools {
        writeln!(
            out,
            "{indent}private pool ({}, {}){}: {}",
            pool.0,
            pool.1,
            users(*pool),
            segments(sum)
        )?;
    }
    if sums.expandable.segments > 0 {
        writeln!(out, "{indent}expandable: {}", segments(&sums.expandable))?;
    }
    Ok(())
}

/// A line for each power of two.
pub(crate) fn free_by_size_text(
    out: &mut dyn Write,
    sums: &Fragmentation,
    indent: &str,
) -> io::Result<()> {
    for class in &sums.by_size {
        // The last class of a u64 has no upper end.
        let to = class.from.checked_mul(2).map_or_else(String::new, bytes);
        writeln!(
            out,
            "{indent}  {:>10} to {to:<10} {:>9} {:>12} {:6.1} %",
            bytes(class.from),
            count(class.blocks),
            bytes(class.bytes),
            percent(class.bytes, sums.all.free),
        )?;
    }
    Ok(())
}

fn segments(sum: &SegmentSum) -> String {
    format!(
        "{}, {}: {} allocated, {} free",
        number(sum.segments, "segment"),
        bytes(sum.bytes),
        bytes(sum.allocated),
        bytes(sum.free)
    )
}

/// The allocator, in words.
pub fn allocator_text(allocator: &AllocatorBackend) -> String {
    match allocator {
        AllocatorBackend::NotLoaded => "no CUDA allocator".to_owned(),
        AllocatorBackend::NotInitialized => "CUDA not initialised yet".to_owned(),
        AllocatorBackend::Native => "caching allocator".to_owned(),
        AllocatorBackend::CudaMallocAsync => "cudaMallocAsync allocator".to_owned(),
        AllocatorBackend::Pluggable(name) => format!("pluggable allocator {}", one_line(name)),
        AllocatorBackend::Unknown(what) if allocator.is_copy() => {
            format!("allocator: {}", one_line(what))
        }
        AllocatorBackend::Unknown(what) => format!("unknown allocator ({})", one_line(what)),
    }
}
