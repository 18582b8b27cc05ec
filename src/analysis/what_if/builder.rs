//! Collects one device's events from the records of an exact recording.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::event_writer::{BlockLevels, CollectedEvent, CollectedKind, EventWriter};
use super::placement::{BlockPlace, SegmentPlaces, grouped, most_often};
use super::start::{StartEvents, start_events};
use super::{OlderMemory, RecordedAllocations, ReplayGaps};
use crate::model::{
    AddressSpace, AllocatorCounters, AllocatorSnapshot, Block, BlockState, CounterSnapshot,
    CudaIndex, DeviceUsage, Event, EventKind, GpuDevice, MemoryKind, Metric, Nanos, Pool, Record,
    RecordSink, SinkResult,
};

/// Memory that the driver gave, and whether PyTorch's blocks are in it.
#[derive(Debug, Clone, Copy)]
struct DriverRange {
    address: u64,
    size: u64,
    is_torch: bool,
    /// By a snapshot while it was live.
    place: Option<BlockPlace>,
}

/// Takes the records of a recording.
#[derive(Debug)]
pub struct ReplayBuilder {
    device: CudaIndex,
    events: Vec<CollectedEvent>,
    first_snapshot: Option<AllocatorSnapshot>,
    is_expandable: bool,
    places: SegmentPlaces,
    torch: Option<String>,
    starts_empty: bool,
    counters: Option<Box<AllocatorCounters>>,
    /// The highest so far, and how many events were before.
    reserved_peak: (u64, usize),
    allocated_peak: u64,
    reserved: Option<u64>,
    /// In the driver's order.
    ranges: Vec<DriverRange>,
    /// The live ones, by address.
    live_ranges: BTreeMap<u64, usize>,
    /// Since the last allocation: the driver refused; the cache was emptied; where the driver first
    /// took physical memory back.
    was_refused: bool,
    was_emptied: bool,
    physical_freed: Option<usize>,
    unplaced: u64,
    cards: Vec<GpuDevice>,
    /// Highest use of the card, and what of it was not PyTorch's; by NVML's number.
    usage: BTreeMap<u32, (u64, u64, u64)>,
    lost: u64,
}

impl ReplayBuilder {
    /// For the allocations of `device`.
    pub fn new(device: CudaIndex) -> ReplayBuilder {
        ReplayBuilder {
            device,
            events: Vec::new(),
            first_snapshot: None,
            is_expandable: false,
            places: SegmentPlaces::new(),
            torch: None,
            starts_empty: false,
            counters: None,
            reserved_peak: (0, 0),
            allocated_peak: 0,
            reserved: None,
            ranges: Vec::new(),
            live_ranges: BTreeMap::new(),
            was_refused: false,
            was_emptied: false,
            physical_freed: None,
            unplaced: 0,
            cards: Vec::new(),
            usage: BTreeMap::new(),
            lost: 0,
        }
    }

    fn push(&mut self, time: Nanos, kind: CollectedKind) {
        self.events.push(CollectedEvent { time, kind });
    }

    fn on_event(&mut self, event: &Event) {
        match event.change {
            EventKind::Allocated {
                memory_kind: MemoryKind::Torch(device),
                address,
                size,
                levels,
                block,
            } if device == self.device => {
                self.on_levels_before(event.time, levels);
                let level = levels.map(|it| (unsigned(it.reserved), unsigned(it.allocated)));
                let levels = levels.map(|it| BlockLevels {
                    allocated: unsigned(it.allocated),
                    waits: unsigned(it.active.saturating_sub(it.allocated)),
                });
                let (site, range) = (event.site, self.range_of(address));
                let kind = CollectedKind::Allocated {
                    address,
                    size,
                    block,
                    levels,
                    site,
                    range,
                    place: None,
                };
                self.push(event.time, kind);
                if let Some((reserved, allocated)) = level {
                    self.on_level(reserved, allocated);
                }
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, .. } => {
                self.push(event.time, CollectedKind::Freed { address });
            }
            EventKind::Allocated {
                memory_kind: MemoryKind::Driver(device), address, size, ..
            } if device.is_none_or(|device| device == self.device) => {
                self.on_range(DriverRange { address, size, is_torch: false, place: None });
            }
            EventKind::Freed { memory_kind: AddressSpace::Driver, address, .. } => {
                let range = self.live_ranges.remove(&address).map(|at| self.ranges[at]);
                if range.is_some_and(|range| range.is_torch) && !self.was_refused {
                    self.empty_cache(event.time, self.events.len());
                }
            }
            EventKind::Freed { memory_kind: AddressSpace::Physical, .. } => {
                self.physical_freed.get_or_insert(self.events.len());
            }
            EventKind::Failed {
                memory_kind: MemoryKind::Driver(_) | MemoryKind::Physical(_),
                ..
            } => self.was_refused = true,
            _ => {}
        }
    }

    /// Less is reserved than at the last allocation: the cache was emptied meanwhile, unless
    /// PyTorch did that because the driver refused. The replay does that by itself.
    fn on_levels_before(&mut self, time: Nanos, levels: Option<CounterSnapshot>) {
        let fell =
            levels.zip(self.reserved).is_some_and(|(now, before)| unsigned(now.reserved) < before);
        if fell && !self.was_refused {
            let at = self.physical_freed.unwrap_or(self.events.len());
            self.empty_cache(time, at);
        }
        (self.was_refused, self.was_emptied, self.physical_freed) = (false, false, None);
    }

    /// Once for all segments that go back together.
    fn empty_cache(&mut self, time: Nanos, at: usize) {
        if !std::mem::replace(&mut self.was_emptied, true) {
            let time = self.events.get(at).map_or(time, |event| event.time);
            self.events.insert(at, CollectedEvent { time, kind: CollectedKind::EmptyCache });
        }
    }

    fn on_level(&mut self, reserved: u64, allocated: u64) {
        self.reserved = Some(reserved);
        self.allocated_peak = self.allocated_peak.max(allocated);
        if reserved > self.reserved_peak.0 {
            self.reserved_peak = (reserved, self.events.len());
        }
    }

    fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        let native = snapshot.segments.iter().filter(|segment| !segment.expandable);
        for segment in native {
            let (address, size) = (segment.address, segment.size);
            let place = Some(self.places.of_segment(segment));
            let known = self.live_ranges.get(&address).map(|at| &mut self.ranges[*at]);
            match known.filter(|range| range.size == size) {
                // The first: a pool without graphs is no private one any more.
                Some(range) => (range.is_torch, range.place) = (true, range.place.or(place)),
                None => self.on_range(DriverRange { address, size, is_torch: true, place }),
            }
        }
        self.places.on_snapshot(snapshot);
        self.is_expandable |= snapshot.segments.iter().any(|segment| segment.expandable);
        self.first_snapshot.get_or_insert_with(|| snapshot.clone());
    }

    /// The live segment that has the address.
    fn range_of(&mut self, address: u64) -> Option<u32> {
        let (_, at) = self.live_ranges.range(..=address).next_back()?;
        let range = self.ranges.get_mut(*at).filter(|it| address - it.address < it.size)?;
        range.is_torch = true;
        u32::try_from(*at).ok()
    }

    fn on_range(&mut self, range: DriverRange) {
        self.live_ranges.insert(range.address, self.ranges.len());
        self.ranges.push(range);
    }

    fn on_usage(&mut self, usage: &DeviceUsage) {
        let memory = usage.total.saturating_sub(usage.reserved.unwrap_or(0));
        let outside = usage.used.saturating_sub(self.reserved.unwrap_or(0));
        let highest = self.usage.entry(usage.nvml_index).or_insert((memory, 0, 0));
        if usage.used > highest.1 {
            *highest = (memory, usage.used, outside);
        }
    }

    /// What the recording has; `None`: no allocation of this device.
    pub fn finish(mut self) -> Option<RecordedAllocations> {
        let (settings, torch) = (self.settings(), self.torch.take());
        let (memory, outside) = self.card();
        let (reserved_peak, allocated_peak) = (self.reserved_peak.0, self.allocated_peak);
        let start = self.start();
        self.place();
        let mut writer = EventWriter::new(&start);
        for (at, event) in self.events.iter().enumerate() {
            if at == self.reserved_peak.1 {
                writer.peak();
            }
            writer.write(*event);
        }
        if self.reserved_peak.1 >= self.events.len() {
            writer.peak();
        }
        if writer.allocations == 0 {
            return None;
        }
        Some(RecordedAllocations {
            device: self.device,
            torch,
            settings,
            older: OlderMemory {
                live: start.live_bytes,
                live_at_peak: writer.older_at_peak,
                cached: start.cached_bytes,
            },
            gaps: ReplayGaps {
                lost: self.lost,
                unplaced: self.unplaced,
                private: writer.private,
                undeferred: writer.deferred.unknown,
            },
            allocations: writer.allocations,
            blocks: writer.numbers,
            streams: self.places.streams(),
            steps: writer.steps,
            events: writer.events,
            start: start.live,
            start_with_cache: start.with_cache,
            segments: segments_in_order(&self.ranges),
            reserved_peak,
            allocated_peak,
            memory,
            outside,
        })
    }

    /// What its counters and segments show; all else is the default.
    fn settings(&self) -> String {
        let mut settings = Vec::new();
        if self.is_expandable {
            settings.push("expandable_segments:True".to_owned());
        }
        let split = self.counters.as_ref().and_then(|it| it.max_split_size);
        // Unset, it is the greatest number, or -1 in what PyTorch prints.
        if let Some(split) = split.filter(|split| *split > 0 && *split < i64::MAX / 2) {
            settings.push(format!("max_split_size_mb:{}", split >> 20));
        }
        settings.join(",")
    }

    /// Memory of the card, and what was not PyTorch's.
    fn card(&self) -> (Option<u64>, Option<u64>) {
        let of_device = self.cards.iter().find(|card| card.cuda_index == Some(self.device));
        let number = of_device.and_then(|card| card.nvml_index);
        let usage = number.and_then(|number| self.usage.get(&number));
        match usage {
            Some((memory, _, outside)) => (Some(*memory), Some(*outside)),
            None => (of_device.and_then(|card| card.total), None),
        }
    }

    /// Says of each allocation where it lies, as far as snapshots and sites tell.
    fn place(&mut self) {
        if self.places.is_single() {
            return;
        }
        for event in &mut self.events {
            if let CollectedKind::Allocated { address, range, place, .. } = &mut event.kind {
                *place = match *range {
                    Some(range) => self.ranges.get(range as usize).and_then(|range| range.place),
                    None => self.places.at(*address, event.time),
                };
            }
        }
        self.place_by_sites();
        self.place_groups();
    }

    /// In a segment that no snapshot has: where its sites' other blocks lie.
    fn place_by_sites(&mut self) {
        let by_site = self.events.iter().filter_map(|event| match event.kind {
            CollectedKind::Allocated { place, site, .. } => Some((site?, place?)),
            _ => None,
        });
        let sites = most_often(by_site);
        let by_range = self.events.iter().filter_map(|event| match event.kind {
            CollectedKind::Allocated { place: None, site, range, .. } => {
                Some((range?, *sites.get(&site?)?))
            }
            _ => None,
        });
        let ranges = most_often(by_range);
        for event in &mut self.events {
            if let CollectedKind::Allocated { site, range, place, .. } = &mut event.kind {
                let of_range = range.and_then(|range| ranges.get(&range));
                let of_site = || site.and_then(|site| sites.get(&site));
                *place = place.or(of_range.or_else(of_site).copied());
            }
        }
    }

    /// Sites whose blocks no snapshot has are of another stream than all others, which would have
    /// used the same segments.
    fn place_groups(&mut self) {
        let unknown = self.events.iter().filter_map(|event| match event.kind {
            CollectedKind::Allocated { place: None, site, range, .. } => Some((range?, site?)),
            _ => None,
        });
        let groups = grouped(unknown);
        let mut streams: BTreeMap<u32, BlockPlace> = BTreeMap::new();
        for event in &mut self.events {
            if let CollectedKind::Allocated { range, place: place @ None, .. } = &mut event.kind {
                self.unplaced += 1;
                *place = range.and_then(|range| groups.get(&range)).map(|group| {
                    *streams.entry(*group).or_insert_with(|| self.places.unknown_stream())
                });
            }
        }
    }

    /// A live block of the first snapshot without an event is older than the recording.
    fn start(&mut self) -> StartEvents {
        let Some(first) = self.first_snapshot.as_ref().filter(|_| !self.starts_empty) else {
            return StartEvents::default();
        };
        let mut live: FxHashSet<u64> = FxHashSet::default();
        for event in self.events.iter().take_while(|event| event.time < first.time) {
            match event.kind {
                CollectedKind::Allocated { address, .. } => {
                    live.insert(address);
                }
                CollectedKind::Freed { address } => {
                    live.remove(&address);
                }
                _ => {}
            }
        }
        let is_older =
            |block: &Block| block.state == BlockState::Allocated && !live.contains(&block.address);
        start_events(first, &mut self.places, is_older)
    }
}

impl RecordSink for ReplayBuilder {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Runtime(runtime) if runtime.torch.is_some() => {
                self.torch.clone_from(&runtime.torch);
            }
            Record::Device(device) => device.merge_into(&mut self.cards),
            Record::ExactSettings(settings) => self.starts_empty = settings.starts_empty,
            Record::Keyframe(_) => self.starts_empty = false,
            Record::Events(batch) => batch.events.iter().for_each(|event| self.on_event(event)),
            Record::Snapshot(snapshot) if snapshot.device == self.device => {
                self.on_snapshot(snapshot);
            }
            Record::Counters { device, counters, .. } if *device == self.device => {
                let current = |metric| unsigned(counters.stat(metric, Pool::All).current);
                self.on_level(current(Metric::ReservedBytes), current(Metric::AllocatedBytes));
                self.counters = Some(counters.clone());
            }
            Record::Usage(usage) => self.on_usage(usage),
            Record::Step(step) => self.push(step.time, CollectedKind::Step),
            Record::End(end) => {
                self.lost = end.totals.exact.map_or(0, |totals| totals.lost);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Bytes and place of PyTorch's segments. Gaps between them mean nothing and are closed.
fn segments_in_order(ranges: &[DriverRange]) -> Vec<(u64, u64)> {
    let mut by_address: Vec<&DriverRange> = ranges.iter().filter(|it| it.is_torch).collect();
    by_address.sort_by_key(|range| range.address);
    let mut gaps = BTreeMap::new();
    let (mut end, mut gap) = (0, 0);
    for range in by_address {
        gap += range.address.saturating_sub(end);
        end = end.max(range.address.saturating_add(range.size));
        gaps.insert(range.address, gap);
    }
    let segments = ranges.iter().filter(|range| range.is_torch);
    segments.map(|range| (range.size, range.address - gaps[&range.address])).collect()
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
