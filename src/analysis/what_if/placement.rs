//! The stream and the private pool of an address. Events do not tell them; segments do.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::model::{AllocatorSnapshot, Nanos, PoolId, Segment};

/// Numbers of a stream and a private pool; 0: the default one, and none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct BlockPlace {
    pub(super) stream: u32,
    pub(super) pool: u32,
}

#[derive(Debug)]
struct PlacedRange {
    from: u64,
    to: u64,
    place: BlockPlace,
}

/// Places by address, at each snapshot.
#[derive(Debug)]
pub(super) struct SegmentPlaces {
    /// By time; ranges by address.
    snapshots: Vec<(Nanos, Vec<PlacedRange>)>,
    streams: FxHashMap<u64, u32>,
    /// Further streams.
    unknown: u32,
    pools: FxHashMap<PoolId, u32>,
}

impl SegmentPlaces {
    pub(super) fn new() -> SegmentPlaces {
        SegmentPlaces {
            snapshots: Vec::new(),
            streams: FxHashMap::from_iter([(0, 0)]),
            unknown: 0,
            pools: FxHashMap::from_iter([(PoolId::default(), 0)]),
        }
    }

    pub(super) fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        let mut ranges: Vec<PlacedRange> = Vec::new();
        for segment in &snapshot.segments {
            let to = segment.address.saturating_add(segment.size);
            let place = self.of_segment(segment);
            ranges.push(PlacedRange { from: segment.address, to, place });
        }
        ranges.sort_by_key(|range| range.from);
        self.snapshots.push((snapshot.time, ranges));
    }

    /// Numbers its stream and pool.
    pub(super) fn of_segment(&mut self, segment: &Segment) -> BlockPlace {
        let next = self.streams.len() as u32;
        let stream = *self.streams.entry(segment.stream).or_insert(next);
        let next = self.pools.len() as u32;
        let id = if segment.is_private() { segment.pool } else { PoolId::default() };
        let pool = *self.pools.entry(id).or_insert(next);
        BlockPlace { stream, pool }
    }

    /// A stream that no snapshot has.
    pub(super) fn unknown_stream(&mut self) -> BlockPlace {
        self.unknown += 1;
        BlockPlace { stream: self.streams() - 1, pool: 0 }
    }

    /// Where there is only one place, it is that.
    pub(super) fn is_single(&self) -> bool {
        self.streams.len() == 1 && self.pools.len() == 1
    }

    pub(super) fn streams(&self) -> u32 {
        self.streams.len() as u32 + self.unknown
    }

    /// By the next snapshot that has the address, else by the last one before.
    pub(super) fn at(&self, address: u64, time: Nanos) -> Option<BlockPlace> {
        let next = self.snapshots.partition_point(|(at, _)| *at < time);
        let (before, after) = self.snapshots.split_at(next);
        let near = after.first().into_iter().chain(before.last());
        near.filter_map(|(_, ranges)| {
            let past = ranges.partition_point(|range| range.from <= address);
            let range = ranges.get(past.checked_sub(1)?)?;
            (address < range.to).then_some(range.place)
        })
        .next()
    }
}

/// The most frequent place of each key.
pub(super) fn most_often<K: Copy + Eq + Hash>(
    placed: impl Iterator<Item = (K, BlockPlace)>,
) -> FxHashMap<K, BlockPlace> {
    let mut counts: FxHashMap<(K, BlockPlace), u64> = FxHashMap::default();
    for at in placed {
        *counts.entry(at).or_default() += 1;
    }
    let mut most: FxHashMap<K, (u64, BlockPlace)> = FxHashMap::default();
    for ((key, place), count) in counts {
        let best = most.entry(key).or_insert((count, place));
        *best = (*best).max((count, place));
    }
    most.into_iter().map(|(key, (_, place))| (key, place)).collect()
}

/// Numbers groups of segments: two are of one group if blocks of one site lie in both.
pub(super) fn grouped<R, S>(pairs: impl Iterator<Item = (R, S)>) -> FxHashMap<R, u32>
where
    R: Copy + Eq + Hash,
    S: Copy + Eq + Hash,
{
    let mut groups: Vec<u32> = Vec::new();
    let (mut of_range, mut of_site) = (FxHashMap::default(), FxHashMap::default());
    for (range, site) in pairs {
        let known = of_site.get(&site).or_else(|| of_range.get(&range)).copied();
        let group = known.unwrap_or_else(|| {
            groups.push(groups.len() as u32);
            groups.len() as u32 - 1
        });
        let (a, b) =
            (*of_site.entry(site).or_insert(group), *of_range.entry(range).or_insert(group));
        let (a, b) = (root(&mut groups, a), root(&mut groups, b));
        groups[a.max(b) as usize] = a.min(b);
    }
    of_range.into_iter().map(|(range, group)| (range, root(&mut groups, group))).collect()
}

/// The group that this one became part of.
fn root(groups: &mut [u32], mut group: u32) -> u32 {
    while groups[group as usize] != group {
        groups[group as usize] = groups[groups[group as usize] as usize];
        group = groups[group as usize];
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_with_blocks_of_one_site_are_one_group() {
        let pairs = [(1, 'a'), (2, 'b'), (3, 'c'), (2, 'c'), (4, 'd'), (1, 'e'), (4, 'e')];
        let groups = grouped(pairs.into_iter());
        assert_eq!(groups[&2], groups[&3]);
        assert_eq!(groups[&1], groups[&4]);
        assert_ne!(groups[&1], groups[&2]);
    }
}
