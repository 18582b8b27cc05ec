//! Reading on a thread gives the same records, errors and damage as reading on the caller's.

use std::ops::ControlFlow;

use memspy::model::{
    DriverEvent, Event, EventBatch, EventKind, Nanos, Record, RecordSink, SinkResult,
};
use memspy::trace::{ReadError, ReplaySummary, TraceReader};

use crate::trace_support::allocations::{Allocations, Likeness};
use crate::trace_support::{Dice, Loop, blocks_of, write};

/// A result as text: errors have no equality.
fn outcome(read: Result<ReplaySummary, ReadError>) -> String {
    match read {
        Ok(summary) => format!("{summary:?}"),
        Err(error) => format!("error: {error}"),
    }
}

/// Reads `bytes` in both ways into a sink that takes `most` records.
fn both(bytes: &[u8], most: usize) -> [(Vec<Record>, String); 2] {
    [false, true].map(|ahead| {
        let mut sink = Limited { records: Vec::new(), most };
        let mut reader = TraceReader::from_bytes(bytes).unwrap();
        let read = match ahead {
            true => reader.replay_ahead(&mut sink, &mut |_| {}),
            false => reader.replay_with(&mut sink, &mut |_| ControlFlow::Continue(())),
        };
        (sink.records, outcome(read))
    })
}

/// Takes this many records.
struct Limited {
    records: Vec<Record>,
    most: usize,
}

impl RecordSink for Limited {
    fn record(&mut self, record: &Record) -> SinkResult {
        if self.records.len() == self.most {
            return Err(std::io::Error::other(format!("no more than {}", self.most)).into());
        }
        self.records.record(record)
    }
}

/// A batch of `count` events.
fn events(count: usize, time: u64) -> Record {
    let change = EventKind::Marked(DriverEvent::ModuleLoaded);
    Record::Events(EventBatch {
        events: vec![Event { time: Nanos(time), change, site: None }; count],
    })
}

#[test]
fn whole_and_damaged_traces_come_out_as_on_one_thread() {
    let mut dice = Dice(3);
    let stories = [
        blocks_of(&Loop::story(10, 150), 40),
        blocks_of(&Allocations::story(Likeness::Varied, 10, 20, 30), 8),
    ];
    for bytes in &stories {
        let [here, ahead] = both(bytes, usize::MAX);
        assert_eq!(here, ahead);
        assert!(here.1.contains("first_damage: None, unfinished_bytes: 0"), "{}", here.1);
        let mut outcomes = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let mut bad = bytes.clone();
            for _ in 0..=dice.roll(3) {
                let at = 10 + dice.roll(bad.len() as u64 - 10) as usize;
                match dice.roll(3) {
                    0 => bad.truncate(at.max(12)),
                    1 => bad[at] ^= 1 << dice.roll(8),
                    _ => drop(bad.drain(at..(at + 40).min(bytes.len()).min(bad.len()))),
                }
            }
            let [here, ahead] = both(&bad, usize::MAX);
            assert_eq!(here, ahead);
            outcomes.insert(here.1);
        }
        assert!(outcomes.len() > 100, "{}", outcomes.len());
    }
}

#[test]
fn a_sinks_error_ends_it_at_the_same_record() {
    let records: Vec<Record> = (0..60).map(|n| events(2_000, n)).collect();
    let mut bytes = blocks_of(&records, 7);
    // Damage after the last taken record is not reported.
    let last = bytes.len() - 30;
    bytes[last] ^= 1;
    for most in [0, 1, 6, 7, 8, 50] {
        let [here, ahead] = both(&bytes, most);
        assert_eq!((here.0.len(), here.1.contains("no more than")), (most, true), "{}", here.1);
        assert_eq!(here, ahead, "{most}");
    }
}

#[test]
fn a_record_too_large_to_queue_is_given_like_any() {
    let mut records: Vec<Record> = (0..6).map(|n| events(1 << 16, n)).collect();
    records.insert(3, events(1, 2));
    assert!(records[0].bytes_held() > 4 << 20, "{}", records[0].bytes_held());
    let [here, ahead] = both(&write(&records), usize::MAX);
    assert_eq!(ahead.0, records);
    assert_eq!(here, ahead);
    let [here, ahead] = both(&write(&records), 4);
    assert_eq!((here.0.len(), &here), (4, &ahead));
}

#[test]
fn progress_comes_to_the_end_of_the_file() {
    let bytes = blocks_of(&(0..80).map(|n| events(3_000, n)).collect::<Vec<_>>(), 10);
    let mut seen = Vec::new();
    let mut reader = TraceReader::from_bytes(&bytes).unwrap();
    reader.replay_ahead(&mut Vec::new(), &mut |progress| seen.push(progress.bytes)).unwrap();
    assert!(seen.len() > 5 && seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&(bytes.len() as u64)));
}

#[test]
fn a_file_that_shrinks_while_it_is_read_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shrinks.trace");
    let records: Vec<Record> = (0..100).map(|n| events(4_000, n)).collect();
    let bytes = blocks_of(&records, 4);
    std::fs::write(&path, &bytes).unwrap();
    /// Cuts the file at its first record.
    struct Cutting<'a>(&'a std::path::Path, u64);
    impl RecordSink for Cutting<'_> {
        fn record(&mut self, _: &Record) -> SinkResult {
            if self.1 == 0 {
                std::fs::File::options().write(true).open(self.0)?.set_len(100)?;
            }
            self.1 += 1;
            Ok(())
        }
    }
    let mut sink = Cutting(&path, 0);
    let mut reader = TraceReader::open(&path).unwrap();
    match reader.replay_ahead(&mut sink, &mut |_| {}) {
        Err(ReadError::Shrunk { bytes: 100, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(sink.1 > 0 && sink.1 < 100, "{}", sink.1);
}

#[test]
fn a_sinks_panic_is_passed_on_and_leaves_no_thread() {
    struct Panicking;
    impl RecordSink for Panicking {
        fn record(&mut self, _: &Record) -> SinkResult {
            panic!("of the sink");
        }
    }
    let bytes = write(&(0..100).map(|n| events(4_000, n)).collect::<Vec<_>>());
    let mut reader = TraceReader::from_bytes(&bytes).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        reader.replay_ahead(&mut Panicking, &mut |_| {})
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"of the sink"));
}
