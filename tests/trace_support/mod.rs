//! Recordings for tests and benches of the trace: a synthetic training loop, and arbitrary records.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use memspy::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, Block, BlockState, CudaIndex,
    Definition, DeviceUsage, EndReason, Frame, Function, GpuDevice, Metric, MissReason,
    MissedObservation, Nanos, Pool, PoolId, ProcessUsage, ReaderKind, Record, RecordSink,
    RecordingEnd, RecordingStart, RecordingTotals, Segment, SiteId, SnapshotConsistency,
    SourceText, StackId, StackSample, StackTable, TargetRuntime, Thread, ThreadActivity,
    ThreadSample,
};
use memspy::trace::{ReplaySummary, TraceReader, TraceWriter};

pub mod allocations;
pub mod any_exact;
pub mod any_followed;
pub mod any_holders;
pub mod any_inherited;
pub mod any_record;
pub mod by_hand;
pub mod numbers;

/// A reproducible random sequence (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    }
}

/// A training loop as a recorder sees it: 200 samples a second, a few threads, steps of 60 ms that
/// allocate and free tensors of recurring sizes.
pub struct Loop {
    pub dice: Dice,
    table: StackTable,
    stacks: Vec<StackId>,
    sample: StackSample,
    counters: AllocatorCounters,
    live: Vec<(bool, i64, i64)>,
    tick: u64,
}

const PERIOD: u64 = 5_000_000;

impl Loop {
    pub fn new(seed: u64) -> Self {
        Loop {
            dice: Dice(seed),
            table: StackTable::new(),
            stacks: Vec::new(),
            sample: StackSample::default(),
            counters: AllocatorCounters {
                num_sync_all_streams: Some(0),
                num_device_alloc: Some(0),
                num_device_free: Some(0),
                max_split_size: Some(i64::MAX),
                ..AllocatorCounters::default()
            },
            live: Vec::new(),
            tick: 0,
        }
    }

    pub fn start() -> Record {
        Record::Start(RecordingStart {
            memspy: "0.1.0".into(),
            pid: 4242,
            host: "gpu-17".into(),
            command: vec!["python".into(), "train.py".into(), "--größe=7b".into()],
            directory: Some("/home/someone/project".into()),
            unix_nanos: 1_763_000_000_000_000_000,
            rate: 200,
            rank: None,
        })
    }

    /// The records before the first sample.
    pub fn opening(&mut self, sink: &mut dyn RecordSink) {
        let device = GpuDevice {
            cuda_index: Some(CudaIndex(0)),
            nvml_index: Some(3),
            uuid: Some("GPU-2f6e1a4c".into()),
            pci_bus_id: Some("00000000:17:00.0".into()),
            name: Some("NVIDIA H200".into()),
            total: Some(150_754_820_096),
        };
        let runtime = TargetRuntime {
            time: Nanos(1000),
            python: Some("3.12.1".into()),
            torch: Some("2.9.0+cu130".into()),
            allocator: AllocatorBackend::Native,
        };
        for record in [Self::start(), Record::Runtime(runtime), Record::Device(device)] {
            sink.record(&record).unwrap();
        }
    }

    /// Defines `count` stacks with a common trunk, and `threads` threads.
    pub fn define(&mut self, count: u32, threads: u64, sink: &mut dyn RecordSink) {
        for n in 0..count {
            let n = n + self.stacks.len() as u32;
            let mut at = None;
            for depth in 0..12 {
                let own = depth >= 9;
                let function = self.table.function(Function {
                    name: if own {
                        format!("Layer{}.forward", n * 10 + depth).into()
                    } else {
                        format!("Module._call_impl_{depth}").into()
                    },
                    file: format!("/usr/lib/python3/site-packages/torch/nn/{depth}.py").into(),
                    first_line: 10 * depth,
                    last_line: 10 * depth + 9,
                    is_native: false,
                });
                let frame = self.table.frame(Frame { function, line: 10 * depth + 3 });
                at = Some(self.table.stack(at, frame));
            }
            self.stacks.extend(at);
        }
        for n in 0..threads {
            let thread = self.table.thread(Thread {
                os_id: Some(4242 + n),
                python_id: 0x7F00_0000_0000 + n * 0x1000,
                name: Some(format!("Thread-{n}").into()),
                main: n == 0,
            });
            if n as usize >= self.sample.threads.len() {
                self.sample.threads.push(ThreadSample {
                    thread,
                    stack: self.stacks[0],
                    gil: n == 0,
                    activity: ThreadActivity::Active,
                });
            }
        }
        for definition in self.table.take_definitions() {
            sink.record(&Record::Definition(definition)).unwrap();
        }
    }

    /// The next sample; its stacks change only if `moves`.
    pub fn sample(&mut self, moves: bool) -> Record {
        self.tick += 1;
        let jitter = self.dice.roll(60_000);
        self.sample.time = Nanos(self.tick * PERIOD + jitter);
        if moves {
            let at = self.dice.roll(self.stacks.len() as u64) as usize;
            self.sample.threads[0].stack = self.stacks[at];
        }
        Record::Sample(self.sample.clone())
    }

    /// The counters at the last sample, after some tens of allocations and frees.
    pub fn counters(&mut self) -> Record {
        // Most steps use large tensors or both kinds.
        let both = self.dice.roll(10) == 0;
        for _ in 0..20 + self.dice.roll(30) {
            // Tensors of a model have few sizes: powers of two times a few widths.
            let small = both && self.dice.roll(3) == 0;
            let width = [1, 3, 5, 12][self.dice.roll(4) as usize];
            let unit = if small { 640 } else { 1_200_000 };
            let requested = (unit * width) << self.dice.roll(4);
            let rounded = (requested + 511) & !511;
            self.change(small, rounded as i64, requested as i64, true);
            self.live.push((small, rounded as i64, requested as i64));
            if self.live.len() > 300 || self.dice.roll(3) == 0 {
                let place = self.dice.roll(self.live.len() as u64) as usize;
                if both || !self.live[place].0 {
                    let (small, rounded, requested) = self.live.swap_remove(place);
                    self.change(small, rounded, requested, false);
                }
            }
        }
        Record::Counters {
            time: Nanos(self.sample.time.0 + 20_000 + self.dice.roll(4000)),
            device: CudaIndex(0),
            counters: Box::new(self.counters),
        }
    }

    fn change(&mut self, small: bool, rounded: i64, requested: i64, allocate: bool) {
        let own = if small { Pool::Small } else { Pool::Large };
        // Sometimes a block is a whole segment and not a split.
        let split = self.dice.roll(8) != 0;
        for metric in Metric::ALL {
            let (amount, grows) = match metric {
                Metric::Allocation | Metric::Active => (1, allocate),
                Metric::AllocatedBytes | Metric::ActiveBytes => (rounded, allocate),
                Metric::RequestedBytes => (requested, allocate),
                Metric::InactiveSplit if split => (1, !allocate),
                Metric::InactiveSplitBytes if split => (rounded, !allocate),
                _ => continue,
            };
            for pool in [Pool::All, own] {
                let stat = &mut self.counters.stats[metric as usize][pool as usize];
                if grows {
                    stat.current += amount;
                    stat.allocated += amount;
                    stat.peak = stat.peak.max(stat.current);
                } else {
                    stat.current -= amount;
                    stat.freed += amount;
                }
            }
        }
    }

    /// A snapshot at the last sample: `segments` of 20 MiB, whose blocks change a little.
    pub fn map(&mut self, segments: u64) -> Record {
        let churn = self.dice.roll(8);
        let segments = (0..segments)
            .map(|n| {
                let address = 0x7F12_0000_0000 + n * (32 << 20);
                let mut blocks = Vec::new();
                let mut at = 0;
                while at < 20 << 20 {
                    let size = ((1 << 20) + (at % 7) * 512).min((20 << 20) - at);
                    let inactive = n == churn && at >> 20 == churn;
                    blocks.push(Block {
                        address: address + at,
                        size,
                        requested: if inactive { 0 } else { size - at % 100 },
                        state: match inactive {
                            true => BlockState::Inactive,
                            false => BlockState::Allocated,
                        },
                    });
                    at += size;
                }
                Segment {
                    address,
                    size: 20 << 20,
                    stream: 0,
                    small: false,
                    expandable: false,
                    granule: 0,
                    retired: false,
                    pool: PoolId(0, n % 2),
                    blocks,
                }
            })
            .collect();
        Record::Snapshot(AllocatorSnapshot {
            time: Nanos(self.sample.time.0 + 30_000),
            device: CudaIndex(0),
            retries: 1,
            consistency: SnapshotConsistency::Consistent,
            segments,
        })
    }

    pub fn end(&self) -> Record {
        Record::End(RecordingEnd {
            time: Nanos((self.tick + 1) * PERIOD),
            reason: EndReason::TargetExited,
            totals: RecordingTotals {
                ticks: self.tick,
                late: 1,
                stacks: self.tick * 3,
                torn: 2,
                snapshots_consistent: 4,
                snapshots_degraded: 0,
                exact: None,
                follow: None,
                cost: None,
            },
        })
    }

    /// A whole recording: `ticks` samples with all other records, definitions in between.
    pub fn story(seed: u64, ticks: u64) -> Vec<Record> {
        let mut records = Vec::new();
        let mut it = Loop::new(seed);
        it.opening(&mut records);
        it.define(3, 3, &mut records);
        records.push(Record::Source(SourceText {
            function: memspy::model::FunctionId(9),
            first_line: 90,
            text: "def forward(self, x):\n    return x @ self.w\n".into(),
        }));
        for tick in 0..ticks {
            if tick % 40 == 39 {
                it.define(1, 3, &mut records);
            }
            let moves = it.dice.roll(4) == 0;
            records.push(it.sample(moves));
            if tick % 2 == 0 {
                records.push(it.counters());
            }
            if tick % 50 == 20 {
                records.push(it.map(6));
            }
            let time = Nanos(it.tick * PERIOD + 40_000);
            if tick % 60 == 30 {
                records.push(Record::Usage(DeviceUsage {
                    time,
                    nvml_index: 3,
                    total: 1 << 37,
                    used: 1 << 34,
                    free: (1 << 37) - (1 << 34),
                    reserved: Some(1 << 29),
                    process: ProcessUsage::Unknown("another pid namespace".into()),
                }));
            }
            if tick % 70 == 35 {
                records.push(Record::Missed(MissedObservation {
                    time,
                    reader: ReaderKind::Stacks,
                    why: MissReason::Torn,
                    count: 2,
                }));
            }
        }
        records.push(it.end());
        records
    }
}

/// A trace with a block for every `each` records.
pub fn blocks_of(records: &[Record], each: usize) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for (n, record) in records.iter().enumerate() {
        writer.record(record).unwrap();
        if n % each == each - 1 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap().0
}

pub fn write(records: &[Record]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap().0
}

pub fn read(bytes: &[u8]) -> (Vec<Record>, ReplaySummary) {
    let mut records = Vec::new();
    let summary = TraceReader::from_bytes(bytes).unwrap().replay(&mut records).unwrap();
    (records, summary)
}

/// The offsets of all blocks and of the end, from the lengths alone.
pub fn borders(bytes: &[u8]) -> Vec<usize> {
    let mut all = vec![10];
    while let Some(head) = bytes.get(all[all.len() - 1]..).and_then(|b| b.get(..4)) {
        let length = u32::from_le_bytes(head.try_into().unwrap()) as usize;
        all.push(all[all.len() - 1] + 8 + length);
    }
    all
}

/// Every record with its numbers replaced by their definitions, to compare two numberings. Panics
/// if a record uses an undefined number.
pub fn spelled_out(records: &[Record]) -> Vec<String> {
    let mut table = StackTable::new();
    let mut function_of = |record: &Record| -> String {
        match record {
            Record::Definition(definition) => {
                assert!(table.define(definition.clone()), "refused: {definition:?}");
                match definition {
                    Definition::Function(_, f) => format!("{f:?}"),
                    Definition::Frame(_, f) => {
                        format!("{:?} line {}", table.get_function(f.function), f.line)
                    }
                    Definition::Stack(id, _) => stack(&table, *id),
                    Definition::Thread(_, t) => format!("{t:?}"),
                    Definition::Site(id, _) => site(&table, *id),
                    Definition::Reset => unreachable!("no trace has it"),
                }
            }
            Record::Source(s) => {
                let function = table.get_function(s.function).unwrap();
                format!("{function:?} {} {}", s.first_line, s.text)
            }
            Record::Sample(s) => {
                let threads: Vec<String> = s
                    .threads
                    .iter()
                    .map(|t| {
                        let thread = table.get_thread(t.thread).unwrap();
                        let stack = stack(&table, t.stack);
                        format!("{thread:?} {stack} {} {:?}", t.gil, t.activity)
                    })
                    .collect();
                format!("{:?} {threads:?}", s.time)
            }
            Record::Events(batch) => {
                let event = |event: &memspy::model::Event| {
                    let site = event.site.map(|id| site(&table, id));
                    format!("{:?} {:?} {site:?}", event.time, event.change)
                };
                format!("{:?}", batch.events.iter().map(event).collect::<Vec<_>>())
            }
            Record::Followed(batch) => {
                let change = |change: &memspy::model::FollowedChange| {
                    let mut rest = change.clone();
                    let threads = rest.threads.drain(..).map(|t| {
                        let thread = table.get_thread(t.thread).unwrap();
                        let stacks = [t.before, t.after]
                            .map(|reading| reading.stack().map(|id| stack(&table, id)));
                        format!("{thread:?} {stacks:?} {}", t.held_lock)
                    });
                    let threads: Vec<String> = threads.collect();
                    format!("{rest:?} {threads:?}")
                };
                format!("{:?}", batch.changes.iter().map(change).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        }
    };
    records.iter().map(&mut function_of).collect()
}

/// The definition of a site. Panics if it is undefined.
pub fn site(table: &StackTable, id: SiteId) -> String {
    let site = table.get_site(id).unwrap();
    let [own, forward] = [site.stack, site.forward].map(|s| s.map(|s| stack(table, s)));
    let thread = table.get_thread(site.thread).unwrap();
    let (source, node) = (site.source, &site.node);
    let native = match site.native.stack() {
        Some(native) => stack(table, native),
        None => format!("{:?}", site.native),
    };
    format!("{thread:?} {own:?} {source:?} {} {node:?} {forward:?} {native}", site.truncated)
}

fn stack(table: &StackTable, id: StackId) -> String {
    assert!(table.get_stack(id).is_some());
    let frames: Vec<String> = table
        .callers(id)
        .map(|at| {
            let node = table.get_stack(at).unwrap();
            let frame = table.get_frame(node.frame).unwrap();
            let name = |function| &table.get_function(function).unwrap().name;
            format!("{}:{} {:?}", name(frame.function), frame.line, node.module.map(name))
        })
        .collect();
    frames.join(";")
}
