//! A trace of a hundred million events: how long `memspy flame` takes for its peak, and how much
//! memory.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/trace_support/mod.rs"]
mod trace_support;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memspy::model::RecordSink;
use memspy::trace::TraceWriter;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use trace_support::Loop;
use trace_support::allocations::{Allocations, Likeness};

/// Events of a batch.
const BATCH: usize = 512;

/// Writes so many events to `path`.
fn write(path: &Path, events: u64) {
    let mut opening = Vec::new();
    Loop::new(1).opening(&mut opening);
    let mut writer = TraceWriter::create(path, true).unwrap();
    for record in &opening {
        writer.record(record).unwrap();
    }
    let mut allocations = Allocations::new(Likeness::Varied, 7);
    allocations.opening(&mut writer);
    for _ in 0..events / BATCH as u64 {
        writer.record(&allocations.batch(BATCH)).unwrap();
    }
    writer.finish().unwrap();
}

fn main() {
    // 'cargo test --all-targets' runs it as well: with little.
    let is_bench = std::env::args().any(|word| word == "--bench");
    let events = std::env::var("MEMSPY_EVENTS").ok().and_then(|text| text.parse().ok());
    let events: u64 = events.unwrap_or(if is_bench { 100_000_000 } else { 100_000 });
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("large-{events}.bin"));
    if !path.exists() {
        let start = Instant::now();
        write(&path, events);
        println!("{events} events written in {:.1} s", start.elapsed().as_secs_f64());
    }
    let size = std::fs::metadata(&path).unwrap().len();
    println!("{}: {:.2} GB, {events} events", path.display(), size as f64 / 1e9);
    let picture = path.with_extension("svg");
    let mut before = 0.0;
    for words in [&["flame"][..], &["flame", "-f", "collapsed"]] {
        let start = Instant::now();
        let done = Command::new(env!("CARGO_BIN_EXE_memspy"))
            .args(words)
            .arg(&path)
            .args(["--force", "-o"])
            .arg(&picture)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let took = start.elapsed().as_secs_f64();
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let processor = seconds(usage.user_time()) + seconds(usage.system_time());
        println!(
            "memspy {}: {took:.1} s ({:.1} s of processor time), {:.1} million events a second, at most {} MiB",
            words.join(" "),
            processor - std::mem::replace(&mut before, processor),
            events as f64 / took / 1e6,
            usage.max_rss() >> 10
        );
    }
    if !is_bench {
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::remove_file(&picture).unwrap();
}
