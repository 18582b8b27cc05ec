//! The live blocks of a moment by the CUDA stream whose memory they are, each with the stack that allocated it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::moment_blocks::{MomentBlocksBuilder, end, path};
use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::flame::fold::{FoldedStack, PseudoFrame, StackLabel};
use crate::model::{AllocationSource, MemoryKind, Segment, StackId};

/// The live bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMemory {
    /// The stream (`cudaStream_t` as a number, 0 is the default stream); `None` for blocks in segments that no snapshot shows.
    pub stream: Option<u64>,
    /// Stacks, the largest first.
    pub stacks: Vec<FoldedStack>,
}

/// Who allocated a block: of an exact recording the number of its source, of a sampled one a share of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum StreamKey {
    Source(u32),
    Origin(AllocationOrigin),
}

impl MomentBlocksBuilder {
    /// The live blocks of the builder's device by stream, the default stream first.
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
        let mut budget = self.profile.text_budget();
        let mut streams: BTreeMap<Option<u64>, Vec<FoldedStack>> = BTreeMap::new();
        for ((stream, key), bytes) in sums {
            let (stack, path) = match key {
                StreamKey::Source(number) => {
                    let source = keyframe.allocation_sources.get(number as usize);
                    let source = source.unwrap_or(&AllocationSource::Lost);
                    (self.stack_of(source), path(&self.profile, source))
                }
                StreamKey::Origin(origin) => {
                    let key = self.profile.fold_key(origin, false);
                    (key.1, self.profile.path_of(key))
                }
            };
            let path = match budget.takes(stack, bytes) {
                true => path,
                false => vec![StackLabel::Pseudo(PseudoFrame::LeftOut)],
            };
            streams.entry(stream).or_default().push(FoldedStack { path, bytes });
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

    /// The device's segments as snapshots show them, by address: the last one before the moment, and what the next one has
    /// besides.
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
                // Of an expandable one the later snapshot may have less, or more.
                segments.retain(|_, later| {
                    end(later) <= segment.address || later.address >= end(segment)
                });
                segments.insert(segment.address, segment);
            }
        }
        segments
    }
}
