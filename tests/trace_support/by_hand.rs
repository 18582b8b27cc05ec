//! Traces put together byte by byte from the prose, and golden files.

use std::path::Path;

use memspy::model::Record;
use memspy::trace::Reader;

/// CRC-32C bit by bit, from its polynomial.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

/// A block of up to 255 payload bytes, as a zstd frame with one uncompressed block (RFC 8878, 3.1.1).
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

/// Reads the golden file `name` of `tests/data`, which has to give `records`. It is written only where
/// there is none and `MEMSPY_WRITE_GOLDEN` is set.
pub fn reads_as_ever(name: &str, records: &[Record]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("MEMSPY_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, super::write(records)).unwrap();
    }
    let mut copy = Vec::new();
    let summary = Reader::open(path).unwrap().replay(&mut copy).unwrap();
    assert_eq!(copy, records);
    assert!(summary.is_whole());
    assert_eq!(summary.version, 1);
}
