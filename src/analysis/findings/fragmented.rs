//! The free cache is fragmented.

use super::idle_streams::many_idle;
use super::{CacheFacts, Finding, FindingFacts, GpuFacts, pinned_segments};
use crate::analysis::blocks::FreeBlocks;
use crate::model::{AllocatorSnapshot, PoolId, Segment, bytes, number};

const MIB: u64 = 1 << 20;
/// Least cache that is always free, and its least fraction of reserved memory.
const MIN_CACHED: u64 = 128 * MIB;
const MIN_CACHED_PART: u64 = 5;
/// Least memory that a change should give back.
const MIN_BACK: u64 = MIN_CACHED / 2;
/// Fragmented if the largest free block is at most this fraction.
const MAX_PIECE_PART: u64 = 4;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let idle = many_idle(facts);
    let pinned = pinned_segments::gpus(facts);
    // Reported as idle streams, or with the owners, instead.
    let is_of_streams = |gpu: &GpuFacts| {
        let cached = gpu.reserved.unwrap_or(0).saturating_sub(gpu.allocated.unwrap_or(0));
        idle.iter().any(|(of, idle)| *of == gpu.gpu && idle.bytes > cached / 2)
    };
    let is_other = |gpu: &&GpuFacts| is_of_streams(gpu) || pinned.contains(&gpu.gpu);
    let found = facts.gpus.iter().filter(|gpu| !is_other(gpu)).filter_map(|gpu| {
        let (reserved, allocated) = (gpu.reserved?, gpu.allocated?);
        let CacheFacts { general, private, releasable } = gpu.cache?;
        // Graphs replay into private memory: it is not free. What the peak takes is no waste.
        let peak = facts.peak(gpu.gpu).map_or(0, |peak| peak.bytes.max(0) as u64);
        let used = allocated.max(peak);
        let cached = reserved.saturating_sub(used).saturating_sub(private);
        let FreeBlocks { blocks, largest, .. } = general;
        let is_much = cached >= MIN_CACHED && cached >= reserved / MIN_CACHED_PART;
        if !is_much || largest > cached / MAX_PIECE_PART {
            return None;
        }
        let when = if peak > 0 { " even at the peak" } else { "" };
        let problem = format!(
            "GPU {}: {} is cached and free{when}, but in {} of at most {}",
            gpu.gpu,
            bytes(cached),
            number(blocks, "block"),
            bytes(largest)
        );
        let found = Finding::new("fragmented", cached, problem).command("dump", &[]);
        let maps = facts.snapshot.map_or(&[][..], |snapshot| &snapshot.blocks).iter();
        let map = maps.into_iter().find(|map| map.device.0 == gpu.gpu);
        let curable = map.map_or(0, with_expandable);
        Some(if curable > releasable + MIN_BACK {
            found
                .change("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes it usable")
                .frees(curable)
        } else if releasable >= MIN_BACK {
            found.change("torch.cuda.empty_cache() returns it to the GPU").frees(releasable)
        } else {
            found
        })
    });
    found.collect()
}

/// What could be unmapped if segments were expandable: whole granules.
fn with_expandable(map: &AllocatorSnapshot) -> u64 {
    let plain = map.segments.iter().filter(|it| !it.expandable && it.pool == PoolId::default());
    let pieces = plain.map(|segment| {
        let granule = Segment::usual_granule(segment.small);
        Segment { granule, expandable: true, ..segment.clone() }.releasable()
    });
    pieces.sum()
}
