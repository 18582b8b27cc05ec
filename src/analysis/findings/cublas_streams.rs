//! cuBLAS keeps a work space for each stream that it was used on.

use std::collections::BTreeMap;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{BlockState, CppKeeper, PoolId, count};
use crate::ownership::cuda_device;

/// One stream to capture and one to compute are usual.
const MIN_STREAMS: u64 = 3;

/// Streams on which nothing else is allocated: they were made for a warm-up, or anew.
pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let mut found = Vec::new();
    for map in &snapshot.blocks {
        let device = cuda_device(map.device);
        let workspaces: BTreeMap<u64, u64> = snapshot
            .cpp
            .iter()
            .filter(|held| held.keeper == CppKeeper::Cublas && held.device == device)
            .map(|held| (held.data, held.of))
            .collect();
        // By stream: bytes of work spaces, whether anything else is allocated.
        let mut streams: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for (segment, block) in
            map.blocks().filter(|(_, block)| block.state == BlockState::Allocated)
        {
            match workspaces.get(&block.address) {
                // A graph replays into it.
                Some(_) if segment.pool != PoolId::default() => {}
                Some(stream) => streams.entry(*stream).or_default().0 += block.size,
                None => streams.entry(segment.stream).or_default().1 = true,
            }
        }
        let idle =
            streams.iter().filter(|(stream, (size, used))| **stream != 0 && *size > 0 && !used);
        let (number, size) = idle.fold((0, 0), |(n, all), (_, (size, _))| (n + 1, all + size));
        if number >= MIN_STREAMS && size >= MIN_BYTES {
            let problem = format!(
                "GPU {}: cuBLAS keeps a work space for each of {} streams that hold nothing else",
                map.device.0,
                count(number)
            );
            let change = "warm up on one stream, then call torch._C._cuda_clearCublasWorkspaces()";
            found.push(Finding::new("cublas streams", size, problem).change(change).frees(size));
        }
    }
    found
}
