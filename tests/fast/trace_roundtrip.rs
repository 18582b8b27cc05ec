//! Written records are read back: every kind, any number of blocks.

use std::ops::ControlFlow;

use crate::trace_support::{Loop, any_record::recording, borders, read, write};
use memspy::model::{Record, RecordSink, SinkResult};
use memspy::trace::{ReadError, RejectedRecord, TraceReader, TraceWriter};
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_recording_reads_back(records in recording(), flushes in proptest::collection::vec(any::<bool>(), 60)) {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        for (record, flush) in records.iter().zip(flushes.iter().cycle()) {
            writer.record(record).unwrap();
            if *flush {
                writer.flush().unwrap();
            }
        }
        let (bytes, written) = writer.finish().unwrap();
        prop_assert_eq!(written.bytes, bytes.len() as u64);
        let (copy, summary) = read(&bytes);
        prop_assert_eq!(&copy, &records);
        prop_assert_eq!(summary.records, records.len() as u64);
        prop_assert_eq!(summary.blocks, written.blocks);
        prop_assert_eq!(summary.bytes, written.bytes);
        prop_assert_eq!(summary.complete, matches!(records.last(), Some(Record::End(_))));
        prop_assert_eq!(summary.is_whole(), summary.complete);
        prop_assert_eq!(summary.unfinished_bytes, 0);
    }
}

#[test]
fn a_long_recording_reads_back_from_a_file() {
    let records = Loop::story(1, 3000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trace");
    let mut writer = TraceWriter::create(&path, false).unwrap();
    for record in &records {
        writer.record(record).unwrap();
    }
    let (_, written) = writer.finish().unwrap();
    assert_eq!(written.records, records.len() as u64);
    assert_eq!(written.bytes, std::fs::metadata(&path).unwrap().len());
    assert!((15..40).contains(&written.blocks), "15 s: {written:?}");

    let mut reader = TraceReader::open(&path).unwrap();
    for _ in 0..2 {
        let mut copy = Vec::new();
        let mut seen = Vec::new();
        let summary = reader
            .replay_with(&mut copy, &mut |progress| {
                seen.push(progress.bytes);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(copy, records);
        assert!(summary.is_whole());
        assert_eq!(seen.len() as u64, written.blocks);
        assert!(seen.is_sorted());
        assert_eq!(seen.last(), Some(&written.bytes));
    }
}

#[test]
fn a_caller_may_stop_after_any_block() {
    let bytes = write(&Loop::story(2, 1000));
    let mut records = Vec::new();
    let summary = TraceReader::from_bytes(&bytes)
        .unwrap()
        .replay_with(&mut records, &mut |_| ControlFlow::Break(()))
        .unwrap();
    assert!(summary.stopped && !summary.complete);
    assert_eq!(summary.blocks, 1);
    assert!(matches!(records[0], Record::Start(_)));
}

#[test]
fn what_the_sink_says_reaches_the_caller() {
    struct Full;
    impl RecordSink for Full {
        fn record(&mut self, _: &Record) -> SinkResult {
            Err(std::io::Error::other("no more").into())
        }
    }
    let bytes = write(&Loop::story(2, 10));
    match TraceReader::from_bytes(&bytes).unwrap().replay(&mut Full) {
        Err(ReadError::Sink { source }) => assert_eq!(source.to_string(), "no more"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_written_at_least_once_a_second() {
    let mut records = Vec::new();
    let mut it = Loop::new(3);
    it.opening(&mut records);
    it.define(1, 1, &mut records);
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for record in &records {
        writer.record(record).unwrap();
    }
    for _ in 0..1000 {
        writer.record(&it.sample(false)).unwrap();
    }
    let (bytes, written) = writer.finish().unwrap();
    assert!((5..=7).contains(&written.blocks), "{written:?}");
    assert_eq!(borders(&bytes).len() as u64, written.blocks + 1);
}

#[test]
fn an_unreadable_record_is_refused_and_earlier_ones_are_kept() {
    let mut records = Vec::new();
    let mut it = Loop::new(4);
    it.opening(&mut records);
    it.define(2, 2, &mut records);
    let good = records.clone();
    let undefined = {
        let mut other = Loop::new(4);
        other.define(5, 2, &mut Vec::new());
        let Record::Sample(mut sample) = other.sample(false) else { unreachable!() };
        sample.threads[0].stack.0 = 1000;
        Record::Sample(sample)
    };
    for bad in [records[5].clone(), undefined] {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        for record in &good {
            writer.record(record).unwrap();
        }
        let error = writer.record(&bad).unwrap_err();
        let error = error.io().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.get_ref().is_some_and(|e| e.downcast_ref::<RejectedRecord>().is_some()));
        assert!(writer.record(&good[0]).is_err(), "it stays failed");
        assert!(writer.finish().is_err(), "and says so at the end");
    }
}

#[test]
fn nothing_follows_the_end() {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    let records = Loop::story(5, 3);
    for record in &records {
        writer.record(record).unwrap();
    }
    let error = writer.record(&records[0]).unwrap_err();
    assert!(error.to_string().contains("end"), "{error}");
}
