//! Segments, blocks and earlier events of a moment, with stacks.
//!
//! Most moments have no snapshot: [`Profile`] gives live blocks; snapshots around it and driver
//! events give segments.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::analysis::flame::paths;
use crate::analysis::folded::StackLabel;
use crate::analysis::profile::Profile;
use crate::model::{
    AddressSpace, AllocationSource, AllocatorSnapshot, Block, BlockState, CudaIndex, Event,
    EventBatch, EventKind, Keyframe, KeyframeBlock, MemoryKind, Nanos, PoolId, Record, RecordSink,
    Segment, SinkResult, SiteId,
};

/// An event of PyTorch's allocator: a free, or an allocation. `size` is as requested, `stack` an
/// index in [`MomentBlocks::stacks`], if recorded.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEvent {
    pub time: Nanos,
    pub is_free: bool,
    pub address: u64,
    pub size: u64,
    pub stack: Option<u32>,
}

/// One device's segments, stacks and events at the chosen moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBlocks {
    /// By address; blocks cover each segment completely.
    pub segments: Vec<Segment>,
    /// Of the allocated blocks by address: index of the stack.
    pub stack_of: FxHashMap<u64, u32>,
    /// Events before the moment (exact recordings).
    pub events: Vec<BlockEvent>,
    /// Live blocks outside all segments: each gets its own.
    pub unplaced: u64,
}

impl DeviceBlocks {
    /// Allocated bytes.
    pub fn allocated(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockState::Allocated).map(|block| block.size).sum()
    }
}

/// All devices at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MomentBlocks {
    /// The devices.
    pub devices: BTreeMap<CudaIndex, DeviceBlocks>,
    /// Outermost frame first.
    pub stacks: Vec<Vec<StackLabel>>,
}

/// Takes records, keeps one moment.
#[derive(Debug)]
pub struct BlocksBuilder {
    pub(super) profile: Profile,
    /// In a sampled recording, its snapshot is the moment.
    pub(super) device: CudaIndex,
    /// `None`: the end.
    until: Option<Nanos>,
    /// The last up to the moment, the first after it.
    pub(super) before: BTreeMap<CudaIndex, AllocatorSnapshot>,
    pub(super) after: BTreeMap<CudaIndex, AllocatorSnapshot>,
    /// Driver allocations up to the moment; frees since the snapshot.
    driver: BTreeMap<u64, u64>,
    pub(super) returned: FxHashMap<u64, Nanos>,
    /// Device and requested bytes by address.
    blocks: FxHashMap<u64, (CudaIndex, u64)>,
    events: BTreeMap<CudaIndex, Vec<(BlockEvent, Option<SiteId>)>>,
    pub(super) keyframe: Option<Keyframe>,
    keeps_events: bool,
}

impl BlocksBuilder {
    /// The moment at which `profile` folds `device`; `None`: the end. `profile` must be empty: it
    /// reads the records again.
    pub fn new(profile: Profile, device: CudaIndex, until: Option<Nanos>) -> BlocksBuilder {
        BlocksBuilder {
            profile,
            device,
            until,
            before: BTreeMap::new(),
            after: BTreeMap::new(),
            driver: BTreeMap::new(),
            returned: FxHashMap::default(),
            blocks: FxHashMap::default(),
            events: BTreeMap::new(),
            keyframe: None,
            keeps_events: true,
        }
    }

    /// Skips the events (some 40 bytes each). Call before adding records.
    pub fn without_events(mut self) -> BlocksBuilder {
        self.keeps_events = false;
        self
    }

    fn is_past(&self, time: Nanos) -> bool {
        self.until.is_some_and(|until| time > until)
    }

    pub(super) fn take_moment(&mut self) {
        if self.keyframe.is_none() {
            self.profile.finish();
            let time = self.until.unwrap_or(self.profile.duration());
            let mut keyframe = self.profile.keyframe(time);
            for memory in &mut keyframe.memory {
                if let MemoryKind::Torch(device) = memory.memory_kind {
                    let profile = &self.profile;
                    memory.blocks.retain(|block| !profile.is_surplus(device, block.address));
                }
            }
            self.keyframe = Some(keyframe);
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event.change {
            EventKind::Allocated {
                memory_kind: MemoryKind::Torch(device), address, size, ..
            } if self.keeps_events => {
                self.blocks.insert(address, (device, size));
                self.keep_event(device, event, false, address, size);
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, .. } => {
                if let Some((device, size)) = self.blocks.remove(&address) {
                    self.keep_event(device, event, true, address, size);
                }
            }
            EventKind::Allocated { memory_kind: MemoryKind::Driver(_), address, size, .. } => {
                self.driver.insert(address, size);
                self.returned.remove(&address);
            }
            EventKind::Freed { memory_kind: AddressSpace::Driver, address, .. } => {
                self.driver.remove(&address);
                self.returned.insert(address, event.time);
            }
            _ => {}
        }
    }

    fn keep_event(
        &mut self,
        device: CudaIndex,
        of: &Event,
        is_free: bool,
        address: u64,
        size: u64,
    ) {
        let event = BlockEvent { time: of.time, is_free, address, size, stack: None };
        self.events.entry(device).or_default().push((event, of.site));
    }

    fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        for (_, block) in snapshot.blocks().filter(|(_, b)| b.state == BlockState::Allocated) {
            let known = (snapshot.device, block.requested);
            self.blocks.entry(block.address).or_insert(known);
        }
        self.before.insert(snapshot.device, snapshot.clone());
    }

    /// The moment.
    pub fn build(mut self) -> MomentBlocks {
        self.take_moment();
        let keyframe = self.keyframe.take().unwrap_or_default();
        let mut stacks: Vec<Vec<StackLabel>> = Vec::new();
        let sources: Vec<u32> = keyframe
            .allocation_sources
            .iter()
            .map(|source| {
                stacks.push(paths::of_source(&self.profile, source));
                stacks.len() as u32 - 1
            })
            .collect();
        let mut stack_of_site: FxHashMap<SiteId, u32> = FxHashMap::default();
        for (number, source) in keyframe.allocation_sources.iter().enumerate() {
            if let AllocationSource::Site(site) = source {
                stack_of_site.insert(*site, number as u32);
            }
        }
        let mut devices: BTreeMap<CudaIndex, DeviceBlocks> = BTreeMap::new();
        for memory in &keyframe.memory {
            let MemoryKind::Torch(device) = memory.memory_kind else { continue };
            let mut of_device = self.place(device, &memory.blocks);
            let source = |block: &KeyframeBlock| {
                Some((block.address, *sources.get(block.allocation_source as usize)?))
            };
            of_device.stack_of = memory.blocks.iter().filter_map(source).collect();
            devices.insert(device, of_device);
        }
        for (device, events) in std::mem::take(&mut self.events) {
            let profile = &self.profile;
            let mut stack = |site: SiteId| {
                *stack_of_site.entry(site).or_insert_with(|| {
                    stacks.push(paths::of_source(profile, &AllocationSource::Site(site)));
                    stacks.len() as u32 - 1
                })
            };
            devices.entry(device).or_default().events = events
                .into_iter()
                .map(|(event, site)| BlockEvent { stack: site.map(&mut stack), ..event })
                .collect();
        }
        MomentBlocks { devices, stacks }
    }

    /// `live` is sorted by address.
    fn place(&self, device: CudaIndex, live: &[KeyframeBlock]) -> DeviceBlocks {
        let mut frames: BTreeMap<u64, Segment> = BTreeMap::new();
        let holds_live = |segment: &Segment| {
            let from = live.partition_point(|block| block.address < segment.address);
            live.get(from).is_some_and(|block| block.address - segment.address < segment.size)
        };
        if let Some(snapshot) = self.before.get(&device) {
            let returned = |segment: &Segment| {
                self.returned.get(&segment.address).is_some_and(|at| *at > snapshot.time)
            };
            let kept = snapshot.segments.iter().filter(|s| !returned(s) || holds_live(s));
            frames.extend(kept.map(|segment| (segment.address, segment.clone())));
        }
        let mut unplaced = 0;
        for block in live {
            if containing(&frames, block).is_some() {
                continue;
            }
            let mut later = self.after.get(&device).into_iter().flat_map(|after| &after.segments);
            let later = later.rfind(|s| s.address <= block.address && end(s) > block.address);
            let given = self.driver.range(..=block.address).next_back();
            let given = given.filter(|(address, size)| block.address - **address < **size);
            let segment = match (later, given) {
                (Some(later), _) => Segment { blocks: Vec::new(), ..later.clone() },
                (None, Some((&address, &size))) => {
                    new_segment(address, size, size == Segment::SMALL_SIZE)
                }
                (None, None) => {
                    unplaced += 1;
                    new_segment(block.address, block.size, block.small)
                }
            };
            // An expandable segment has grown.
            frames.retain(|_, old| end(old) <= segment.address || old.address >= end(&segment));
            frames.insert(segment.address, segment);
        }
        // Newer driver memory without live blocks may not be PyTorch's.
        let segments = frames.into_values().map(|segment| tile(segment, live)).collect();
        DeviceBlocks { segments, unplaced, ..DeviceBlocks::default() }
    }
}

impl RecordSink for BlocksBuilder {
    fn record(&mut self, record: &Record) -> SinkResult {
        if self.keyframe.is_some() {
            if let Record::Snapshot(snapshot) = record {
                self.after.entry(snapshot.device).or_insert_with(|| snapshot.clone());
            }
            return Ok(());
        }
        match record {
            Record::Events(batch) if batch.events.last().is_some_and(|e| self.is_past(e.time)) => {
                let events = batch.events.iter().take_while(|event| !self.is_past(event.time));
                let events: Vec<Event> = events.copied().collect();
                events.iter().for_each(|event| self.on_event(event));
                self.profile.record(&Record::Events(EventBatch { events }))?;
                self.take_moment();
                return Ok(());
            }
            Record::Events(batch) => batch.events.iter().for_each(|event| self.on_event(event)),
            // Events come in batches: older ones may still follow.
            Record::Snapshot(snapshot)
                if self.is_past(snapshot.time) && self.profile.exact().is_some() =>
            {
                self.after.entry(snapshot.device).or_insert_with(|| snapshot.clone());
                return Ok(());
            }
            Record::Snapshot(snapshot) if self.is_past(snapshot.time) => {
                // Another device's snapshot of the same tick belongs to the moment.
                let is_of_moment =
                    snapshot.device != self.device && !self.before.contains_key(&snapshot.device);
                if !is_of_moment {
                    self.take_moment();
                    self.after.insert(snapshot.device, snapshot.clone());
                    return Ok(());
                }
                self.on_snapshot(snapshot);
            }
            Record::Snapshot(snapshot) => self.on_snapshot(snapshot),
            _ => {}
        }
        self.profile.record(record)
    }
}

pub(super) fn end(segment: &Segment) -> u64 {
    segment.address.saturating_add(segment.size)
}

fn containing<'a>(
    segments: &'a BTreeMap<u64, Segment>,
    block: &KeyframeBlock,
) -> Option<&'a Segment> {
    let (_, segment) = segments.range(..=block.address).next_back()?;
    (end(segment) >= block.address.saturating_add(block.size)).then_some(segment)
}

fn new_segment(address: u64, size: u64, small: bool) -> Segment {
    Segment {
        address,
        size,
        stream: 0,
        small,
        expandable: false,
        granule: 0,
        retired: false,
        pool: PoolId::default(),
        blocks: Vec::new(),
    }
}

pub(in crate::analysis) fn tile(mut segment: Segment, live: &[KeyframeBlock]) -> Segment {
    let known = std::mem::take(&mut segment.blocks);
    let limit = end(&segment);
    let from = live.partition_point(|block| block.address < segment.address);
    let mut at = segment.address;
    for block in live[from..].iter().take_while(|block| block.address < limit) {
        if block.address < at || block.size == 0 {
            // One of two overlapping blocks was freed unseen.
            continue;
        }
        fill(&mut segment.blocks, at, block.address, &known);
        let size = block.size.min(limit - block.address);
        let requested = if block.requested > 0 { block.requested } else { size };
        let state = BlockState::Allocated;
        segment.blocks.push(Block { address: block.address, size, requested, state });
        at = block.address + size;
    }
    fill(&mut segment.blocks, at, limit, &known);
    segment
}

/// Uses the snapshot's free blocks if they fit exactly.
fn fill(blocks: &mut Vec<Block>, from: u64, to: u64, known: &[Block]) {
    if from >= to {
        return;
    }
    let first = known.partition_point(|block| block.address < from);
    let inside: Vec<Block> =
        known[first..].iter().take_while(|block| block.address < to).copied().collect();
    let is_free = inside.iter().all(|block| block.state != BlockState::Allocated);
    let begins = inside.first().is_some_and(|block| block.address == from);
    let ends = inside.last().is_some_and(|block| block.address.saturating_add(block.size) == to);
    if is_free && begins && ends {
        blocks.extend(inside);
        return;
    }
    let state = BlockState::Inactive;
    blocks.push(Block { address: from, size: to - from, requested: 0, state });
}
