//! What one look at the allocator of a job on the simulated device costs: its counters, and its map
//! at several numbers of blocks.

#![allow(unreachable_pub, dead_code, reason = "shared with the tests")]

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use memspy::model::{CudaIndex, Nanos, SnapshotConsistency};
use memspy::target::Process;
use memspy::torch::AllocatorReader;
use support::sim;

fn allocator(criterion: &mut Criterion) {
    let mut job = sim::start("allocator_load.py", &[]);
    for blocks in [100, 1_000, 10_000] {
        job.say(&format!("hold {blocks}"));
        job.read_until_ready();
        let process = Process::open(job.pid()).unwrap();
        let mut reader = AllocatorReader::attach(&process).unwrap().unwrap();
        if blocks == 100 {
            let mut out = Vec::new();
            criterion.bench_function("attach", |b| {
                b.iter(|| AllocatorReader::attach(&process).unwrap());
            });
            criterion.bench_function("counters", |b| {
                b.iter(|| reader.counters(&mut out).unwrap());
            });
        }
        criterion.bench_function(&format!("blocks/{blocks}"), |b| {
            b.iter(|| {
                let map = reader.blocks(CudaIndex(0), &|| Nanos(0)).unwrap();
                assert_eq!(map.consistency, SnapshotConsistency::Consistent);
                map
            });
        });
    }
    job.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(3));
    targets = allocator
}
criterion_main!(benches);
