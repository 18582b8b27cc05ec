//! A damaged trace (cut, flipped, overwritten) gives its whole parts and reports the rest.

use std::collections::HashSet;
use std::io::{self, Write};

use crate::trace_support::allocations::{Allocations, Likeness};
use crate::trace_support::{Loop, blocks_of, borders, read, spelled_out, write};
use memspy::model::{Record, RecordSink, SinkError};
use memspy::trace::{TraceReader, TraceWriter};

#[test]
fn cut_anywhere_it_gives_the_records_of_whole_blocks() {
    cut_everywhere(&Loop::story(10, 150), 40);
    cut_everywhere(&Allocations::story(Likeness::Training, 10, 20, 30), 8);
}

fn cut_everywhere(records: &[Record], each: usize) {
    let bytes = blocks_of(records, each);
    let borders = borders(&bytes);
    let whole: Vec<usize> = borders.iter().map(|&b| read(&bytes[..b]).0.len()).collect();
    assert_eq!(whole.last(), Some(&records.len()));
    for cut in 0..bytes.len() {
        if cut < 10 {
            assert!(TraceReader::from_bytes(&bytes[..cut]).is_err());
            continue;
        }
        let (copy, summary) = read(&bytes[..cut]);
        let block = borders.partition_point(|&b| b <= cut) - 1;
        assert_eq!(copy.len(), whole[block], "cut at {cut}");
        assert_eq!(copy, records[..whole[block]]);
        assert!(!summary.complete && summary.end.is_none());
        assert_eq!(summary.unfinished_bytes, (cut - borders[block]) as u64);
        assert_eq!((summary.damaged_places, summary.blocks), (0, block as u64));
    }
}

#[test]
fn with_a_flipped_bit_it_gives_only_written_records() {
    let records = Loop::story(11, 45);
    let bytes = blocks_of(&records, 40);
    let written: HashSet<String> = spelled_out(&records).into_iter().collect();
    let mut bad = bytes.clone();
    let mut checked = Vec::new();
    for bit in 0..bytes.len() * 8 {
        bad[bit / 8] ^= 1 << (bit % 8);
        if bit >= 80 {
            let (copy, summary) = read(&bad);
            if copy != checked {
                for record in spelled_out(&copy) {
                    assert!(written.contains(&record), "bit {bit}: {record}");
                }
                checked.clone_from(&copy);
            }
            assert!(!summary.is_whole(), "bit {bit}");
            assert!(copy.len() < records.len(), "bit {bit}");
            let offset = summary.first_damage.as_ref().map(|d| d.offset);
            assert!(
                offset.is_some_and(|o| o <= bit as u64 / 8) || summary.unfinished_bytes > 0,
                "bit {bit}: {summary:?}"
            );
            let last = summary.blocks as usize + summary.lost_blocks as usize;
            assert!(last + 1 >= borders(&bytes).len() - 1, "bit {bit}: {summary:?}");
        } else {
            assert!(TraceReader::from_bytes(&bad).is_err(), "bit {bit}");
        }
        bad[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn after_a_damaged_block_only_its_dependents_are_left_out() {
    let records = Loop::story(12, 400);
    let bytes = blocks_of(&records, 100);
    let borders = borders(&bytes);
    let all = spelled_out(&records);
    for (block, &at) in borders[..borders.len() - 1].iter().enumerate() {
        let mut bad = bytes.clone();
        bad[at + 20] ^= 0x10;
        let (copy, summary) = read(&bad);
        let spelled = spelled_out(&copy);
        assert_eq!(summary.damaged_places, 1);
        assert_eq!(summary.first_damage.as_ref().map(|d| d.offset), Some(at as u64));
        if block + 2 == borders.len() {
            assert!(!summary.complete, "the trailer is lost");
            continue;
        }
        assert!(summary.complete);
        assert_eq!(summary.lost_blocks, 1);
        assert_eq!(
            summary.records + summary.lost_records + summary.dropped_records,
            records.len() as u64
        );
        // The rest is in the order written.
        let mut rest = all.iter();
        for record in &spelled {
            assert!(rest.any(|r| r == record), "block {block}: {record}");
        }
        if block == 0 {
            assert!(summary.dropped_records > 0, "samples without definitions");
        }
    }
}

#[test]
fn a_wrong_length_does_not_hide_the_blocks_after_it() {
    let records = Loop::story(13, 300);
    let bytes = blocks_of(&records, 80);
    let borders = borders(&bytes);
    for (block, &at) in borders[..borders.len() - 2].iter().enumerate() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        for wrong in [0, 1, 8, length - 1, length + 1, length * 2, 1 << 26, u32::MAX] {
            let mut bad = bytes.clone();
            bad[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            let (_, summary) = read(&bad);
            assert!(summary.complete, "block {block}, length {wrong}: {summary:?}");
            assert_eq!((summary.damaged_places, summary.lost_blocks), (1, 1));
        }
    }
}

#[test]
fn inserted_removed_and_swapped_stretches_are_seen() {
    let records = Loop::story(14, 300);
    let bytes = blocks_of(&records, 80);
    let b = borders(&bytes);
    let written: HashSet<String> = spelled_out(&records).into_iter().collect();
    let part = |from: usize, to: usize| bytes[from..to].to_vec();
    let edits = [
        // A block removed.
        [part(0, b[2]), part(b[3], bytes.len())].concat(),
        // A block twice.
        [part(0, b[3]), part(b[2], bytes.len())].concat(),
        // Two blocks swapped.
        [part(0, b[2]), part(b[3], b[4]), part(b[2], b[3]), part(b[4], bytes.len())].concat(),
        // Zeros between two blocks, as a lost disk page leaves.
        [part(0, b[2]), vec![0; 4096], part(b[2], bytes.len())].concat(),
        // A range across blocks removed.
        [part(0, b[2] + 30), part(b[4] + 30, bytes.len())].concat(),
    ];
    for (n, bad) in edits.iter().enumerate() {
        let (copy, summary) = read(bad);
        assert!(summary.complete, "edit {n}");
        assert!(summary.damaged_places >= 1, "edit {n}: {summary:?}");
        assert!(!summary.is_whole());
        for record in spelled_out(&copy) {
            assert!(written.contains(&record), "edit {n}: {record}");
        }
    }
}

#[test]
fn trailing_zeros_are_damage_and_bytes_after_the_trailer_counted() {
    let bytes = write(&Loop::story(15, 300));
    let last = borders(&bytes)[borders(&bytes).len() - 2];
    let (_, summary) = read(&[&bytes[..last], &[0; 500]].concat());
    assert_eq!(summary.damaged_places, 1);
    assert!(!summary.complete);
    let (_, summary) = read(&[&bytes[..], b"more"].concat());
    assert!(summary.complete);
    assert_eq!(summary.unfinished_bytes, 4);
}

#[test]
fn random_rubbish_after_the_head_is_survived() {
    let mut dice = crate::trace_support::Dice(16);
    for _ in 0..300 {
        let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
        let signs = dice.roll(2) == 0;
        for _ in 0..dice.roll(3000) {
            match signs && dice.roll(20) == 0 {
                true => bytes.extend_from_slice(&[0x28, 0xB5, 0x2F, 0xFD]),
                false => bytes.push(dice.roll(256) as u8),
            }
        }
        let (copy, summary) = read(&bytes);
        assert!(copy.is_empty() && !summary.complete);
    }
}

/// A disk with this much room.
struct Disk<'a> {
    held: &'a mut Vec<u8>,
    room: usize,
}

impl Write for Disk<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.room - self.held.len());
        self.held.extend_from_slice(&bytes[..fits]);
        match fits {
            0 => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(fits),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_and_leaves_a_readable_trace() {
    let records = Loop::story(17, 800);
    let size = write(&records).len();
    for room in (0..size).step_by(97) {
        let mut held = Vec::new();
        let disk = Disk { held: &mut held, room };
        let failed: SinkError = match TraceWriter::new(disk) {
            Err(error) => error.into(),
            Ok(mut writer) => {
                let first = records.iter().find_map(|r| writer.record(r).err());
                let first = first.unwrap_or_else(|| writer.flush().unwrap_err().into());
                // The error stays.
                let again = writer.record(&records[0]).unwrap_err();
                assert_eq!(again.io().unwrap().kind(), io::ErrorKind::StorageFull);
                assert!(writer.finish().is_err());
                first
            }
        };
        assert_eq!(failed.io().unwrap().kind(), io::ErrorKind::StorageFull);
        assert_eq!(held.len(), room);
        if room >= 10 {
            let (copy, summary) = read(&held);
            assert_eq!(copy, records[..copy.len()]);
            assert!(!summary.complete && summary.damaged_places == 0);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_systems_full_device_is_reported() {
    let error = TraceWriter::create("/dev/full", false).err().unwrap();
    assert!(error.to_string().contains("/dev/full"), "{error}");
}

#[test]
fn the_search_in_a_file_of_false_starts_ends() {
    // Each has a possible length and a wrong checksum: checking all costs the square of the file's
    // size.
    let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
    let signs = 40_000u32;
    for n in 0..signs {
        bytes.extend_from_slice(&((signs - n) * 11).to_le_bytes());
        bytes.extend_from_slice(&[1, 2, 3, 4, 0x28, 0xB5, 0x2F, 0xFD]);
    }
    let (copy, summary) = read(&bytes);
    assert!(copy.is_empty());
    // The first false start, and the end of the search.
    assert_eq!(summary.damaged_places, 2, "{summary:?}");
}
