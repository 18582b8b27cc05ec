//! Reading takes the same memory however large the file is.

#![cfg(target_os = "linux")]

mod trace_support;

use std::fs;

use memspy::model::{Definition, Function, FunctionId, Record, RecordSink, SinkResult, SourceText};
use memspy::trace::{TraceReader, TraceWriter};
use trace_support::Dice;

const SOURCES: usize = 200;
const LENGTH: usize = 300_000;

struct Forget(u64);

impl RecordSink for Forget {
    fn record(&mut self, _: &Record) -> SinkResult {
        self.0 += 1;
        Ok(())
    }
}

/// Greatest resident size of this process since it was last reset, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn memory_does_not_grow_with_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.trace");
    let mut writer = TraceWriter::create(&path, false).unwrap();
    let function = Function {
        name: "f".into(),
        file: "f.py".into(),
        first_line: 1,
        last_line: 1,
        is_native: false,
    };
    let definition = Definition::Function(FunctionId(0), function);
    writer.record(&Record::Definition(definition)).unwrap();
    let mut dice = Dice(5);
    for _ in 0..SOURCES {
        // Letters that do not compress well.
        let text: String = (0..LENGTH / 8)
            .flat_map(|_| dice.roll(u64::MAX).to_le_bytes())
            .map(|b| char::from(b' ' + b % 94))
            .collect();
        let source = SourceText { function: FunctionId(0), first_line: 1, text: text.into() };
        writer.record(&Record::Source(source)).unwrap();
    }
    let (_, written) = writer.finish().unwrap();
    assert!(written.bytes > 40 << 20, "{written:?}");

    for ahead in [false, true] {
        // Writing 5 resets the peak (proc(5), clear_refs).
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak();
        let mut sink = Forget(0);
        let mut reader = TraceReader::open(&path).unwrap();
        let summary = match ahead {
            true => reader.replay_ahead(&mut sink, &mut |_| {}),
            false => reader.replay(&mut sink),
        }
        .unwrap();
        assert_eq!(summary.records, sink.0);
        let grown = peak() - before;
        println!("{} MiB read, {} MiB taken", written.bytes >> 20, grown >> 20);
        assert!(grown < 20 << 20, "{grown} bytes");
    }
}
