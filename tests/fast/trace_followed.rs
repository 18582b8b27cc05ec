//! Counter deltas in a trace: bytes as specified.

use crate::trace_support::by_hand::file;
use crate::trace_support::read;
use memspy::model::{
    CounterDelta, CudaIndex, Definition, FollowedChange, FollowedChanges, FollowedThread, Frame,
    FrameId, Function, FunctionId, Nanos, Record, StackId, StackNode, StackReading, Thread,
    ThreadId,
};

/// A function, frame, two stacks and a thread.
fn definitions() -> Vec<Record> {
    let function = Function {
        name: "f".into(),
        file: "a".into(),
        first_line: 3,
        last_line: 9,
        is_native: false,
    };
    let stack = |parent| StackNode { parent, frame: FrameId(0), module: None };
    [
        Definition::Function(FunctionId(0), function),
        Definition::Frame(FrameId(0), Frame { function: FunctionId(0), line: 4 }),
        Definition::Stack(StackId(0), stack(None)),
        Definition::Stack(StackId(1), stack(Some(StackId(0)))),
        Definition::Thread(
            ThreadId(0),
            Thread { os_id: None, python_id: 7, name: None, main: true },
        ),
    ]
    .into_iter()
    .map(Record::Definition)
    .collect()
}

#[test]
fn followed_changes_made_by_hand_read_as_their_prose_says() {
    // Kind, times, sizes, threads, stacks; numbers in units of 512 where folded.
    let batch: [[&[u8]; 5]; 3] = [
        // 1024 bytes in the small pool of device 0, 1000 of them requested; at 100 ns, 10 after the
        // poll before; by thread 0, in stack 1 at both polls, with the lock.
        [&[8], &[200, 10], &[2, 48], &[1, 0, 15 | 16 | 32], &[2]],
        // 2 MiB of device 1's large pool freed; 512 bytes fewer are live than that gives. No thread
        // known.
        [&[3 | 16 | 64], &[4, 2], &[1, 251, 0, 16, 0, 0, 1], &[0], &[]],
        // Anything, at torn counters: one allocation and two frees in the small pool. Thread 0
        // moved from a torn stack to stack 0.
        [&[4 | 8 | 32], &[2, 1], &[2, 4, 2, 4, 10, 20, 0, 0, 0, 0, 0, 0], &[1, 0, 1 | 12], &[1]],
    ];
    let columns: Vec<Vec<u8>> = (0..5).map(|c| batch.map(|change| change[c]).concat()).collect();
    let mut body = vec![batch.len() as u8];
    body.extend(columns[1..].iter().map(|column| column.len() as u8));
    body.extend(columns.concat());
    let bytes = file(&[&[
        &[0, 7, 0, 0, 0, 0, 0, 0, 0],
        b"\x03\x06\x01f\x01a\x03\x09",
        &[4, 2, 0, 4],
        &[5, 2, 0, 0],
        &[5, 3, 1, 0, 0],
        &[6, 5, 0, 0, 7, 0, 1],
        &[27, body.len() as u8],
        &body,
    ]]);
    let none = CounterDelta::default();
    let change = FollowedChange {
        before: Nanos(90),
        after: Nanos(100),
        device: CudaIndex(0),
        small: CounterDelta {
            allocations: 1,
            allocated_bytes: 1024,
            requested_bytes: 1000,
            ..none
        },
        large: none,
        live: [1024, 0],
        threads: vec![FollowedThread {
            thread: ThreadId(0),
            before: StackReading::Whole(StackId(1)),
            after: StackReading::Whole(StackId(1)),
            held_lock: true,
            wait: Default::default(),
        }],
        others_possible: false,
        counters_torn: false,
        totals_reset: false,
        addresses: None,
    };
    let freed =
        CounterDelta { frees: 1, freed_bytes: 2 << 20, freed_requested_bytes: 2 << 20, ..none };
    let changes = vec![
        change.clone(),
        FollowedChange {
            before: Nanos(100),
            after: Nanos(102),
            device: CudaIndex(1),
            small: none,
            large: freed,
            live: [0, -(2 << 20) - 512],
            threads: Vec::new(),
            others_possible: true,
            ..change.clone()
        },
        FollowedChange {
            before: Nanos(102),
            after: Nanos(103),
            device: CudaIndex(1),
            small: CounterDelta {
                allocations: 1,
                frees: 2,
                allocated_bytes: 512,
                freed_bytes: 1024,
                requested_bytes: 5,
                freed_requested_bytes: 10,
            },
            live: [-512, -(2 << 20) - 512],
            threads: vec![FollowedThread {
                thread: ThreadId(0),
                before: StackReading::Torn,
                after: StackReading::Whole(StackId(0)),
                held_lock: false,
                wait: Default::default(),
            }],
            counters_torn: true,
            ..change
        },
    ];
    let mut expected = definitions();
    expected.push(Record::Followed(FollowedChanges { changes }));
    assert_eq!(read(&bytes).0, expected);
}
