//! Recordings for a flight recorder, what it keeps of them, and that read again.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::path::Path;

use memspy::analysis::{Profile, ThreadChoice};
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::{Nanos, Record, RecordSink};
use memspy::trace::{Retention, TraceReader};

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use crate::trace_support::{Dice, spelled_out};

/// Lets a flight recorder keep the end of a recording; gives what it wrote, and the segments begun
/// and most bytes.
pub fn kept(records: &[Record], keep: Retention) -> (Vec<Record>, (u64, u64)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.bin");
    let mut flight =
        RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default()).unwrap();
    for record in records {
        flight.record(record).unwrap();
    }
    let written = flight.write(None, &mut |_| {}).unwrap();
    let (most, begun) = flight.size();
    flight.finish().unwrap();
    assert_eq!(written.path, path);
    assert!(!path.with_extension("ring").exists(), "the segments are gone");
    (read(&path), (begun, most))
}

pub fn read(path: &Path) -> Vec<Record> {
    let mut records = Vec::new();
    let summary = TraceReader::open(path).unwrap().replay(&mut records).unwrap();
    assert!(summary.first_damage.is_none() && summary.dropped_records == 0, "{summary:?}");
    records
}

pub fn profile(records: &[Record]) -> Profile {
    let mut profile = Profile::new();
    for record in records {
        profile.record(record).unwrap();
    }
    profile.finish();
    profile
}

/// What happens from the inheritance on, spelled out, without definitions.
pub fn spelled(records: &[Record], from: Nanos) -> Vec<String> {
    let begins = |record: &Record| match record {
        Record::Sample(sample) => sample.time == from,
        Record::Events(batch) => batch.events[0].time == from,
        Record::Usage(usage) => usage.time == from,
        _ => false,
    };
    let at = match records.iter().position(|r| matches!(r, Record::Keyframe(_))) {
        Some(at) => at + 1,
        None => records.iter().position(begins).unwrap(),
    };
    let texts = spelled_out(records).into_iter().zip(records).skip(at);
    texts
        .filter(|(_, r)| !matches!(r, Record::Definition(_) | Record::Source(_) | Record::End(_)))
        .map(|(text, _)| text)
        .collect()
}

/// A round of allocations in so many nanoseconds: as training does it, and as fast as a machine
/// can.
pub const SLOW: u64 = 20_000_000;
pub const FAST: u64 = 50_000;

/// Random allocations, every one seen by probes; a round of them takes `lasting` nanoseconds.
pub fn probed(seed: u64, rounds: u64, lasting: u64) -> Probed {
    let mut s = Probed::new();
    let mut dice = Dice(seed);
    s.enter(0, "main", 1);
    s.malloc(0, 0, 7 * MIB);
    s.begin();
    s.enter(0, "make_weights", 10);
    for line in 11..15 {
        s.line(0, line);
        s.malloc(0, 0, 2 * MIB + u64::from(line) * 512);
    }
    s.leave(0);
    let mut live = Vec::new();
    for round in 0..rounds {
        s.line(0, 2 + (round % 5) as u32);
        s.enter(0, "work", 20 + dice.roll(9) as u32);
        for _ in 0..dice.roll(20) {
            // Blocks with a remainder that is not split off: their size follows from the counters
            // only.
            let size = 1 + dice.roll(4 * MIB);
            s.unsplit = if size > MIB { dice.roll(3) * 300 * 512 } else { 0 };
            live.push(s.malloc(0, 0, size));
        }
        s.leave(0);
        while live.len() > 30 {
            let at = dice.roll(live.len() as u64) as usize;
            s.release(0, live.swap_remove(at));
        }
        s.now += lasting;
        if round % 50 == 49 {
            s.poll();
        } else {
            s.flush();
        }
    }
    s.finish();
    s
}
