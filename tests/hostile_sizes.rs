//! A small trace cannot make memspy take more than its share of memory or time.

mod trace_support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};

use trace_support::by_hand::{crc32c, put};

/// The most that any of these may take, in bytes (SECURITY.md). One large record is there four
/// times: in the reader, as the last one of its kind, on the way to the analysis, and in it.
const MAX_BYTES: u64 = 512 << 20;
/// The most time of a processor that any of these may take, in seconds, by a memspy built for
/// debugging.
const MAX_SECONDS: u64 = 60;

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
    // None of the optional numbers; the row of allocated bytes, in it what was allocated of large
    // blocks.
    body.extend_from_slice(&[0, 1 << 4, 2]);
    put(&mut body, 1 << 9);
    record(out, 12, &body);
}

/// Runs memspy on a trace; the greatest resident size in bytes of all that this process ever ran,
/// and what it said.
fn run(words: &[&str], trace: &Path) -> (u64, String) {
    let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
    let memspy = memspy.args(words).arg(trace).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: setrlimit may be called between fork and exec.
    unsafe {
        memspy.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_CPU, MAX_SECONDS, MAX_SECONDS)?));
    }
    let done = memspy.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code().is_some(), "{words:?}: {}: {said}", done.status);
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    (usage.max_rss() as u64 * 1024, said)
}

/// The record that says that events follow.
fn exact_settings(out: &mut Vec<u8>) {
    // Way, frees, stacks from, stacks every, backward lines, no probes, nothing uncovered,
    // backward, empty at its start.
    record(out, 18, &numbers(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
}

/// Allocations of 512 bytes each from the driver, one for each site.
fn allocations_of(out: &mut Vec<u8>, sites: std::ops::Range<u64>) {
    for first in sites.clone().step_by(65_536) {
        let sites = first..(first + 65_536).min(sites.end);
        let count = (sites.end - sites.start) as usize;
        let columns: [Vec<u8>; 6] = [
            vec![0; count],
            [1, 0].repeat(count),
            numbers(&sites.collect::<Vec<u64>>()),
            vec![2; count],
            vec![1; count],
            vec![],
        ];
        let mut body = numbers(&[count as u64]);
        columns.iter().for_each(|column| put(&mut body, column.len() as u64));
        body.extend(vec![1 | 8; count]);
        body.extend(columns.concat());
        record(out, 19, &body);
    }
}

/// A trace with a chain of so many frames, each called by the one before; each of its stacks has a
/// block.
fn chain(stacks: u64) -> Bomb {
    let mut bomb = Bomb::new();
    let (count, mut records) = Bomb::opening(1);
    exact_settings(&mut records);
    record(&mut records, 5, &numbers(&[0, 0]));
    (1..stacks).for_each(|stack| record(&mut records, 5, &numbers(&[1, stack - 1, 0])));
    for site in 0..stacks {
        // Of the only thread, with a stack, its own; not cut, no node, no forward stack.
        record(&mut records, 17, &numbers(&[site, 0, 1, site, 0, 0, 0, 0]));
    }
    allocations_of(&mut records, 0..stacks);
    let events = stacks.div_ceil(65_536);
    bomb.block(count + 1 + 2 * stacks + events, [1, 1, stacks], &records);
    bomb
}

#[track_caller]
fn is_bounded(name: &str, bomb: &Bomb, commands: &[&[&str]]) -> Vec<String> {
    let mut told = Vec::new();
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
        told.push(said);
    }
    told
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
    exact_settings(&mut records);
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

/// Each stack with its callers would be almost a gigabyte of text.
#[test]
fn a_chain_of_which_every_stack_holds_memory_is_not_spelled_out() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = chain(12_000);
    let out = folder.path().join("collapsed");
    let words = ["flame", "-f", "collapsed", "-o", out.to_str().unwrap()];
    let said = is_bounded("chain", &bomb, &[&words]).concat();
    assert!(said.contains(" stacks, the smallest ones, are merged into [stacks left"), "{said}");
    let written = fs::read_to_string(&out).unwrap();
    assert!(written.len() < 80 << 20, "{} MiB", written.len() >> 20);
    let sum = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(written.lines().map(sum).sum::<u64>(), 512 * 12_000);
}

/// A deep stack that every event leaves and comes back to.
#[test]
fn a_deep_stack_that_is_left_and_come_to_without_end_is_refused() {
    let mut bomb = chain(2_000);
    let mut records = Vec::new();
    // A second root, and events of PyTorch with levels, now on the one and now on the other.
    record(&mut records, 5, &numbers(&[0, 0]));
    record(&mut records, 17, &numbers(&[2_000, 0, 1, 2_000, 0, 0, 0, 0]));
    let (count, batches) = (65_536, 20);
    for _ in 0..batches {
        let sites: Vec<u64> = [1_999, 2_000].repeat(count / 2);
        let columns: [Vec<u8>; 6] = [
            vec![0; count],
            vec![],
            numbers(&sites),
            vec![2; count],
            vec![1; count],
            vec![2; count],
        ];
        let mut body = numbers(&[count as u64]);
        columns.iter().for_each(|column| put(&mut body, column.len() as u64));
        body.extend(vec![8 | 1 << 4 | 1 << 7; count]);
        body.extend(columns.concat());
        record(&mut records, 19, &body);
    }
    bomb.block(2 + batches, [0, 0, 1], &records);
    let said = is_bounded("left and come to", &bomb, &[&["lines"]]).concat();
    assert!(said.contains("would take far longer to read than any recording"), "{said}");
}

/// Tens of thousands of threads in each sample, all of them elsewhere in the next one.
#[test]
fn ticks_of_very_many_threads_take_time_by_their_number() {
    let threads = 30_000;
    let mut bomb = Bomb::new();
    let (count, mut records) = Bomb::opening(threads);
    record(&mut records, 5, &numbers(&[0, 0]));
    record(&mut records, 5, &numbers(&[0, 0]));
    bomb.block(count + 2, [1, 1, 2], &records);
    let mut records = Vec::new();
    let ticks = 8;
    for tick in 0..ticks {
        let mut sample = numbers(&[10_000_000, threads]);
        for thread in 0..threads {
            put(&mut sample, if thread == 0 { 0 } else { 2 });
            put(&mut sample, tick % 2);
            sample.push(0);
        }
        record(&mut records, 9, &sample);
        counters(&mut records, 0);
    }
    bomb.block(2 * ticks, [0, 0, 0], &records);
    for words in [&["lines"][..], &["flame", "-f", "collapsed", "-o", "-"], &["report", "-o", "-"]]
    {
        let said = is_bounded("ticks", &bomb, &[words]).concat();
        assert!(!said.contains("damaged"), "{said}");
    }
}

/// Snapshots that keep a million blocks, each a few bytes of the file.
#[test]
fn snapshots_that_keep_very_many_blocks_are_left_out_when_they_are_too_many() {
    let mut bomb = Bomb::new();
    let mut records = Vec::new();
    let blocks: u64 = 1 << 20;
    let mut map = numbers(&[0, 0, 0, 0]);
    put(&mut map, 1 << 2 | 2);
    map.push(0);
    map.extend_from_slice(&numbers(&[1, 1, 0, 0, 0]));
    put(&mut map, blocks << 2 | 2);
    for _ in 0..blocks {
        map.extend_from_slice(&[8, 1]);
    }
    map.extend_from_slice(&[0, 0]);
    record(&mut records, 13, &map);
    let again = 1000;
    for _ in 0..again {
        let mut map = numbers(&[20_000_000, 0, 0, 0]);
        // Keeps the only segment.
        put(&mut map, 1 << 2);
        map.push(0);
        record(&mut records, 13, &map);
    }
    bomb.block(1 + again, [0, 0, 0], &records);
    let said = is_bounded("snapshots", &bomb, &[&["flame", "-o", "-"]]).concat();
    assert!(said.contains("repeated beyond what a recorder writes"), "{said}");
}

/// A report for each of very many conditions that came true.
#[test]
fn conditions_that_come_true_without_end_are_refused() {
    let mut bomb = chain(10_000);
    let mut records = Vec::new();
    let count = 50_000;
    for _ in 0..count {
        // Three seconds later, 'a' came true: 'b'.
        let mut body = numbers(&[6_000_000_000]);
        body.extend_from_slice(b"\x01a\x01b");
        record(&mut records, 24, &body);
    }
    bomb.block(count, [0, 0, 0], &records);
    let said = is_bounded("conditions", &bomb, &[&["oom-report"]]).concat();
    assert!(said.contains("would take far longer to read than any recording"), "{said}");
}

/// Names of 60 MiB, each a few hundred bytes of the file: `tag` 3 for functions, 6 for threads.
fn names(tag: u8, count: u64) -> Bomb {
    let mut bomb = Bomb::new();
    for number in 0..count {
        let text = format!("{number:08}{}", "a".repeat(60 << 20));
        let mut body = Vec::new();
        if tag == 6 {
            body.extend(numbers(&[number, 0, number, 1]));
        }
        put(&mut body, text.len() as u64);
        body.extend_from_slice(text.as_bytes());
        body.extend_from_slice(if tag == 3 { b"\x04f.py\x01\x02" } else { b"\0" });
        let mut records = Vec::new();
        record(&mut records, tag, &body);
        bomb.block(1, [u64::from(tag == 3), 0, 0], &records);
    }
    bomb
}

#[test]
fn names_of_functions_and_threads_count_against_the_same_bound() {
    let commands: [&[&str]; 2] = [&["lines"], &["export", "-f", "json", "-o", "-"]];
    for (tag, name) in [(3, "functions' names"), (6, "threads' names")] {
        is_bounded(name, &names(tag, 8), &commands);
    }
}
