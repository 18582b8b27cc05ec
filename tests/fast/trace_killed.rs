//! A recorder killed at any moment leaves a trace that is readable up to its last whole block.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::trace_support::{Dice, Loop};
use memspy::model::{Nanos, Record, RecordSink};
use memspy::trace::{TraceReader, TraceWriter};

const PATH: &str = "MEMSPY_TEST_TRACE_TO_WRITE";

/// The recorder: this test binary, started again with only this test and a path in its environment.
#[test]
#[ignore = "the test below starts it, in a process of its own"]
fn the_recorder_that_is_killed() {
    let path = std::env::var_os(PATH).expect("the test below sets it");
    let mut writer = TraceWriter::create(path, true).unwrap();
    println!("READY");
    endless(|record| {
        writer.record(record).unwrap();
        true
    });
}

/// The same records every time, until `take` has enough.
fn endless(mut take: impl FnMut(&Record) -> bool) {
    let mut it = Loop::new(77);
    let mut next = Vec::new();
    it.opening(&mut next);
    it.define(8, 4, &mut next);
    for tick in 0u64.. {
        next.push(it.sample(tick % 3 == 0));
        next.push(it.counters());
        if tick % 20 == 0 {
            next.push(it.map(40));
        }
        for record in next.drain(..) {
            if !take(&record) {
                return;
            }
        }
    }
}

#[test]
fn killed_at_random_moments_it_leaves_a_readable_trace() {
    let directory = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let mut expected: Vec<Record> = Vec::new();
    for round in 0..12 {
        let path = directory.path().join(format!("{round}.trace"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "trace_killed::the_recorder_that_is_killed",
                "--nocapture",
            ])
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("READY")));
        // A busy machine may write no block in time: half of them wait for one.
        let has_block = || path.metadata().is_ok_and(|file| file.len() > 1 << 10);
        while round % 2 == 0 && !has_block() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(dice.roll(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();

        let mut records = Vec::new();
        let summary = TraceReader::open(&path).unwrap().replay(&mut records).unwrap();
        assert!(!summary.complete);
        assert_eq!(summary.damaged_places, 0, "{summary:?}");
        if expected.len() < records.len() {
            expected = up_to(records.len());
        }
        assert!(records == expected[..records.len()], "round {round}");
    }
    assert!(!expected.is_empty(), "at least one got to write a block");
}

fn up_to(count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    endless(|record| {
        records.push(record.clone());
        records.len() < count
    });
    records
}

#[test]
fn a_recording_killed_in_its_first_second_keeps_a_third() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("early.trace");
    let mut writer = TraceWriter::create(&path, false).unwrap().with_early_blocks();
    let (mut it, mut opening) = (Loop::new(3), Vec::new());
    it.opening(&mut opening);
    it.define(8, 4, &mut opening);
    opening.iter().for_each(|record| writer.record(record).unwrap());
    writer.sync().unwrap();
    let sample = |n: u64| {
        Record::Sample(memspy::model::StackSample {
            time: Nanos(n * 10_000_000),
            threads: Vec::new(),
        })
    };
    for now in 0..1000u64 {
        writer.record(&sample(now)).unwrap();
        let mut records: Vec<Record> = Vec::new();
        TraceReader::open(&path).unwrap().replay(&mut records).unwrap();
        // In hundredths of a second; the last has no length yet.
        let kept = (records.len() - opening.len()) as u64;
        let may_lack = (2 * now).div_ceil(3).clamp(10, 100) + 1;
        assert!(now + 1 - kept <= may_lack, "{kept} of {now}");
    }
}
