//! The stream and the private pool of an address. Events do not tell them; segments do.

use rustc_hash::FxHashMap;

use crate::model::{AllocatorSnapshot, Nanos, PoolId, Segment, SiteId};

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
    pools: FxHashMap<PoolId, u32>,
    /// Where a site's blocks lie, with their number.
    sites: FxHashMap<SiteId, (BlockPlace, u64)>,
}

impl SegmentPlaces {
    pub(super) fn new() -> SegmentPlaces {
        SegmentPlaces {
            snapshots: Vec::new(),
            streams: FxHashMap::from_iter([(0, 0)]),
            pools: FxHashMap::from_iter([(PoolId::default(), 0)]),
            sites: FxHashMap::default(),
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

    /// Where there is only one place, it is that.
    pub(super) fn is_single(&self) -> bool {
        self.streams.len() == 1 && self.pools.len() == 1
    }

    pub(super) fn streams(&self) -> u32 {
        self.streams.len() as u32
    }

    /// Where each site's blocks lie most often.
    pub(super) fn learn_sites(&mut self, placed: impl Iterator<Item = (SiteId, BlockPlace)>) {
        let mut counts: FxHashMap<(SiteId, BlockPlace), u64> = FxHashMap::default();
        for at in placed {
            *counts.entry(at).or_default() += 1;
        }
        for ((site, place), count) in counts {
            let most = self.sites.entry(site).or_insert((place, count));
            if (count, place) > (most.1, most.0) {
                *most = (place, count);
            }
        }
    }

    /// For a segment that came and went between two snapshots.
    pub(super) fn of_site(&self, site: SiteId) -> Option<BlockPlace> {
        self.sites.get(&site).map(|(place, _)| *place)
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
