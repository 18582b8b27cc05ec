//! A million samples written to a trace and read back.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/trace_support/mod.rs"]
mod trace_support;

use std::hint::black_box;
use std::io;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use memspy::model::{Record, RecordSink};
use memspy::trace::{Reader, Writer};
use trace_support::Loop;

const SAMPLES: u64 = 1_000_000;

/// Takes everything and looks at it a little.
struct Count(u64);

impl RecordSink for Count {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        if let Record::Sample(sample) = record {
            self.0 += (sample.time.0 & 1) + sample.threads.len() as u64;
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
    let mut writer = Writer::new(Vec::new()).unwrap();
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
        let records = records(kind, count);
        let bytes = write(&records);
        let each = bytes.len() as f64 / count as f64;
        println!("{}: {each:.2} bytes per sample", kind.name);
        let mut group = criterion.benchmark_group(format!("trace/{}", kind.name));
        group
            .throughput(Throughput::Elements(count))
            .sample_size(10)
            .measurement_time(Duration::from_secs(5));
        group.bench_function("write", |b| b.iter(|| write(black_box(&records))));
        group.bench_function("read", |b| {
            b.iter(|| {
                let mut count = Count(0);
                let mut reader = Reader::from_bytes(&bytes).unwrap();
                reader.replay(&mut count).unwrap();
                count.0
            });
        });
        group.finish();
    }
}

criterion_group!(benches, trace);
criterion_main!(benches);
