//! A small trace cannot make memspy take more than its share of memory or time.

mod trace_support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};

use trace_support::by_hand::crc32c;

/// The most that any of these may take, in bytes.
const MAX_BYTES: u64 = 760 << 20;

fn put(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=250 => out.push(value as u8),
        251..=0xFFFF => {
            out.push(251);
            out.extend_from_slice(&(value as u16).to_le_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(252);
            out.extend_from_slice(&(value as u32).to_le_bytes());
        }
        _ => {
            out.push(253);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

fn numbers(values: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| put(&mut out, *value));
    out
}

fn record(payload: &mut Vec<u8>, tag: u8, body: &[u8]) {
    payload.push(tag);
    put(payload, body.len() as u64);
    payload.extend_from_slice(body);
}

/// What a block begins with.
struct Head {
    block: u64,
    records: u64,
    functions: u64,
    frames: u64,
    stacks: u64,
}

/// A trace put together block by block.
struct Bomb {
    bytes: Vec<u8>,
    head: Head,
}

impl Bomb {
    fn new() -> Bomb {
        let head = Head { block: 0, records: 0, functions: 0, frames: 0, stacks: 0 };
        Bomb { bytes: b"MEMSPY\r\n\x01\x00".to_vec(), head }
    }

    /// A block with `count` records; of them so many functions, frames and stacks.
    fn block(&mut self, count: u64, defines: [u64; 3], records: &[u8]) {
        let Head { block, records: before, functions, frames, stacks } = self.head;
        let mut payload = Vec::new();
        let head = numbers(&[block, before, 0, 5_000_000, functions, frames, stacks]);
        record(&mut payload, 0, &head);
        payload.extend_from_slice(records);
        let body = zstd::bulk::compress(&payload, 3).unwrap();
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
        self.bytes.extend_from_slice(&body);
        let [f, fr, s] = defines;
        self.head = Head {
            block: block + 1,
            records: before + count,
            functions: functions + f,
            frames: frames + fr,
            stacks: stacks + s,
        };
    }

    /// A function, a frame and so many threads.
    fn opening(threads: u64) -> (u64, Vec<u8>) {
        let mut out = Vec::new();
        record(&mut out, 3, b"\x01f\x04a.py\x03\x09");
        record(&mut out, 4, &numbers(&[0, 4]));
        for thread in 0..threads {
            let mut body = numbers(&[thread]);
            body.push(0);
            put(&mut body, thread);
            body.extend_from_slice(&[0, 0]);
            record(&mut out, 6, &body);
        }
        (2 + threads, out)
    }
}

/// Counters of a device in which something was allocated since the last ones.
fn counters(out: &mut Vec<u8>, device: u64) {
    let mut body = numbers(&[0, device]);
    // None of the optional numbers; the row of allocated bytes, in it what was allocated of large blocks.
    body.extend_from_slice(&[0, 1 << 4, 2]);
    put(&mut body, 1 << 9);
    record(out, 12, &body);
}

/// Runs memspy on a trace; the greatest resident size in bytes of all that this process ever ran, and what it said.
fn run(words: &[&str], trace: &Path) -> (u64, String) {
    let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
    let memspy = memspy.args(words).arg(trace).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = memspy.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code().is_some(), "{words:?}: {}: {said}", done.status);
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    (usage.max_rss() as u64 * 1024, said)
}

#[track_caller]
fn is_bounded(name: &str, bomb: &Bomb, commands: &[&[&str]]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, &bomb.bytes).unwrap();
    for words in commands {
        let (most, said) = run(words, &path);
        println!("{name}: {} bytes, {words:?}: {} MiB: {said}", bomb.bytes.len(), most >> 20);
        assert!(
            most < MAX_BYTES,
            "{name} of {} bytes: {} MiB by {words:?}",
            bomb.bytes.len(),
            most >> 20
        );
        assert!(said.lines().count() <= 3, "{said}");
    }
}

#[test]
fn functions_without_number() {
    let mut bomb = Bomb::new();
    {
        let mut records = Vec::new();
        let count = 4 << 20;
        for _ in 0..count {
            record(&mut records, 3, &[0, 0, 0, 0]);
        }
        bomb.block(count, [count, 0, 0], &records);
    }
    is_bounded("functions", &bomb, &[&["lines"]]);
}

#[test]
fn a_sample_of_more_threads_than_there_are() {
    let mut bomb = Bomb::new();
    let (count, mut records) = Bomb::opening(1);
    record(&mut records, 5, &numbers(&[0, 0]));
    let threads = 16 << 20;
    let mut sample = numbers(&[0, threads]);
    for _ in 0..threads {
        sample.extend_from_slice(&[0, 0, 0]);
    }
    record(&mut records, 9, &sample);
    bomb.block(count + 2, [1, 1, 1], &records);
    is_bounded("threads", &bomb, &[&["lines"]]);
}

#[test]
fn limits_of_every_stack_on_every_device() {
    let mut bomb = Bomb::new();
    let (count, mut records) = Bomb::opening(2000);
    let stacks = 20_000;
    for _ in 0..stacks {
        record(&mut records, 5, &numbers(&[0, 0]));
    }
    bomb.block(count + stacks, [1, 1, stacks], &records);
    let mut records = Vec::new();
    let mut count = 0;
    for round in 0..stacks / 2000 {
        let mut sample = numbers(&[0, 2000]);
        for thread in 0..2000 {
            put(&mut sample, if thread == 0 { 0 } else { 2 });
            put(&mut sample, round * 2000 + thread);
            sample.push(0);
        }
        record(&mut records, 9, &sample);
        count += 1;
        for device in 0..1000 {
            counters(&mut records, device);
            count += 1;
        }
    }
    bomb.block(count, [0, 0, 0], &records);
    is_bounded("limits", &bomb, &[&["lines"]]);
}

#[test]
fn maps_of_blocks_without_number() {
    let mut bomb = Bomb::new();
    let mut at = 0;
    for device in 0..3 {
        let mut records = Vec::new();
        let blocks: u64 = 4 << 20;
        let mut map = numbers(&[0, device, 0, 0]);
        // One new segment with that many new blocks.
        put(&mut map, 1 << 2 | 2);
        map.push(0);
        map.extend_from_slice(&numbers(&[1, 1, 0, 0, 0]));
        put(&mut map, blocks << 2 | 2);
        for _ in 0..blocks {
            map.extend_from_slice(&[8, 1]);
        }
        map.extend_from_slice(&[0, 0]);
        record(&mut records, 13, &map);
        bomb.block(1, [0, 0, 0], &records);
        at += 1;
    }
    assert_eq!(at, 3);
    is_bounded("maps", &bomb, &[&["oom-report"]]);
}

#[test]
fn allocations_that_are_never_freed() {
    let mut bomb = Bomb::new();
    let (count, mut records) = Bomb::opening(1);
    // Exact: way, frees, stacks from, stacks every, backward lines, no probes, nothing uncovered, backward.
    record(&mut records, 18, &numbers(&[0, 0, 0, 0, 0, 0, 0, 0, 0]));
    bomb.block(count + 1, [1, 1, 0], &records);
    {
        // In one block: in each, addresses begin anew.
        let mut records = Vec::new();
        let batches = 100;
        for _ in 0..batches {
            let events = 65_536;
            // Allocated from the driver, at the same time, each behind the one before.
            let columns: [Vec<u8>; 7] = [
                vec![1; events],
                vec![0; events],
                [1, 0].repeat(events),
                vec![],
                vec![2; events],
                vec![1; events],
                vec![],
            ];
            let mut body = numbers(&[events as u64]);
            for column in &columns[1..] {
                put(&mut body, column.len() as u64);
            }
            body.extend(columns.concat());
            record(&mut records, 19, &body);
        }
        bomb.block(batches, [0, 0, 0], &records);
    }
    is_bounded("allocations", &bomb, &[&["lines"]]);
}

#[test]
fn source_text_without_end() {
    let mut bomb = Bomb::new();
    for _ in 0..12 {
        let mut records = Vec::new();
        let count = 60;
        for _ in 0..count {
            record(&mut records, 3, &[0, 0, 0, 0]);
        }
        for function in 0..count {
            let mut body = numbers(&[bomb.head.functions + function, 1]);
            put(&mut body, 1 << 20);
            body.extend(vec![b' '; 1 << 20]);
            record(&mut records, 7, &body);
        }
        bomb.block(2 * count, [count, 0, 0], &records);
    }
    is_bounded("sources", &bomb, &[&["lines"]]);
}

#[test]
fn iterations_on_every_device() {
    let mut bomb = Bomb::new();
    let mut records = Vec::new();
    for device in 0..1000 {
        counters(&mut records, device);
    }
    let steps = 20_000;
    for step in 0..steps {
        record(&mut records, 22, &numbers(&[2_000_000, step, 0, 0, 0]));
    }
    bomb.block(1000 + steps, [0, 0, 0], &records);
    is_bounded("iterations", &bomb, &[&["iterations"]]);
}
