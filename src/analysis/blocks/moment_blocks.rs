//! The segments and blocks of a moment, each block with the stack that allocated it, and the events up to it.
//!
//! A snapshot of the allocator tells segments and blocks together, but no recording has one at every moment. So the blocks
//! that live are those that a [`Profile`] knows then, and the segments around them those of the last snapshot before, with
//! what the driver's events and the next snapshot tell of segments that are newer.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::analysis::exact::SITES;
use crate::analysis::flame::fold::before_path;
use crate::analysis::flame::fold::{PseudoFrame, StackLabel};
use crate::analysis::profile::Profile;
use crate::model::{
    AddressSpace, AllocationSource, AllocatorSnapshot, Block, BlockState, CudaIndex, Event,
    EventBatch, EventKind, Keyframe, KeyframeBlock, MemoryKind, Nanos, PoolId, Record, RecordSink,
    Segment, SinkResult, SiteId,
};

/// What PyTorch obtains from the driver for blocks of the small pool (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;

/// An event of PyTorch's allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEvent {
    /// When.
    pub time: Nanos,
    /// Whether a block was freed, and not allocated.
    pub is_free: bool,
    /// Its address.
    pub address: u64,
    /// Bytes asked for.
    pub size: u64,
    /// Number of its stack in [`MomentBlocks::stacks`]; `None` where it was not recorded.
    pub stack: Option<u32>,
}

/// One device at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBlocks {
    /// Its segments by address, each tiled by its blocks.
    pub segments: Vec<Segment>,
    /// The number of the stack of each allocated block, by address.
    pub stack_of: FxHashMap<u64, u32>,
    /// What was allocated and freed up to the moment; empty in a sampled recording.
    pub events: Vec<BlockEvent>,
    /// Live blocks that lie in no known segment: each is a segment of its own.
    pub unplaced: u64,
}

impl DeviceBlocks {
    /// Bytes of the allocated blocks.
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
    /// Stacks, each from the outermost frame to the innermost.
    pub stacks: Vec<Vec<StackLabel>>,
}

/// Takes the records of a recording, and keeps what makes up one moment.
#[derive(Debug)]
pub struct MomentBlocksBuilder {
    pub(super) profile: Profile,
    /// The device whose snapshot is the moment, in a sampled recording.
    pub(super) device: CudaIndex,
    /// The moment; `None` for the end.
    until: Option<Nanos>,
    /// The last snapshots up to the moment, and the first ones after it.
    pub(super) before: BTreeMap<CudaIndex, AllocatorSnapshot>,
    pub(super) after: BTreeMap<CudaIndex, AllocatorSnapshot>,
    /// What the driver gave out up to the moment, and what it took back since the last snapshot.
    driver: BTreeMap<u64, u64>,
    pub(super) returned: FxHashMap<u64, Nanos>,
    /// The device of a block by its address, and the bytes asked for.
    blocks: FxHashMap<u64, (CudaIndex, u64)>,
    events: BTreeMap<CudaIndex, Vec<(BlockEvent, Option<SiteId>)>>,
    /// The blocks at the moment, once it has passed.
    pub(super) keyframe: Option<Keyframe>,
    keeps_events: bool,
}

impl MomentBlocksBuilder {
    /// Of the moment at which `profile` folds `device`; `None` for the end. `profile` is empty and reads the records anew.
    pub fn new(profile: Profile, device: CudaIndex, until: Option<Nanos>) -> MomentBlocksBuilder {
        MomentBlocksBuilder {
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

    /// Leaves out the events, which take some 40 bytes each; before the records.
    pub fn without_events(mut self) -> MomentBlocksBuilder {
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
                stacks.push(path(&self.profile, source));
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
                    stacks.push(path(profile, &AllocationSource::Site(site)));
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

    /// Lays the live blocks of a device, which are sorted by address, into its segments.
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
                    new_segment(address, size, size == SMALL_SEGMENT)
                }
                (None, None) => {
                    unplaced += 1;
                    new_segment(block.address, block.size, block.small)
                }
            };
            // An expandable one that has grown.
            frames.retain(|_, old| end(old) <= segment.address || old.address >= end(&segment));
            frames.insert(segment.address, segment);
        }
        // What the driver gave out since the snapshot, and holds no live block, is not known to be PyTorch's.
        let segments = frames.into_values().map(|segment| tile(segment, live)).collect();
        DeviceBlocks { segments, unplaced, ..DeviceBlocks::default() }
    }
}

impl RecordSink for MomentBlocksBuilder {
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
            // Events come in batches: some that are older than this may still follow.
            Record::Snapshot(snapshot)
                if self.is_past(snapshot.time) && self.profile.exact().is_some() =>
            {
                self.after.entry(snapshot.device).or_insert_with(|| snapshot.clone());
                return Ok(());
            }
            Record::Snapshot(snapshot) if self.is_past(snapshot.time) => {
                // One of another device, of the same look, is still of the moment.
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

/// Divides a segment into the blocks that live, and what is free between them.
pub(in crate::analysis) fn tile(mut segment: Segment, live: &[KeyframeBlock]) -> Segment {
    let known = std::mem::take(&mut segment.blocks);
    let limit = end(&segment);
    let from = live.partition_point(|block| block.address < segment.address);
    let mut at = segment.address;
    for block in live[from..].iter().take_while(|block| block.address < limit) {
        if block.address < at || block.size == 0 {
            // It overlaps the one before: one of both died unseen.
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

/// Fills a gap with the free blocks that the snapshot had just there, else with one.
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

/// The stack that a block is from; the likeliest where several come into question.
pub(in crate::analysis) fn path(profile: &Profile, source: &AllocationSource) -> Vec<StackLabel> {
    let pseudo = |frame| vec![StackLabel::Pseudo(frame)];
    match source {
        AllocationSource::Before => pseudo(PseudoFrame::BeforeRecording),
        AllocationSource::BeforeOwned(owners) => {
            let most = owners.iter().max_by_key(|(_, weight)| *weight);
            let owner = most.and_then(|(path, _)| profile.stacks().owners.find(path));
            before_path(owner, profile.stacks())
        }
        AllocationSource::NoEvent => pseudo(PseudoFrame::NoEvent),
        AllocationSource::Lost => pseudo(PseudoFrame::UnknownStack),
        AllocationSource::NotTaken => pseudo(PseudoFrame::StackNotTaken),
        AllocationSource::Site(site) => match profile.exact() {
            Some(exact) => exact.account_path(SITES + site.0 as usize, profile.stacks()),
            None => pseudo(PseudoFrame::UnknownStack),
        },
        AllocationSource::Observed { contested: true, .. } => pseudo(PseudoFrame::NotSeen),
        AllocationSource::Observed { shares, .. } => {
            let likeliest = shares.iter().max_by_key(|share| (share.weight, share.by));
            match likeliest.and_then(|share| share.by) {
                Some((_, stack)) => {
                    let waits = profile.engine().is_waiting(profile.stacks(), stack);
                    let mark = waits.then_some(PseudoFrame::AutogradThread);
                    profile.path(None, Some(stack), mark)
                }
                None => pseudo(PseudoFrame::NoPythonStack),
            }
        }
    }
}
