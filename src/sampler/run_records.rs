//! A job's own allocation history as the records of an exact recording.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::process_tree::rank;
use super::readers::TargetReaders;
use crate::model::{
    AddressSpace, AllocationHistory, AllocationSite, AllocatorCounters, CounterSnapshot, CudaIndex,
    DeviceHistory, EndReason, Event, EventBatch, EventKind, ExactSettings, Frame, Function,
    HistoryAction, HistoryEvent, HistoryFrame, MemoryKind, Metric, Nanos, NativeFrames,
    OwnershipSnapshot, Pool, ProbeBackend, Record, RecordSink, RecordingEnd, RecordingStart,
    RecordingTotals, RunMark, RunMarkKind, SinkResult, SiteId, StackId, StackSource, StackTable,
    TargetRuntime, Thread, ThreadId, TrainingStep, block_size,
};
use crate::ownership::summarize;

/// Events in one record.
const BATCH: usize = 1 << 14;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// What was read of a watched run.
#[derive(Debug)]
pub struct RunReading {
    /// Its allocations.
    pub history: AllocationHistory,
    /// PyTorch's counters.
    pub counters: Vec<(CudaIndex, AllocatorCounters)>,
    /// Owners, if they could be read.
    pub owners: Option<OwnershipSnapshot>,
}

/// Records a run's history: every allocation, owners and counters of its end, steps by its marks.
/// `end`: what ended it.
pub fn record_run(
    readers: &TargetReaders,
    (host, end): (String, &str),
    reading: &RunReading,
    marks: &[RunMark],
    sink: &mut dyn RecordSink,
) -> SinkResult {
    let mut events: Vec<(CudaIndex, usize, &HistoryEvent)> = Vec::new();
    for device in &reading.history.devices {
        let of_device = device.events.iter().enumerate();
        events.extend(of_device.map(|(at, event)| (device.device, at, event)));
    }
    // Stable: a device's own order stays.
    events.sort_by_key(|(_, _, event)| event.time_us);
    let first = events.first().map_or(0, |(_, _, event)| event.time_us);
    let mut records = RunRecords {
        reading,
        marks,
        first_us: first,
        table: StackTable::new(),
        sites: FxHashMap::default(),
        stacks: FxHashMap::default(),
        ordinals: BTreeMap::new(),
        levels: BTreeMap::new(),
        blocks: FxHashMap::default(),
        batch: Vec::new(),
        last: Nanos(0),
        steps: 0,
        next_mark: 0,
    };
    records.start(readers, host, sink)?;
    for (device, _, event) in events {
        records.push(device, event, sink)?;
    }
    records.end(end, sink)
}

struct RunRecords<'a> {
    reading: &'a RunReading,
    marks: &'a [RunMark],
    first_us: i64,
    table: StackTable,
    sites: FxHashMap<(Option<u32>, Option<usize>), SiteId>,
    stacks: FxHashMap<u32, Option<StackId>>,
    /// Allocations so far.
    ordinals: BTreeMap<CudaIndex, u64>,
    levels: BTreeMap<CudaIndex, CounterSnapshot>,
    /// Sizes of the live blocks.
    blocks: FxHashMap<(CudaIndex, u64), u64>,
    batch: Vec<Event>,
    last: Nanos,
    steps: u64,
    next_mark: usize,
}

impl RunRecords<'_> {
    fn start(
        &mut self,
        readers: &TargetReaders,
        host: String,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let process = &readers.process;
        sink.record(&Record::Start(RecordingStart {
            memspy: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process.pid(),
            host,
            command: process.command().unwrap_or_default(),
            directory: process.directory().map(|it| it.to_string_lossy().into_owned()),
            unix_nanos: u64::try_from(self.first_us).unwrap_or(0).saturating_mul(1000),
            rate: 0,
            rank: rank(process),
        }))?;
        sink.record(&Record::Runtime(TargetRuntime {
            time: Nanos(0),
            python: readers.python_version().map(str::to_owned),
            torch: readers.torch_version(),
            allocator: readers.allocator(),
        }))?;
        let is_whole = self.reading.history.devices.iter().all(|device| self.lost(device) == 0);
        sink.record(&Record::ExactSettings(ExactSettings {
            backend: ProbeBackend::default(),
            starts_empty: is_whole,
            probes: vec![Arc::from("torch.cuda.memory._record_memory_history")],
            ..ExactSettings::default()
        }))?;
        for device in &self.reading.history.devices {
            self.ordinals.insert(device.device, self.lost(device));
            if is_whole {
                let (device, counters) = (device.device, Box::default());
                sink.record(&Record::Counters { time: Nanos(0), device, counters })?;
            }
        }
        Ok(())
    }

    /// How many of the first allocations are not in the history.
    fn lost(&self, device: &DeviceHistory) -> u64 {
        let counters = self.reading.counters.iter().find(|(index, _)| *index == device.device);
        let counted =
            counters.map_or(0, |(_, it)| it.stat(Metric::Allocation, Pool::All).allocated);
        let seen = device.events.iter().filter(|it| it.action == HistoryAction::Alloc).count();
        u64::try_from(counted).unwrap_or(0).saturating_sub(seen as u64)
    }

    fn push(
        &mut self,
        device: CudaIndex,
        event: &HistoryEvent,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let since = u64::try_from(event.time_us - self.first_us).unwrap_or(0).saturating_mul(1000);
        let time = Nanos(since).max(self.last);
        if event.action == HistoryAction::Alloc {
            *self.ordinals.entry(device).or_default() += 1;
            self.pass_marks(device, time, sink)?;
        }
        self.count(device, event);
        let Some(change) = self.change(device, event) else { return Ok(()) };
        let site = match change {
            EventKind::Freed { .. } => None,
            _ => Some(self.site(device, event)),
        };
        self.last = time;
        self.batch.push(Event { time, change, site });
        if self.batch.len() == BATCH { self.flush(sink) } else { Ok(()) }
    }

    /// The counters after this event, as far as the history tells: PyTorch's blocks may be larger.
    fn count(&mut self, device: CudaIndex, event: &HistoryEvent) {
        let size = event.size as i64;
        let levels = self.levels.entry(device).or_default();
        match event.action {
            HistoryAction::Alloc => {
                let size = block_size(event.size);
                let before = self.blocks.insert((device, event.address), size).unwrap_or(0);
                levels.allocated += size as i64 - before as i64;
            }
            HistoryAction::FreeRequested => {
                let freed = self.blocks.remove(&(device, event.address)).unwrap_or(0);
                levels.allocated -= freed as i64;
            }
            HistoryAction::SegmentAlloc | HistoryAction::SegmentMap => levels.reserved += size,
            HistoryAction::SegmentFree | HistoryAction::SegmentUnmap => levels.reserved -= size,
            _ => {}
        }
        levels.active = levels.allocated;
        levels.peak = levels.peak.max(levels.allocated);
    }

    fn change(&self, device: CudaIndex, event: &HistoryEvent) -> Option<EventKind> {
        let allocated = |memory_kind, block| EventKind::Allocated {
            memory_kind,
            address: event.address,
            size: event.size,
            levels: match memory_kind {
                MemoryKind::Torch(_) => self.levels.get(&device).copied(),
                _ => None,
            },
            block,
        };
        let freed = |memory_kind| EventKind::Freed {
            memory_kind,
            address: event.address,
            in_backward: false,
        };
        Some(match event.action {
            HistoryAction::Alloc => allocated(MemoryKind::Torch(device), None),
            HistoryAction::FreeRequested => freed(AddressSpace::Torch),
            HistoryAction::SegmentAlloc => allocated(MemoryKind::Driver(Some(device)), None),
            HistoryAction::SegmentFree => freed(AddressSpace::Driver),
            HistoryAction::Oom => EventKind::Failed {
                memory_kind: MemoryKind::Torch(device),
                size: event.size,
                code: OUT_OF_MEMORY,
            },
            HistoryAction::FreeCompleted
            | HistoryAction::SegmentMap
            | HistoryAction::SegmentUnmap
            | HistoryAction::Snapshot
            | HistoryAction::Annotate => return None,
        })
    }

    /// Steps that ended before this allocation.
    fn pass_marks(
        &mut self,
        device: CudaIndex,
        time: Nanos,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let now = self.ordinals.get(&device).copied().unwrap_or(0);
        while let Some(mark) = self.marks.get(self.next_mark)
            && mark.before(device) < now
        {
            self.next_mark += 1;
            if mark.kind == RunMarkKind::OptimizerEnd {
                self.flush(sink)?;
                self.steps += 1;
                sink.record(&Record::Step(TrainingStep {
                    time,
                    step: self.steps,
                    uncertainty: Some(Nanos(0)),
                    ..TrainingStep::default()
                }))?;
            }
        }
        Ok(())
    }

    /// For a thread of autograd, the stack that called `backward()`.
    fn site(&mut self, device: CudaIndex, event: &HistoryEvent) -> SiteId {
        let own = event.stack.filter(|stack| {
            let stack = self.reading.history.stacks.get(*stack as usize);
            stack.is_some_and(|stack| !stack.frames.is_empty())
        });
        let caller = if own.is_none() { self.caller(device) } else { None };
        if let Some(site) = self.sites.get(&(own, caller)) {
            return *site;
        }
        let marks = self.marks;
        let (stack, source, thread) = match (own, caller) {
            (Some(number), _) => (self.stack(number), StackSource::Own, self.main_thread()),
            (None, Some(mark)) => {
                let stack = self.frames(&marks[mark].stack.iter().collect::<Vec<_>>());
                (stack, StackSource::Backward, self.autograd_thread())
            }
            (None, None) => (None, StackSource::NoPython, self.autograd_thread()),
        };
        let site = self.table.site(AllocationSite {
            thread,
            stack,
            source: if stack.is_none() && own.is_some() { StackSource::Unknown } else { source },
            truncated: false,
            node: None,
            forward: None,
            native: NativeFrames::NotTaken,
        });
        self.sites.insert((own, caller), site);
        site
    }

    /// The mark of the backward pass in progress.
    fn caller(&self, device: CudaIndex) -> Option<usize> {
        let now = self.ordinals.get(&device).copied().unwrap_or(0);
        let passed = self.marks.partition_point(|mark| mark.before(device) < now);
        let of_backward =
            |mark: &RunMark| matches!(mark.kind, RunMarkKind::Backward | RunMarkKind::BackwardEnd);
        let last = self.marks[..passed].iter().rposition(of_backward)?;
        (self.marks[last].kind == RunMarkKind::Backward).then_some(last)
    }

    fn stack(&mut self, number: u32) -> Option<StackId> {
        if let Some(known) = self.stacks.get(&number) {
            return *known;
        }
        let history = &self.reading.history;
        let frames = history.stacks.get(number as usize).map_or(&[][..], |it| &it.frames);
        let frames = frames.iter().filter_map(|frame| history.frames.get(*frame as usize));
        let frames: Vec<_> = frames.collect();
        let stack = self.frames(&frames);
        self.stacks.insert(number, stack);
        stack
    }

    /// `frames`: innermost first.
    fn frames(&mut self, frames: &[&HistoryFrame]) -> Option<StackId> {
        let mut stack = None;
        for frame in frames.iter().rev() {
            let function = self.table.function(Function {
                name: Arc::clone(&frame.name),
                file: Arc::clone(&frame.file),
                first_line: 0,
                last_line: 0,
                is_native: false,
            });
            let frame = self.table.frame(Frame { function, line: frame.line });
            stack = Some(self.table.stack(stack, frame));
        }
        stack
    }

    fn main_thread(&mut self) -> ThreadId {
        self.table.thread(Thread { os_id: None, python_id: 1, name: None, main: true })
    }

    fn autograd_thread(&mut self) -> ThreadId {
        let name = Some(Arc::from("autograd"));
        self.table.thread(Thread { os_id: None, python_id: 2, name, main: false })
    }

    fn flush(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        for definition in self.table.take_definitions() {
            sink.record(&Record::Definition(definition))?;
        }
        match self.batch.is_empty() {
            true => Ok(()),
            false => {
                let events = std::mem::take(&mut self.batch);
                sink.record(&Record::Events(EventBatch { events }))
            }
        }
    }

    fn end(mut self, why: &str, sink: &mut dyn RecordSink) -> SinkResult {
        self.flush(sink)?;
        let time = Nanos(self.last.0 + 1000);
        for (device, counters) in &self.reading.counters {
            let (device, counters) = (*device, Box::new(*counters));
            sink.record(&Record::Counters { time, device, counters })?;
        }
        for device in &self.reading.history.devices {
            if let Some(mut snapshot) = device.snapshot.clone() {
                snapshot.time = time;
                sink.record(&Record::Snapshot(snapshot))?;
            }
        }
        if let Some(owners) = &self.reading.owners {
            sink.record(&Record::Ownership(summarize(owners, time)))?;
        }
        sink.record(&Record::End(RecordingEnd {
            time,
            reason: EndReason::Condition(why.to_owned()),
            totals: RecordingTotals::default(),
        }))
    }
}
