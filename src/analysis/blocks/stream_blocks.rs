//! Live blocks of a moment by CUDA stream.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::moment_blocks::{BlocksBuilder, end};
use crate::analysis::attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::flame::paths;
use crate::analysis::folded::{FoldedStack, PseudoFrame, StackLabel};
use crate::model::{AllocationSource, MemoryKind, Segment, StackId};

/// Live bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMemory {
    /// `cudaStream_t` as a number, 0: the default stream; `None`: blocks outside known segments.
    pub stream: Option<u64>,
    /// Largest first.
    pub stacks: Vec<FoldedStack>,
}

/// The site of a block: source number (exact), or a share (sampled).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum StreamKey {
    Source(u32),
    Origin(AllocationOrigin),
}

impl BlocksBuilder {
    /// Live blocks by stream, the default stream first.
    pub fn by_stream(mut self) -> Vec<StreamMemory> {
        self.take_moment();
        let keyframe = self.keyframe.take().unwrap_or_default();
        let segments = self.known_segments();
        let stream_of = |address: u64| -> Option<u64> {
            let (_, segment) = segments.range(..=address).next_back()?;
            (end(segment) > address).then_some(segment.stream)
        };
        let mut sums: FxHashMap<(Option<u64>, StreamKey), u64> = FxHashMap::default();
        if self.profile.exact().is_some() {
            let is_device = |kind: MemoryKind| kind == MemoryKind::Torch(self.device);
            let memory = keyframe.memory.iter().filter(|memory| is_device(memory.memory_kind));
            for block in memory.flat_map(|memory| &memory.blocks) {
                let key = StreamKey::Source(block.allocation_source);
                *sums.entry((stream_of(block.address), key)).or_default() += block.size;
            }
        } else {
            let before = BlockAttribution::before();
            for block in self.profile.charged_blocks(self.device) {
                let stream = stream_of(block.address);
                let charge = block.charge.as_ref().unwrap_or(&before);
                self.profile.shown(charge).split(block.size, |origin, bytes| {
                    *sums.entry((stream, StreamKey::Origin(origin))).or_default() += bytes;
                });
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|&((stream, key), bytes)| {
            (std::cmp::Reverse(bytes), stream, key)
        });
        let mut budget = paths::budget(&self.profile);
        let mut streams: BTreeMap<Option<u64>, Vec<FoldedStack>> = BTreeMap::new();
        for ((stream, key), bytes) in sums {
            let (stack, path) = match key {
                StreamKey::Source(number) => {
                    let source = keyframe.allocation_sources.get(number as usize);
                    let source = source.unwrap_or(&AllocationSource::Lost);
                    (self.stack_of(source), paths::of_source(&self.profile, source))
                }
                StreamKey::Origin(origin) => {
                    let key = paths::key(&self.profile, origin, false);
                    (key.1, paths::of_key(&self.profile, key))
                }
            };
            let path = match budget.takes(stack, bytes) {
                true => path,
                false => vec![StackLabel::Pseudo(PseudoFrame::LeftOut)],
            };
            streams.entry(stream).or_default().push(FoldedStack { path, bytes, evidence: None });
        }
        let mut streams: Vec<StreamMemory> =
            streams.into_iter().map(|(stream, stacks)| StreamMemory { stream, stacks }).collect();
        streams.sort_by_key(|memory| (memory.stream.is_none(), memory.stream));
        streams
    }

    fn stack_of(&self, source: &AllocationSource) -> Option<StackId> {
        match source {
            AllocationSource::Site(site) => self.profile.stacks().get_site(*site)?.stack,
            _ => None,
        }
    }

    /// Segments of the snapshot before, and new ones of the next, by address.
    fn known_segments(&self) -> BTreeMap<u64, &Segment> {
        let mut segments: BTreeMap<u64, &Segment> = BTreeMap::new();
        if let Some(after) = self.after.get(&self.device) {
            segments.extend(after.segments.iter().map(|segment| (segment.address, segment)));
        }
        if let Some(before) = self.before.get(&self.device) {
            let is_there = |segment: &&Segment| {
                let returned = self.returned.get(&segment.address);
                returned.is_none_or(|at| *at <= before.time)
            };
            for segment in before.segments.iter().filter(is_there) {
                // The later snapshot may show an expandable segment larger or smaller.
                segments.retain(|_, later| {
                    end(later) <= segment.address || later.address >= end(segment)
                });
                segments.insert(segment.address, segment);
            }
        }
        segments
    }
}
