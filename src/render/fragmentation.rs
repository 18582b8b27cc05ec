//! Fragmentation of PyTorch's cache, as text and as JSON.

use std::io::{self, Write};

use super::size::{bytes, count, number, percent};
use crate::analysis::{Fragmentation, SegmentSum};
use crate::model::PoolId;

/// Writes the lines, each after `indent`; nothing for an empty cache. `users` names what a private
/// pool belongs to.
pub(super) fn fragmentation_text(
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

/// Writes the free blocks of the cache by size, a line for each power of two.
pub(super) fn free_by_size_text(
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
