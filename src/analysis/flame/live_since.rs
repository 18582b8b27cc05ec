//! Memory allocated after a moment and still live.

use std::collections::BTreeMap;

use super::{evidence, paths};
use crate::analysis::folded::{FoldedStack, StackLabel};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, MemoryKind, Nanos};

/// PyTorch's live bytes allocated at `from` or later, by stack; `None` in a sampled recording.
pub fn live_since(profile: &Profile, device: CudaIndex, from: Nanos) -> Option<Vec<FoldedStack>> {
    profile.exact()?;
    let keyframe = profile.keyframe(profile.duration());
    let mut by_source: BTreeMap<u32, u64> = BTreeMap::new();
    let of_device = keyframe.memory.iter().filter(|of| of.memory_kind == MemoryKind::Torch(device));
    let blocks = of_device.flat_map(|memory| &memory.blocks);
    for block in blocks.filter(|block| block.allocated_at >= from) {
        *by_source.entry(block.allocation_source).or_default() += block.stands_for;
    }
    let mut by_path: BTreeMap<Vec<StackLabel>, u64> = BTreeMap::new();
    for (source, bytes) in by_source {
        let Some(source) = keyframe.allocation_sources.get(source as usize) else { continue };
        *by_path.entry(paths::of_source(profile, source)).or_default() += bytes;
    }
    let stack = |(path, bytes)| FoldedStack { path, bytes, evidence: None };
    let mut stacks: Vec<FoldedStack> = by_path.into_iter().map(stack).collect();
    evidence::of_exact(profile, &mut stacks);
    stacks.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
    Some(stacks)
}
