//! Out-of-memory errors are written as specified.

use crate::trace_support::by_hand::{in_two_blocks, reads, reads_as_ever, without_its_first_block};
use crate::trace_support::{read, write};
use memspy::model::{
    Definition, EndReason, Frame, FrameId, Function, FunctionId, Nanos, OomException, RaisedError,
    Record, RecordingEnd, RecordingTotals, StackId, StackNode, Thread, ThreadId,
};
use memspy::trace::{DefinitionTables, Renumberer};

fn definitions() -> Vec<Record> {
    let function = Function {
        name: "f".into(),
        file: "a.py".into(),
        first_line: 3,
        last_line: 9,
        is_native: false,
    };
    [
        Definition::Function(FunctionId(0), function),
        Definition::Frame(FrameId(0), Frame { function: FunctionId(0), line: 4 }),
        Definition::Stack(StackId(0), StackNode { parent: None, frame: FrameId(0), module: None }),
        Definition::Thread(
            ThreadId(0),
            Thread { os_id: Some(42), python_id: 7, name: None, main: true },
        ),
    ]
    .map(Record::Definition)
    .to_vec()
}

fn oom_exception(time: u64, error: Option<(Option<u32>, Option<u32>)>) -> Record {
    let error = error.map(|(thread, stack)| RaisedError {
        thread: thread.map(ThreadId),
        stack: stack.map(StackId),
        text: "no".to_owned(),
    });
    Record::OomException(OomException { time: Nanos(time), error })
}

fn expected() -> Vec<Record> {
    let mut records = definitions();
    records.push(oom_exception(100, Some((Some(0), Some(0)))));
    records.push(oom_exception(101, Some((None, None))));
    records.push(oom_exception(102, None));
    records
}

/// The records byte by byte.
fn by_hand() -> Vec<Vec<u8>> {
    vec![
        vec![0, 7, 0, 0, 0, 0, 0, 0, 0],
        b"\x03\x09\x01f\x04a.py\x03\x09".to_vec(),
        vec![4, 2, 0, 4],
        vec![5, 2, 0, 0],
        vec![6, 6, 0, 1, 42, 7, 0, 1],
        // 100 ns, an error in thread 0 at stack 0.
        b"\x19\x09\xc8\x01\x01\x00\x01\x00\x02no".to_vec(),
        // 1 ns later, one with neither known; 1 ns later, one that was not found.
        b"\x19\x07\x02\x01\x00\x00\x02no".to_vec(),
        vec![25, 2, 2, 0],
    ]
}

#[test]
fn a_file_made_by_hand_reads_as_its_prose_says() {
    reads(&by_hand(), &expected());
}

#[test]
fn the_golden_file_still_reads() {
    let mut records = expected();
    let (reason, totals) = (EndReason::TargetExited, RecordingTotals::default());
    records.push(Record::End(RecordingEnd { time: Nanos(103), reason, totals }));
    reads_as_ever("trace-v1-thrown.memspy", &records);
}

#[test]
fn words_whose_stack_was_lost_stay() {
    let whole = in_two_blocks(by_hand(), 5, &[0, 7, 1, 4, 0, 0, 1, 1, 1]);
    assert_eq!(read(&whole).0, expected());
    let records = without_its_first_block(whole);
    let unknown = Some((None, None));
    assert_eq!(
        records,
        [oom_exception(100, unknown), oom_exception(101, unknown), oom_exception(102, None)]
    );
}

#[test]
fn what_refers_to_nothing_is_refused_by_the_writer() {
    for error in [(Some(0), None), (None, Some(0))] {
        let record = oom_exception(1, Some(error));
        assert!(std::panic::catch_unwind(|| write(&[record])).is_err(), "{error:?}");
    }
}

#[test]
fn its_stack_goes_with_it_into_other_numbers() {
    let mut names = DefinitionTables::default();
    let other = Function {
        name: "g".into(),
        file: "b.py".into(),
        first_line: 1,
        last_line: 1,
        is_native: false,
    };
    let mut records = vec![Record::Definition(Definition::Function(FunctionId(0), other))];
    records.extend(definitions().into_iter().map(|record| match record {
        Record::Definition(Definition::Function(_, function)) => {
            Record::Definition(Definition::Function(FunctionId(1), function))
        }
        Record::Definition(Definition::Frame(id, frame)) => {
            Record::Definition(Definition::Frame(id, Frame { function: FunctionId(1), ..frame }))
        }
        other => other,
    }));
    assert!(records.iter().all(|record| names.on_definition(record)));
    let mut out = Vec::new();
    let record = oom_exception(5, Some((Some(0), Some(0))));
    Renumberer::new().rewrite(&names, &record, &mut out);
    // The unused function is left behind.
    let mut expected = definitions();
    expected.push(record);
    let position = |records: &[Record], at: usize| records.iter().position(|r| *r == expected[at]);
    assert_eq!(out.len(), expected.len());
    assert!((0..expected.len()).all(|at| position(&out, at).is_some()), "{out:?}");
}
