//! Edits of bytes, and of traces whose checksums and lengths are mended afterwards, so that what is
//! behind them is reached.

use memspy::trace::TraceReader;

use super::campaign::Random;
use crate::trace_support::blocks_of;
use crate::trace_support::by_hand::put;
use crate::trace_support::numbers::{Number, numbers};

/// What a trace begins with: its name and its version.
const HEAD: usize = 10;

/// Flips bits, overwrites, cuts, removes and repeats ranges.
pub fn edit_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.few(8) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let end = at + random.few(64).min(bytes.len() - at);
        match random.below(8) {
            0..=2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at] = random.edge() as u8,
            4 => {
                let word = random.edge().to_le_bytes();
                let width = *random.pick(&[2, 4, 8]);
                for (byte, new) in bytes[at..].iter_mut().zip(&word[..width]) {
                    *byte = *new;
                }
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..end)),
            _ => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
        }
    }
}

/// The number at `at`, and how many bytes it takes.
fn number(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let width = match *bytes.get(at)? {
        251 => 2,
        252 => 4,
        253 => 8,
        small => return (small <= 250).then_some((u64::from(small), 1)),
    };
    let mut word = [0; 8];
    word[..width].copy_from_slice(bytes.get(at + 1..at + 1 + width)?);
    Some((u64::from_le_bytes(word), 1 + width))
}

/// A record: its tag and its fields.
type TaggedFields = (u8, Vec<u8>);

/// The records of each block.
fn unpack(trace: &[u8]) -> Vec<Vec<TaggedFields>> {
    let mut blocks = Vec::new();
    let mut at = HEAD;
    while let Some(length) = trace.get(at..at + 4) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let payload = zstd::bulk::decompress(&trace[at + 8..at + 8 + length], 1 << 26).unwrap();
        let (mut records, mut next) = (Vec::new(), 0);
        while next < payload.len() {
            let (length, width) = number(&payload, next + 1).unwrap();
            let fields = next + 1 + width;
            records.push((payload[next], payload[fields..fields + length as usize].to_vec()));
            next = fields + length as usize;
        }
        blocks.push(records);
        at += 8 + length;
    }
    blocks
}

/// A block with the payload given, whose length and checksum hold.
fn push_block(out: &mut Vec<u8>, payload: &[u8]) {
    let body = zstd::bulk::compress(payload, 1).unwrap();
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
}

fn edit_fields(fields: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.few(4) {
        let at = random.below(fields.len() + 1);
        match random.below(8) {
            // A number becomes another one, of whatever length.
            0..=3 => {
                let width = number(fields, at).map_or(0, |(_, width)| width);
                let mut new = Vec::new();
                let before = number(fields, at).map_or(0, |(value, _)| value);
                let value = match random.below(3) {
                    0 => before.wrapping_add(random.edge()),
                    1 => before ^ 1 << random.below(64),
                    _ => random.edge(),
                };
                put(&mut new, value);
                fields.splice(at..at + width, new);
            }
            4 => edit_bytes(fields, random),
            5 => fields.truncate(at),
            6 => fields.push(random.edge() as u8),
            _ => {
                let end = at + random.few(32).min(fields.len() - at);
                let copy = fields[at..end].to_vec();
                fields.splice(at..at, copy);
            }
        }
    }
}

/// Edits some records of a trace, and writes it again with sums and lengths that hold.
pub fn edit_records(trace: &[u8], random: &mut Random) -> Vec<u8> {
    let mut blocks = unpack(trace);
    // Any recording may be one without records.
    if blocks.is_empty() {
        return trace.to_vec();
    }
    let edits = random.few(12);
    for _ in 0..edits {
        let count = blocks.len();
        let other = random.below(count);
        let block = random.below(count);
        let records = blocks[block].len();
        if records == 0 {
            continue;
        }
        let at = random.below(records);
        match random.below(16) {
            0..=8 => edit_fields(&mut blocks[block][at].1, random),
            9 => blocks[block][at].0 = random.below(30) as u8,
            10 => drop(blocks[block].remove(at)),
            11 => {
                let copy = blocks[block][at].clone();
                // Now and then as often as a few bytes of a file can stand for.
                let times = match random.below(16) {
                    0 => (8 << 20) / (copy.1.len() + 16),
                    _ => random.few(200),
                };
                blocks[block].splice(at..at, std::iter::repeat_n(copy, times));
            }
            12 => blocks[block].swap(at, random.below(records)),
            13 => {
                let moved = blocks[block].remove(at);
                let to = random.below(blocks[other].len() + 1);
                blocks[other].insert(to, moved);
            }
            14 => blocks.swap(block, other),
            _ => {
                let copy = blocks[block].clone();
                blocks.insert(other, copy);
            }
        }
    }
    let mut out = trace[..HEAD].to_vec();
    for records in &blocks {
        let mut payload = Vec::new();
        for (tag, fields) in records {
            payload.push(*tag);
            put(&mut payload, fields.len() as u64);
            payload.extend_from_slice(fields);
        }
        // Lengths that do not hold.
        if random.below(40) == 0 {
            edit_bytes(&mut payload, random);
        }
        push_block(&mut out, &payload);
    }
    out
}

/// A number beyond all that there is or, as often, the greatest that a reader takes.
fn forge(number: Number<'_>, random: &mut Random) {
    let (beyond, sign) = (random.below(2) == 0, [1, -1][random.below(2)]);
    let mut new = |bits: u32| match beyond {
        true => random.edge(),
        false => (1 << bits) - random.word() % 9,
    };
    match number {
        Number::Time(n) => *n = new(60),
        Number::Size(n) => *n = new(50),
        Number::SignedSize(n) => *n = (new(50) as i64).wrapping_mul(sign),
        Number::Total(n) => *n = new(61),
        Number::SignedTotal(n) => *n = (new(61) as i64).wrapping_mul(sign),
        Number::Address(n) | Number::Any(n) => *n = random.edge(),
        Number::AnySigned(n) => *n = random.edge() as i64,
        Number::Line(n) => *n = new(31) as u32,
    }
}

/// Sizes, counts and times of some records become others, in a trace that is sound else.
pub fn edit_numbers(trace: &[u8], random: &mut Random) -> Vec<u8> {
    let mut records = Vec::new();
    TraceReader::from_bytes(trace).unwrap().replay(&mut records).unwrap();
    if records.is_empty() {
        return trace.to_vec();
    }
    for _ in 0..random.few(30) {
        let record = random.below(records.len());
        let record = &mut records[record];
        let mut count = 0;
        numbers(record, &mut |_| count += 1);
        // One of them, or many: so that they meet in a sum.
        let (chosen, all) = (random.below(count), random.below(4) == 0);
        let mut n = 0;
        numbers(record, &mut |number| {
            if n == chosen || all && random.below(2) == 0 {
                forge(number, random);
            }
            n += 1;
        });
    }
    let each = random.few(200);
    blocks_of(&records, each)
}

/// The blocks of a trace, as they stand in the file.
fn blocks(trace: &[u8]) -> Vec<&[u8]> {
    let (mut blocks, mut rest) = (Vec::new(), &trace[HEAD..]);
    while let Some(length) = rest.first_chunk() {
        let (block, behind) = rest.split_at(8 + u32::from_le_bytes(*length) as usize);
        blocks.push(block);
        rest = behind;
    }
    blocks
}

/// A trace of two recordings: some blocks of `own` become those of `other`. `None` where none of
/// one of them would be left.
pub fn mix(own: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (mut mixed, theirs) = (blocks(own), blocks(other));
    if mixed.len() < 2 || theirs.is_empty() {
        return None;
    }
    for _ in 0..random.few(4) {
        // The first stays: by it a file is known.
        let at = 1 + random.below(mixed.len() - 1);
        let end = at + random.below(mixed.len() - at + 1);
        let from = random.below(theirs.len());
        let to = from + 1 + random.below(theirs.len() - from);
        mixed.splice(at..end, theirs[from..to].iter().copied());
    }
    Some([&[&own[..HEAD]], &mixed[..]].concat().concat())
}

/// A trace with edits of one kind or the other.
pub fn edit_trace(trace: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 => {
            let mut bytes = trace.to_vec();
            edit_bytes(&mut bytes, random);
            bytes
        }
        1 | 2 => edit_numbers(trace, random),
        _ => edit_records(trace, random),
    }
}
