//! Traces assembled byte by byte from the specification, and golden files.

use std::path::Path;

use memspy::model::Record;
use memspy::trace::TraceReader;

/// CRC-32C bit by bit, from its polynomial.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

/// A number in the trace's encoding (bincode).
pub fn put(out: &mut Vec<u8>, value: u64) {
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

/// A block of up to 255 payload bytes, as a zstd frame with one uncompressed block (RFC 8878,
/// 3.1.1).
pub fn block(payload: &[u8]) -> Vec<u8> {
    let size = u8::try_from(payload.len()).unwrap();
    let raw_and_last = (u32::from(size) << 3 | 1).to_le_bytes();
    let mut body = vec![0x28, 0xB5, 0x2F, 0xFD, 0x20, size];
    body.extend_from_slice(&raw_and_last[..3]);
    body.extend_from_slice(payload);
    let mut block = (body.len() as u32).to_le_bytes().to_vec();
    block.extend_from_slice(&crc32c(&body).to_le_bytes());
    block.extend_from_slice(&body);
    block
}

/// A trace of version 1 with a block for each list of records.
pub fn file(payloads: &[&[&[u8]]]) -> Vec<u8> {
    let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
    for records in payloads {
        bytes.extend_from_slice(&block(&records.concat()));
    }
    bytes
}

/// Checks that these bytes, in one block, decode to `expected`.
pub fn reads(records: &[Vec<u8>], expected: &[Record]) {
    let payload: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let (found, summary) = super::read(&file(&[&payload]));
    assert_eq!(found, expected);
    assert_eq!((summary.damaged_places, summary.dropped_records), (0, 0));
}

/// A trace of two blocks; the second starts with `head` and continues at record `at`.
pub fn in_two_blocks(mut records: Vec<Vec<u8>>, at: usize, head: &[u8]) -> Vec<u8> {
    let last = records.split_off(at);
    let first: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let second: Vec<&[u8]> = std::iter::once(head).chain(last.iter().map(Vec::as_slice)).collect();
    file(&[&first, &second])
}

/// What is read from a trace whose first block is damaged.
pub fn without_its_first_block(mut trace: Vec<u8>) -> Vec<Record> {
    trace[30] ^= 1;
    let (records, summary) = super::read(&trace);
    assert_eq!(summary.damaged_places, 1);
    records
}

/// Reads the golden file `name` in `tests/data`, which must give `records`. Writes it only if it
/// does not exist and `MEMSPY_WRITE_GOLDEN` is set.
pub fn reads_as_ever(name: &str, records: &[Record]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("MEMSPY_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, super::write(records)).unwrap();
    }
    let mut copy = Vec::new();
    let summary = TraceReader::open(path).unwrap().replay(&mut copy).unwrap();
    assert_eq!(copy, records);
    assert!(summary.is_whole());
    assert_eq!(summary.version, 1);
}
