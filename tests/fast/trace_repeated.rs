//! Records repeated many times in a few bytes cost only these bytes' share.

use crate::trace_support::by_hand::{crc32c, put};
use memspy::model::{Record, RecordSink, SinkResult};
use memspy::trace::{ReplaySummary, TraceReader};

/// Cost allowed for any file, and for each of its bytes (src/trace/spending.rs).
const WORK: u64 = 256 << 20;
const WORK_PER_BYTE: u64 = 8192;

/// Counts what it is given.
#[derive(Default)]
struct Counter {
    held: u64,
    snapshots: u64,
    gaps: u64,
}

impl RecordSink for Counter {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.held += record.bytes_held() as u64;
        self.snapshots += u64::from(matches!(record, Record::Snapshot(_)));
        self.gaps += u64::from(matches!(record, Record::Gap(_)));
        Ok(())
    }
}

fn record(payload: &mut Vec<u8>, tag: u8, body: &[u8]) {
    payload.push(tag);
    put(payload, body.len() as u64);
    payload.extend_from_slice(body);
}

fn numbers(values: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| put(&mut out, *value));
    out
}

fn block(bytes: &mut Vec<u8>, number: u64, before: u64, records: &[u8]) {
    let mut payload = Vec::new();
    record(&mut payload, 0, &numbers(&[number, before, 0, 0, 0, 0, 0]));
    payload.extend_from_slice(records);
    let body = zstd::bulk::compress(&payload, 3).unwrap();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
}

fn replay(bytes: &[u8]) -> (Counter, ReplaySummary) {
    let mut counter = Counter::default();
    let summary = TraceReader::from_bytes(bytes).unwrap().replay(&mut counter).unwrap();
    (counter, summary)
}

/// A snapshot of `blocks` blocks, kept `times` times, followed by another block of the file.
fn kept_maps(blocks: u64, times: u64) -> Vec<u8> {
    let mut records = Vec::new();
    let mut map = numbers(&[0, 0, 0, 0]);
    put(&mut map, 1 << 2 | 2);
    map.push(0);
    map.extend_from_slice(&numbers(&[1, 1, 0, 0, 0]));
    put(&mut map, blocks << 2 | 2);
    (0..blocks).for_each(|_| map.extend_from_slice(&[8, 1]));
    map.extend_from_slice(&[0, 0]);
    record(&mut records, 13, &map);
    let keep = numbers(&[2_000_000, 0, 0, 0, 1 << 2, 0]);
    (0..times).for_each(|_| record(&mut records, 13, &keep));
    let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
    block(&mut bytes, 0, 0, &records);
    block(&mut bytes, 1, 1 + times, b"\x1a\x04\x02\x00\x01a");
    bytes
}

#[test]
fn a_repeated_record_costs_its_bytes_share() {
    let times = 1_200_000;
    let bytes = kept_maps(250, times);
    let (counter, summary) = replay(&bytes);
    assert!(bytes.len() < 40_000, "{}", bytes.len());
    assert!(counter.held <= WORK + WORK_PER_BYTE * bytes.len() as u64, "{}", counter.held);
    assert!((10_000..times / 5).contains(&counter.snapshots), "{}", counter.snapshots);
    let why = summary.first_damage.unwrap().why;
    assert_eq!(why, "this part is repeated beyond what a recorder writes");
    assert_eq!((summary.damaged_places, counter.gaps), (1, 1), "the block behind it");
    assert_eq!(summary.records + summary.lost_records, times + 2);
}

#[test]
fn a_snapshot_kept_in_a_fast_recording_is_read() {
    // Ten thousand blocks, a hundred times.
    let (counter, summary) = replay(&kept_maps(10_000, 100));
    assert_eq!((summary.damaged_places, counter.snapshots, counter.gaps), (0, 101, 1));
}

#[test]
fn records_that_nobody_knows_are_bounded_as_well() {
    let mut records = Vec::new();
    let times = 30 << 20;
    (0..times).for_each(|_| records.extend_from_slice(&[200, 0]));
    let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
    block(&mut bytes, 0, 0, &records);
    let (_, summary) = replay(&bytes);
    assert!(summary.unknown_tags < times, "{}", summary.unknown_tags);
    assert_eq!(summary.damaged_places, 1);
}

#[test]
fn definitions_take_their_bytes_share_of_memory_whatever_they_define() {
    // Functions and threads with names of 4 MiB, stacks without end.
    let name = vec![b'a'; 4 << 20];
    let mut function = Vec::new();
    put(&mut function, name.len() as u64);
    function.extend_from_slice(&name);
    function.extend_from_slice(&[0, 1, 2]);
    let mut thread = vec![0, 0, 0, 1];
    put(&mut thread, name.len() as u64);
    thread.extend_from_slice(&name);
    thread.push(0);
    let mut functions = Vec::new();
    (0..15).for_each(|_| record(&mut functions, 3, &function));
    let mut threads = Vec::new();
    (0..15).for_each(|_| record(&mut threads, 6, &thread));
    for (records, name) in [(&functions, "functions"), (&threads, "threads")] {
        let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
        for number in 0..10 {
            let mut payload = Vec::new();
            let functions = if name == "functions" { 15 * number } else { 0 };
            record(&mut payload, 0, &numbers(&[number, 15 * number, 0, 0, functions, 0, 0]));
            payload.extend_from_slice(records);
            let body = zstd::bulk::compress(&payload, 3).unwrap();
            bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
            bytes.extend_from_slice(&body);
        }
        let (counter, summary) = replay(&bytes);
        let most = (128 << 20) + 192 * bytes.len() as u64;
        assert!(counter.held <= most, "{name}: {} MiB", counter.held >> 20);
        assert!(summary.records >= 30, "{name}: {}", summary.records);
        let why = summary.first_damage.unwrap().why;
        assert!(why.contains("take more memory than those of any recording"), "{why}");
    }
}
