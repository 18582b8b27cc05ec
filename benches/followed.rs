//! Long followed traces: how long `memspy flame` and `memspy report` take, and how much memory.
//!
//! `cargo bench --bench followed`. A generated job of 64 allocation sites repeats iterations of
//! 2,000 counter deltas: one in four allocations is freed at once, the others at the iteration's
//! end. One delta in eight shows another stack after it.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/trace_support/mod.rs"]
mod trace_support;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memspy::model::{
    AllocatorCounters, AllocatorSnapshot, Block, BlockState, CounterDelta, CudaIndex,
    FollowedChange, FollowedChanges, FollowedThread, Frame, Function, Metric, Nanos, Pool, PoolId,
    Record, RecordSink, RecordingEnd, Segment, SnapshotConsistency, StackId, StackReading,
    StackTable, Thread, ThreadId, ThreadWait,
};
use memspy::trace::TraceWriter;
use nix::sys::resource::{UsageWho, getrusage};
use trace_support::{Dice, Loop};

const SITES: u64 = 64;
/// Allocations of an iteration.
const ITERATION: u64 = 1_000;
/// Polls that saw a delta, in nanoseconds.
const APART: u64 = 8_000;
const BASE: u64 = 0x7f00_0000_0000;

/// A job, and what it has allocated: sizes by slot of 32 MiB.
struct Job {
    dice: Dice,
    stacks: Vec<StackId>,
    thread: ThreadId,
    live: Vec<(u64, u64)>,
    free: Vec<u64>,
    slots: u64,
    bytes: i64,
    highest: i64,
    counters: AllocatorCounters,
    now: u64,
}

impl Job {
    fn new(sink: &mut dyn RecordSink) -> Job {
        let mut table = StackTable::new();
        let main = table.function(Function {
            name: "main".into(),
            file: "train.py".into(),
            first_line: 1,
            last_line: 999,
            is_native: false,
        });
        let mut stack = |line| {
            let frame = table.frame(Frame { function: main, line });
            table.stack(None, frame)
        };
        let stacks = (0..SITES as u32).map(|site| stack(10 + site)).collect();
        let name = Some("MainThread".into());
        let thread = Thread { os_id: Some(4242), python_id: 1, name, main: true };
        let thread = table.thread(thread);
        for definition in table.take_definitions() {
            sink.record(&Record::Definition(definition)).unwrap();
        }
        let (live, free) = (Vec::new(), Vec::new());
        let counters = AllocatorCounters::default();
        let (dice, now) = (Dice(7), 1_000_000);
        Job { dice, stacks, thread, live, free, slots: 0, bytes: 0, highest: 0, counters, now }
    }

    /// A delta of one block at the `nth` site of the iteration.
    fn delta(&mut self, nth: u64, bytes: u64, allocates: bool) -> FollowedChange {
        let reading = |nth: u64| StackReading::Whole(self.stacks[(nth % SITES) as usize]);
        let moves = u64::from(self.dice.roll(8) == 0);
        let (before, after) = (reading(nth), reading(nth + moves));
        let amount = bytes as i64;
        let large = match allocates {
            true => CounterDelta {
                allocations: 1,
                allocated_bytes: amount,
                requested_bytes: amount,
                ..CounterDelta::default()
            },
            false => CounterDelta {
                frees: 1,
                freed_bytes: amount,
                freed_requested_bytes: amount,
                ..CounterDelta::default()
            },
        };
        self.bytes += if allocates { amount } else { -amount };
        self.highest = self.highest.max(self.bytes);
        let thread = self.thread;
        let wait = ThreadWait::default();
        FollowedChange {
            before: Nanos(self.now),
            after: Nanos(self.now + APART),
            device: CudaIndex(0),
            small: CounterDelta::default(),
            large,
            live: [0, self.bytes],
            threads: vec![FollowedThread { thread, before, after, held_lock: true, wait }],
            others_possible: false,
            counters_torn: false,
            totals_reset: false,
            addresses: None,
        }
    }

    fn allocate(&mut self, nth: u64) -> FollowedChange {
        let size = (2 + nth % 8) << 20;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.live.push((slot, size));
        self.delta(nth, size, true)
    }

    fn release(&mut self, nth: u64) -> Option<FollowedChange> {
        let (slot, size) = self.live.pop()?;
        self.free.push(slot);
        Some(self.delta(nth, size, false))
    }

    /// What the allocator's counters say.
    fn counters(&mut self) -> Record {
        for pool in [Pool::All, Pool::Large] {
            let stat = &mut self.counters.stats[Metric::AllocatedBytes as usize][pool as usize];
            (stat.current, stat.peak) = (self.bytes, stat.peak.max(self.highest));
        }
        let (time, counters) = (Nanos(self.now), Box::new(self.counters));
        Record::Counters { time, device: CudaIndex(0), counters }
    }

    fn snapshot(&self) -> Record {
        let mut live = self.live.clone();
        live.sort_unstable();
        let segment = |(slot, size): (u64, u64)| {
            let address = BASE + slot * (32 << 20);
            let block = Block { address, size, requested: size, state: BlockState::Allocated };
            Segment {
                address,
                size,
                stream: 0,
                small: false,
                expandable: false,
                granule: 0,
                retired: false,
                pool: PoolId(0, 0),
                blocks: vec![block],
            }
        };
        Record::Snapshot(AllocatorSnapshot {
            time: Nanos(self.now),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: live.into_iter().map(segment).collect(),
        })
    }
}

/// Writes so many deltas, `pace` nanoseconds apart, and a snapshot after every `each` of them.
fn write(path: &Path, deltas: u64, pace: u64, each: u64) {
    let mut opening = Vec::new();
    Loop::new(1).opening(&mut opening);
    let mut writer = TraceWriter::create(path, true).unwrap();
    opening.iter().for_each(|record| writer.record(record).unwrap());
    let mut job = Job::new(&mut writer);
    let mut batch = Vec::new();
    let (mut nth, mut written) = (0, 0);
    while written < deltas {
        let is_end = nth == ITERATION;
        let change = match is_end {
            true => job.release(nth),
            false if nth % 4 == 3 && batch.len() % 2 == 1 => job.release(nth),
            false => {
                nth += 1;
                Some(job.allocate(nth - 1))
            }
        };
        let Some(change) = change else {
            nth = 0;
            continue;
        };
        batch.push(change);
        job.now += pace.max(APART);
        written += 1;
        if batch.len() == 512 || written % each == each / 3 {
            let changes = std::mem::take(&mut batch);
            writer.record(&Record::Followed(FollowedChanges { changes })).unwrap();
        }
        if written % each == each / 3 {
            writer.record(&job.counters()).unwrap();
            writer.record(&job.snapshot()).unwrap();
        }
    }
    writer.record(&job.counters()).unwrap();
    writer.record(&job.snapshot()).unwrap();
    let Record::End(end) = Loop::new(1).end() else { panic!("no end") };
    writer.record(&Record::End(RecordingEnd { time: Nanos(job.now), ..end })).unwrap();
    writer.finish().unwrap();
}

fn main() {
    // 'cargo test --all-targets' runs it as well: with little.
    let is_bench = std::env::args().any(|word| word == "--bench");
    let (deltas, seconds) = if is_bench { (1_000_000, 3_600) } else { (20_000, 72) };
    let folder = tempfile::tempdir().unwrap();
    let pace = seconds * 1_000_000_000 / deltas;
    for (name, command, pace, snapshots) in [
        ("a million deltas", "flame", 20_000, 50),
        ("an hour, a snapshot a second", "report", pace, seconds),
    ] {
        let trace = folder.path().join("followed.bin");
        write(&trace, deltas, pace, (deltas / snapshots).max(1));
        let size = std::fs::metadata(&trace).unwrap().len() as f64 / f64::from(1 << 20);
        let began = Instant::now();
        let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
        let done = memspy.arg(command).arg(&trace).arg("--force").arg("-o");
        let done = done.arg(folder.path().join("out")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let took = began.elapsed().as_secs_f64();
        let most = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() >> 10;
        println!("{name}: {deltas} deltas, trace {size:.1} MiB: {command} {took:.1} s, {most} MiB");
    }
}
