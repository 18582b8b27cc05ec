//! A million samples, and as many exact events, written to a trace and read back.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/trace_support/mod.rs"]
mod trace_support;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use memspy::model::{Record, RecordSink, SinkResult};
use memspy::trace::{TraceReader, TraceWriter};
use trace_support::Loop;
use trace_support::allocations::{self, Allocations, Likeness};

const SAMPLES: u64 = 1_000_000;
/// Of exact events, each of 512.
const BATCHES: usize = 2000;

/// Takes everything and looks at it a little.
struct Count(u64);

impl RecordSink for Count {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Sample(sample) => self.0 += (sample.time.0 & 1) + sample.threads.len() as u64,
            Record::Events(batch) => {
                self.0 += batch.events.iter().map(|event| event.time.0 & 1).sum::<u64>();
            }
            _ => {}
        }
        black_box(record);
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    moves: bool,
    counters: bool,
}

fn records(kind: Kind, count: u64) -> Vec<Record> {
    let mut it = Loop::new(1);
    let mut records = Vec::new();
    it.opening(&mut records);
    it.define(40, 4, &mut records);
    for _ in 0..count {
        records.push(it.sample(kind.moves));
        if kind.counters {
            records.push(it.counters());
        }
    }
    records
}

fn write(records: &[Record]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap().0
}

fn trace(criterion: &mut Criterion) {
    let steady = Kind { name: "steady", moves: false, counters: false };
    let moving = Kind { name: "moving", moves: true, ..steady };
    let counters = Kind { name: "counters", counters: true, ..steady };
    for (kind, count) in [(steady, SAMPLES), (moving, SAMPLES), (counters, SAMPLES / 10)] {
        measure(criterion, kind.name, &records(kind, count), count);
    }
}

/// Writes and reads `records`, which hold `count` samples or events.
fn measure(criterion: &mut Criterion, name: &str, records: &[Record], count: u64) {
    let bytes = write(records);
    let each = bytes.len() as f64 / count as f64;
    println!("{name}: {each:.2} bytes each");
    let mut group = criterion.benchmark_group(format!("trace/{name}"));
    group
        .throughput(Throughput::Elements(count))
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    group.bench_function("write", |b| b.iter(|| write(black_box(records))));
    group.bench_function("read", |b| {
        b.iter(|| {
            let mut count = Count(0);
            let mut reader = TraceReader::from_bytes(&bytes).unwrap();
            reader.replay(&mut count).unwrap();
            count.0
        });
    });
    group.finish();
}

fn events(criterion: &mut Criterion) {
    for (name, likeness) in [
        ("events, training", Likeness::Training),
        ("events, varied", Likeness::Varied),
        ("events, random", Likeness::Random),
    ] {
        let records = Allocations::story(likeness, 1, BATCHES, 512);
        measure(criterion, name, &records, allocations::count(&records));
    }
}

criterion_group!(benches, trace, events);
criterion_main!(benches);
