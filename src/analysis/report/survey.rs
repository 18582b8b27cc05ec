//! Levels over time and key moments.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::levels::LevelHistory;
use super::moments::MomentChoice;
use crate::model::{
    AddressSpace, AllocatorCounters, AllocatorSnapshot, CudaIndex, DeviceUsage, Event, EventKind,
    Keyframe, MemoryKind, Nanos, OwnershipBreakdown, ProcessUsage, Record, RecordSink, SinkResult,
    SnapshotConsistency, block_size,
};

/// More columns than a wide screen has pixels.
const COLUMNS: usize = 1600;
/// Kept readings of NVML, owner snapshots, changes of reserved bytes.
const MAX_USAGE: usize = 2000;
const MAX_SNAPSHOTS: usize = 150;
const MAX_RESERVED_CHANGES: usize = 400;
const MAX_OOMS: usize = 100;

/// What a survey needs at its start.
#[derive(Debug, Clone, Default)]
pub struct SurveyOptions {
    /// Start of the complete part.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// It has exact events.
    pub is_exact: bool,
    /// Moments to keep per device, about.
    pub moments: usize,
    /// Moments to keep in any case.
    pub wanted: Vec<(MemoryKind, Nanos)>,
}

/// The driver's figures, in bytes: in use by all processes, and by the job if known.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageReading {
    pub time: Nanos,
    pub used: u64,
    pub process: Option<u64>,
}

/// An out-of-memory error, with its message and the bytes refused by the driver, if known.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomMark {
    pub time: Nanos,
    pub text: String,
    pub refused: Option<u64>,
}

/// One kind of memory.
#[derive(Debug)]
pub struct SurveyedMemory {
    /// Its level over time.
    pub levels: LevelHistory,
    /// The greatest changes of reserved bytes.
    pub reserved_changes: Vec<(Nanos, i64)>,
    choice: MomentChoice,
    last_snapshot: Option<Nanos>,
    /// The allocator's peak at the last poll.
    mark: Option<i64>,
}

/// Takes the records of a recording.
#[derive(Debug)]
pub struct RecordingSurvey {
    options: SurveyOptions,
    memory: BTreeMap<MemoryKind, SurveyedMemory>,
    /// By NVML index.
    usage: BTreeMap<u32, Vec<UsageReading>>,
    ooms: Vec<OomMark>,
    snapshots: Vec<OwnershipBreakdown>,
    /// Every how many owner snapshots one is kept, and how many came since.
    snapshot_every: (usize, usize),
    blocks: FxHashMap<(AddressSpace, u64), (MemoryKind, u64)>,
}

impl RecordingSurvey {
    /// An empty survey.
    pub fn new(options: SurveyOptions) -> RecordingSurvey {
        let wanted = options.wanted.clone();
        let mut survey = RecordingSurvey {
            options,
            memory: BTreeMap::new(),
            usage: BTreeMap::new(),
            ooms: Vec::new(),
            snapshots: Vec::new(),
            snapshot_every: (1, 0),
            blocks: FxHashMap::default(),
        };
        for (kind, time) in wanted {
            survey.memory(kind).choice.want(time);
        }
        survey
    }

    /// The kinds of memory with their levels.
    pub fn levels(&self) -> impl Iterator<Item = (MemoryKind, &SurveyedMemory)> {
        self.memory.iter().map(|(kind, memory)| (*kind, memory))
    }

    /// The driver's figures, by NVML index.
    pub fn usage(&self) -> &BTreeMap<u32, Vec<UsageReading>> {
        &self.usage
    }

    /// Out-of-memory errors.
    pub fn ooms(&self) -> &[OomMark] {
        &self.ooms
    }

    /// Owner snapshots, thinned out if many.
    pub fn snapshots(&self) -> &[OwnershipBreakdown] {
        &self.snapshots
    }

    /// The key moments, by kind of memory.
    pub fn moments(&self) -> BTreeMap<MemoryKind, Vec<Nanos>> {
        let mut moments: BTreeMap<MemoryKind, Vec<Nanos>> = BTreeMap::new();
        for (kind, memory) in &self.memory {
            let mut choice = memory.choice.clone();
            match (self.options.is_exact, memory.last_snapshot) {
                (true, _) => choice.want(self.options.to),
                (false, Some(last)) => choice.want(last),
                (false, None) => {}
            }
            moments.insert(*kind, choice.moments());
        }
        moments
    }

    fn memory(&mut self, kind: MemoryKind) -> &mut SurveyedMemory {
        let SurveyOptions { from, to, moments, .. } = self.options;
        // Memory outside PyTorch changes seldom.
        let moments = if matches!(kind, MemoryKind::Torch(_)) { moments } else { moments / 4 };
        self.memory.entry(kind).or_insert_with(|| SurveyedMemory {
            levels: LevelHistory::new(from, to, COLUMNS),
            reserved_changes: Vec::new(),
            choice: MomentChoice::new(from, to, moments),
            last_snapshot: None,
            mark: None,
        })
    }

    fn set_level(&mut self, kind: MemoryKind, time: Nanos, allocated: u64, reserved: Option<u64>) {
        let is_exact = self.options.is_exact;
        let memory = self.memory(kind);
        let before = memory.levels.now();
        let reserved = reserved.or(before.and_then(|before| before.reserved));
        if let (Some(now), Some(before)) = (reserved, before.and_then(|before| before.reserved))
            && now != before
        {
            memory.reserved_changes.push((time, now as i64 - before as i64));
            if memory.reserved_changes.len() > 2 * MAX_RESERVED_CHANGES {
                keep_greatest(&mut memory.reserved_changes);
            }
        }
        memory.levels.add(time, allocated, reserved);
        if is_exact {
            memory.choice.add(time, allocated);
        }
    }

    fn now(&self, kind: MemoryKind) -> u64 {
        self.memory.get(&kind).and_then(|m| m.levels.now()).map_or(0, |level| level.highest)
    }

    fn on_event(&mut self, event: &Event) {
        let time = event.time;
        match event.change {
            EventKind::Allocated { memory_kind, address, size, levels, block } => {
                let Some(kind) = whole_kind(memory_kind) else { return };
                let size = size.min(1 << 48);
                // Counters correct larger rounding.
                let is_torch = matches!(kind, MemoryKind::Torch(_));
                let taken = if is_torch { block_size(size) } else { size };
                let taken = block.map_or(taken, |block| block.min(1 << 48));
                let replaced = self.blocks.insert((kind.freed(), address), (kind, taken));
                match levels {
                    Some(levels) => {
                        let allocated = levels.allocated.max(0) as u64;
                        // The level before the event, after all frees.
                        self.set_level(kind, time, allocated.saturating_sub(taken), None);
                        self.set_level(kind, time, allocated, Some(levels.reserved.max(0) as u64));
                    }
                    None => {
                        let gone = replaced.map_or(0, |(_, size)| size);
                        let level = self.now(kind).saturating_sub(gone).saturating_add(taken);
                        self.set_level(kind, time, level, None);
                    }
                }
            }
            EventKind::Freed { memory_kind, address, .. } => {
                if let Some((kind, size)) = self.blocks.remove(&(memory_kind, address)) {
                    let level = self.now(kind).saturating_sub(size);
                    self.set_level(kind, time, level, None);
                }
            }
            EventKind::Failed { size, .. } => {
                self.on_oom(time, Some(size), String::new());
            }
            EventKind::Marked(_) => {}
        }
    }

    fn on_oom(&mut self, time: Nanos, refused: Option<u64>, text: String) {
        // One error: driver refusal, cache freed, retry, exception.
        let near = |mark: &&mut OomMark| time.0.saturating_sub(mark.time.0) < 1_000_000_000;
        if let Some(mark) = self.ooms.last_mut().filter(near) {
            mark.refused = mark.refused.max(refused);
            if mark.text.is_empty() {
                mark.text = text;
            }
            return;
        }
        if self.ooms.len() >= MAX_OOMS {
            return;
        }
        self.ooms.push(OomMark { time, text, refused });
        self.want_all(time);
    }

    fn want_all(&mut self, time: Nanos) {
        let is_exact = self.options.is_exact;
        for (kind, memory) in &mut self.memory {
            if !matches!(kind, MemoryKind::Torch(_)) {
                continue;
            }
            match (is_exact, memory.last_snapshot) {
                (true, _) => memory.choice.want(time),
                (false, Some(snapshot)) => memory.choice.want(snapshot),
                (false, None) => {}
            }
        }
    }

    fn on_counters(&mut self, time: Nanos, device: CudaIndex, counters: &AllocatorCounters) {
        let kind = MemoryKind::Torch(device);
        let (allocated, reserved) = (counters.allocated(), counters.reserved());
        if !self.options.is_exact || self.memory(kind).levels.now().is_none() {
            let reserved = Some(reserved.max(0) as u64);
            let mark = counters.max_allocated();
            // This peak was reached since the last poll.
            if self.memory(kind).mark.replace(mark).is_some_and(|before| mark > before) {
                self.set_level(kind, time, mark.max(0) as u64, reserved);
            }
            self.set_level(kind, time, allocated.max(0) as u64, reserved);
        }
    }

    fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        let kind = MemoryKind::Torch(snapshot.device);
        let allocated = snapshot.allocated();
        let is_exact = self.options.is_exact;
        let allocated = match snapshot.consistency {
            SnapshotConsistency::Consistent => allocated,
            SnapshotConsistency::Degraded { allocated_counter, .. } => allocated_counter,
        };
        let memory = self.memory(kind);
        memory.last_snapshot = Some(snapshot.time);
        if !is_exact {
            memory.choice.add(snapshot.time, allocated);
            self.set_level(kind, snapshot.time, allocated, None);
        }
    }

    fn on_usage(&mut self, usage: &DeviceUsage) {
        let process = match usage.process {
            ProcessUsage::Bytes(bytes) => Some(bytes),
            ProcessUsage::Unknown(_) => None,
        };
        let readings = self.usage.entry(usage.nvml_index).or_default();
        let reading = UsageReading { time: usage.time, used: usage.used, process };
        let same = readings
            .last()
            .is_some_and(|last| (last.used, last.process) == (reading.used, process));
        if !same {
            readings.push(reading);
        }
        if readings.len() > MAX_USAGE {
            let mut number = readings.len();
            readings.retain(|_| {
                number -= 1;
                number.is_multiple_of(2)
            });
        }
    }

    fn on_owners(&mut self, snapshot: &OwnershipBreakdown) {
        let (every, passed) = self.snapshot_every;
        self.snapshot_every.1 = (passed + 1) % every;
        if passed != 0 {
            return;
        }
        self.snapshots.push(snapshot.clone());
        self.want_all(Nanos(snapshot.time.0.saturating_sub(snapshot.age.0)));
        if self.snapshots.len() > 2 * MAX_SNAPSHOTS {
            let mut number = 0;
            self.snapshots.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.snapshot_every = (2 * every, 0);
        }
    }

    fn on_keyframe(&mut self, keyframe: &Keyframe) {
        for memory in &keyframe.memory {
            let Some(kind) = whole_kind(memory.memory_kind) else { continue };
            for block in &memory.blocks {
                self.blocks.insert((kind.freed(), block.address), (kind, block.size));
            }
            let in_blocks: u64 = memory.blocks.iter().map(|block| block.size).sum();
            let counted = memory
                .levels
                .map(|levels| (levels.allocated.max(0) as u64).saturating_sub(memory.freed_since));
            let reserved = memory.levels.map(|levels| levels.reserved.max(0) as u64);
            self.set_level(kind, keyframe.time, counted.unwrap_or(in_blocks), reserved);
        }
    }
}

/// Drivers name no device: one ledger for all.
pub(super) fn whole_kind(kind: MemoryKind) -> Option<MemoryKind> {
    match kind {
        MemoryKind::Driver(_) => Some(MemoryKind::Driver(None)),
        MemoryKind::Physical(_) => Some(MemoryKind::Physical(None)),
        MemoryKind::Mapping => None,
        other => Some(other),
    }
}

fn keep_greatest(changes: &mut Vec<(Nanos, i64)>) {
    changes.sort_unstable_by_key(|(time, by)| (std::cmp::Reverse(by.unsigned_abs()), *time));
    changes.truncate(MAX_RESERVED_CHANGES);
    changes.sort_unstable();
}

impl RecordSink for RecordingSurvey {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Events(batch) => batch.events.iter().for_each(|event| self.on_event(event)),
            Record::Counters { time, device, counters } => {
                self.on_counters(*time, *device, counters);
            }
            Record::Snapshot(snapshot) => self.on_snapshot(snapshot),
            Record::Followed(batch) if !self.options.is_exact => {
                for change in batch.changes.iter().filter(|change| !change.counters_torn) {
                    let level = change.live[0].saturating_add(change.live[1]).max(0) as u64;
                    self.set_level(MemoryKind::Torch(change.device), change.after, level, None);
                }
            }
            Record::Usage(usage) => self.on_usage(usage),
            Record::OomException(oom) => {
                let text = oom.error.as_ref().map_or(String::new(), |error| error.text.clone());
                self.on_oom(oom.time, None, text);
            }
            Record::Ownership(snapshot) => self.on_owners(snapshot),
            Record::Keyframe(keyframe) => self.on_keyframe(keyframe),
            _ => {}
        }
        Ok(())
    }
}
