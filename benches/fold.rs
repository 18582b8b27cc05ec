//! How many samples and exact events a second a profile takes in.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memspy::analysis::Profile;
use memspy::model::*;

const DEPTH: u32 = 40;

/// How often the stack and the counters differ from those of the sample before.
struct Pace {
    name: &'static str,
    stack_every: u64,
    counters_every: u64,
    samples: u64,
    threads: usize,
}

fn records(pace: &Pace) -> Vec<Record> {
    let mut table = StackTable::new();
    let threads: Vec<ThreadId> = (0..pace.threads)
        .map(|i| {
            table.thread(Thread {
                os_id: Some(i as u64),
                python_id: i as u64,
                name: None,
                main: i == 0,
            })
        })
        .collect();
    let function = table.function(Function {
        name: "f".into(),
        file: "a.py".into(),
        first_line: 1,
        last_line: 99,
        is_native: false,
    });
    let mut outer = None;
    for line in 1..DEPTH {
        let frame = table.frame(Frame { function, line });
        outer = Some(table.stack(outer, frame));
    }
    let stacks: Vec<StackId> = (0..50)
        .map(|i| {
            let frame = table.frame(Frame { function, line: 100 + i });
            table.stack(outer, frame)
        })
        .collect();
    let mut records: Vec<Record> = Vec::new();
    records.extend(table.take_definitions().into_iter().map(Record::Definition));
    let mut counters = AllocatorCounters::default();
    for i in 0..pace.samples {
        let time = Nanos(i * 5_000_000);
        let stack = stacks[(i / pace.stack_every) as usize % stacks.len()];
        let threads = threads
            .iter()
            .map(|&thread| ThreadSample {
                thread,
                stack,
                gil: false,
                activity: ThreadActivity::Active,
            })
            .collect();
        records.push(Record::Sample(StackSample { time, threads }));
        if i % pace.counters_every == 0 {
            for pool in [Pool::All, Pool::Large] {
                let stat = &mut counters.stats[Metric::AllocatedBytes as usize][pool as usize];
                stat.allocated += 1 << 21;
                stat.current += 1 << 21;
                stat.peak = stat.peak.max(stat.current);
            }
            records.push(Record::Counters {
                time,
                device: CudaIndex(0),
                counters: Box::new(counters),
            });
        }
        // A map a second, as when recording.
        if i % 200 == 0 && pace.counters_every == 1 {
            records.push(Record::Snapshot(AllocatorSnapshot {
                time,
                device: CudaIndex(0),
                retries: 0,
                consistency: SnapshotConsistency::Consistent,
                segments: Vec::new(),
            }));
        }
    }
    records
}

fn fold(c: &mut Criterion) {
    let mut group = c.benchmark_group("profile");
    group.sample_size(10);
    let never = u64::MAX;
    for pace in [
        Pace {
            name: "steady stack",
            stack_every: never,
            counters_every: never,
            samples: 1_000_000,
            threads: 1,
        },
        Pace {
            name: "steady stack, 4 threads",
            stack_every: never,
            counters_every: never,
            samples: 1_000_000,
            threads: 4,
        },
        Pace {
            name: "changing stack",
            stack_every: 1,
            counters_every: never,
            samples: 1_000_000,
            threads: 1,
        },
        Pace {
            name: "changing stack and counters",
            stack_every: 1,
            counters_every: 1,
            samples: 200_000,
            threads: 1,
        },
    ] {
        let records = records(&pace);
        group.throughput(Throughput::Elements(pace.samples));
        group.bench_function(BenchmarkId::from_parameter(pace.name), |b| {
            b.iter(|| {
                let mut profile = Profile::new();
                for record in &records {
                    profile.record(record).unwrap();
                }
                profile.finish();
                profile.samples()
            });
        });
    }
    group.finish();
}

/// A profile that knows `live` blocks, and events that each free one of them and allocate it anew.
fn exact_events(live: u64, sites: u32) -> (Profile, Vec<Record>) {
    let mut table = StackTable::new();
    let thread = table.thread(Thread { os_id: Some(1), python_id: 1, name: None, main: true });
    let function = table.function(Function {
        name: "f".into(),
        file: "a.py".into(),
        first_line: 1,
        last_line: 99,
        is_native: false,
    });
    let mut outer = None;
    for line in 1..DEPTH {
        let frame = table.frame(Frame { function, line });
        outer = Some(table.stack(outer, frame));
    }
    let sites: Vec<SiteId> = (0..sites)
        .map(|i| {
            let frame = table.frame(Frame { function, line: 100 + i });
            let stack = Some(table.stack(outer, frame));
            let source = StackSource::Own;
            table.site(AllocationSite {
                thread,
                stack,
                source,
                truncated: false,
                node: None,
                forward: None,
                native: Default::default(),
            })
        })
        .collect();
    let mut profile = Profile::new();
    let mut take = |record: Record| profile.record(&record).unwrap();
    for definition in table.take_definitions() {
        take(Record::Definition(definition));
    }
    take(Record::ExactSettings(ExactSettings { knows_backward: true, ..ExactSettings::default() }));
    let mut allocated = 0;
    let mut time = 0;
    let mut allocate = |i: u64, grown: i64| {
        allocated += grown;
        time += 1000;
        let levels =
            CounterSnapshot { allocated, peak: allocated, reserved: 1 << 40, active: allocated };
        let change = EventKind::Allocated {
            memory_kind: MemoryKind::Torch(CudaIndex(0)),
            address: i << 9,
            size: 512,
            levels: Some(levels),
            block: None,
        };
        Event { time: Nanos(time), change, site: Some(sites[i as usize % sites.len()]) }
    };
    let begin = (0..live).map(|i| allocate(i, 512)).collect();
    take(Record::Events(EventBatch { events: begin }));
    let mut batches = Vec::new();
    let mut at = 1;
    for _ in 0..100 {
        let mut events = Vec::new();
        for _ in 0..500 {
            at = (at * 48_271 + 11) % live;
            let again = allocate(at, 0);
            let address = at << 9;
            let change =
                EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward: false };
            events.extend([Event { change, site: None, ..again }, again]);
        }
        batches.push(Record::Events(EventBatch { events }));
    }
    (profile, batches)
}

fn exact(c: &mut Criterion) {
    let mut group = c.benchmark_group("exact events");
    group.sample_size(10);
    for (name, live) in [("10,000 blocks alive", 10_000), ("1,000,000 blocks alive", 1_000_000)] {
        let (mut profile, batches) = exact_events(live, 1000);
        group.throughput(Throughput::Elements(100 * 1000));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                for record in &batches {
                    profile.record(record).unwrap();
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, fold, exact);
criterion_main!(benches);
