//! A file with blocks of two recordings, or with records missing inside a block, is reported as
//! damaged.

use std::collections::HashSet;

use crate::trace_support::by_hand::file;
use crate::trace_support::{Loop, blocks_of, borders, read, spelled_out};
use memspy::trace::TraceReader;

/// A trace cut between its blocks; the first piece is the file's head.
fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    let borders = borders(bytes);
    let blocks = borders.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
    std::iter::once(&bytes[..borders[0]]).chain(blocks).collect()
}

#[test]
fn blocks_of_another_recording_are_damage_despite_fitting_numbers() {
    // The same records written twice: two recordings that differ in nothing else.
    let records = Loop::story(21, 300);
    let (own, other) = (blocks_of(&records, 40), blocks_of(&records, 40));
    let (own, other) = (pieces(&own), pieces(&other));
    assert!(own.len() == other.len() && own.len() > 5);
    let (whole, summary) = read(&own.concat());
    assert!(summary.is_whole() && whole == records);
    for at in 2..own.len() {
        let one = [&own[..at], &other[at..=at], &own[at + 1..]].concat().concat();
        let rest = [&own[..at], &other[at..]].concat().concat();
        let after = [&own[..=at], &other[at..]].concat().concat();
        let mut mixtures = vec![(one, "one"), (rest, "the rest")];
        // The last block closes the file: nothing is read after it.
        mixtures.extend((at + 1 < own.len()).then_some((after, "one that is twice")));
        for (mixture, name) in mixtures {
            let (copy, summary) = read(&mixture);
            assert!(summary.damaged_places > 0 && !summary.is_whole(), "{name} at {at}");
            let why = summary.first_damage.unwrap().why;
            assert!(why.contains("another recording"), "{name} at {at}: {why}");
            let written: HashSet<String> = spelled_out(&records).into_iter().collect();
            assert!(spelled_out(&copy).iter().all(|record| written.contains(record)));
            assert!(copy.len() < records.len(), "{name} at {at}");
        }
    }
}

#[test]
fn a_trace_without_a_recording_number_reads_unchanged() {
    let gap = b"\x1a\x04\x02\x00\x01a";
    let heads = [&[0, 7, 0, 0, 0, 0, 0, 0, 0][..], &[0, 7, 1, 1, 0, 0, 0, 0, 0]];
    let (records, summary) = read(&file(&[&[heads[0], gap], &[heads[1], gap]]));
    assert_eq!((records.len(), summary.damaged_places, summary.blocks), (2, 0, 2));
    // A block with a number is of another recording than one without.
    let numbered = [0, 8, 1, 1, 0, 0, 0, 0, 0, 77];
    let (records, summary) = read(&file(&[&[heads[0], gap], &[&numbered, gap]]));
    assert_eq!((records.len(), summary.damaged_places), (1, 1));
}

#[test]
fn records_that_are_missing_by_their_numbers_are_told() {
    let gap = b"\x1a\x04\x02\x00\x01a";
    let heads = [&[0, 7, 0, 0, 0, 0, 0, 0, 0][..], &[0, 7, 1, 4, 0, 0, 0, 0, 0]];
    let bytes = file(&[&[heads[0], gap], &[heads[1], gap]]);
    let (records, summary) = read(&bytes);
    assert_eq!((records.len(), summary.blocks, summary.lost_blocks), (2, 2, 0));
    assert_eq!((summary.damaged_places, summary.lost_records), (1, 3));
    assert!(summary.first_damage.unwrap().why.contains("records are missing"));
    assert_eq!(TraceReader::from_bytes(&bytes).unwrap().version(), 1);
}
