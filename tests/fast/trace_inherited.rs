//! The keyframe of a recording is written as specified.

use crate::trace_support::by_hand::{
    file, in_two_blocks, reads, reads_as_ever, without_its_first_block,
};
use crate::trace_support::{read, write};
use memspy::model::{
    AllocationSite, AllocationSource, AttributionShare, CounterSnapshot, CudaIndex, Definition,
    Frame, FrameId, Function, FunctionId, Keyframe, KeyframeBlock, KeyframeMemory, MemoryKind,
    Nanos, Record, SiteId, StackId, StackNode, StackSource, Thread, ThreadId, TriggerFired,
};

fn definitions() -> Vec<Record> {
    let function = Function {
        name: "f".into(),
        file: "a.py".into(),
        first_line: 3,
        last_line: 9,
        is_native: false,
    };
    let node = StackNode { parent: None, frame: FrameId(0), module: None };
    let thread = Thread { os_id: Some(42), python_id: 7, name: None, main: true };
    let site = AllocationSite {
        thread: ThreadId(0),
        stack: Some(StackId(0)),
        source: StackSource::Own,
        truncated: false,
        node: None,
        forward: None,
        native: Default::default(),
    };
    [
        Definition::Function(FunctionId(0), function),
        Definition::Frame(FrameId(0), Frame { function: FunctionId(0), line: 4 }),
        Definition::Stack(StackId(0), node),
        Definition::Thread(ThreadId(0), thread),
        Definition::Site(SiteId(0), site),
    ]
    .map(Record::Definition)
    .to_vec()
}

fn block(address: u64, size: u64, born: u64, allocation_source: u32) -> KeyframeBlock {
    let (requested, stands_for, small) = (size, size, false);
    KeyframeBlock {
        address,
        size,
        requested,
        stands_for,
        allocated_at: Nanos(born),
        small,
        allocation_source,
    }
}

fn inherited() -> Record {
    let stack = AttributionShare { by: Some((ThreadId(0), StackId(0))), weight: 3 };
    let nobody = AttributionShare { by: None, weight: 1 };
    let sampled = KeyframeMemory {
        memory_kind: MemoryKind::Torch(CudaIndex(0)),
        mapped: Some(Nanos(99)),
        levels: None,
        freed_since: 0,
        blocks: vec![
            block(0x1000, 1024, 0, 0),
            KeyframeBlock { requested: 1000, small: true, ..block(0x2000, 512, 90, 2) },
        ],
    };
    let exact = KeyframeMemory {
        memory_kind: MemoryKind::Torch(CudaIndex(1)),
        mapped: None,
        levels: Some(CounterSnapshot { allocated: 5, peak: 6, reserved: 7, active: -1 }),
        freed_since: 8,
        blocks: vec![KeyframeBlock { stands_for: 510, ..block(0x200, 512, 1, 1) }],
    };
    Record::Keyframe(Keyframe {
        time: Nanos(100),
        allocation_sources: vec![
            AllocationSource::Before,
            AllocationSource::Site(SiteId(0)),
            AllocationSource::Observed {
                shares: vec![stack, nobody],
                span: Some(Nanos(10)),
                contested: false,
            },
            AllocationSource::NoEvent,
            AllocationSource::Lost,
            AllocationSource::NotTaken,
            AllocationSource::Observed { shares: vec![nobody], span: None, contested: false },
        ],
        memory: vec![sampled, exact],
    })
}

fn triggered() -> Record {
    let (condition, seen) = ("oom".to_owned(), "so".to_owned());
    Record::TriggerFired(TriggerFired { time: Nanos(101), condition, seen })
}

/// The records byte by byte.
fn by_hand() -> Vec<Vec<u8>> {
    let mut inherited = vec![23, 0, 200];
    // Seven origins: before, site 0, a delta of 10 ns (thread 0 in stack 0 weighs 3, no thread 1),
    // found, lost, not taken, no thread for an unknown time.
    inherited.extend([7, 0, 4, 0, 5, 11, 2, 1, 0, 3, 0, 1, 1, 2, 3, 5, 0, 1, 0, 1]);
    // Two kinds of memory. PyTorch's on device 0, snapshot at 99 ns, no levels, nothing freed
    // since, two blocks.
    inherited.extend([2, 0, 1, 100, 0, 0, 2]);
    // Addresses 8 units and 8 more, sizes 2 units and 1, less requested 0 and -488, represent
    // themselves, born at 0 and 90 later, origins 0 and 2, the second small.
    inherited.extend([16, 16, 2, 1, 0, 251, 207, 3, 0, 0, 0, 180, 0, 2, 0, 1]);
    // On device 1, no snapshot, levels 5, 6, 7, -1, 8 bytes freed since, one block.
    inherited.extend([0, 2, 0, 1, 10, 12, 14, 1, 8, 1]);
    // Address 1 unit, size 1 unit, all of it requested, represents 2 less, born at 1, origin 1, not
    // known to be small.
    inherited.extend([2, 1, 0, 4, 2, 1, 0]);
    inherited[1] = inherited.len() as u8 - 2;
    vec![
        vec![0, 7, 0, 0, 0, 0, 0, 0, 0],
        b"\x03\x09\x01f\x04a.py\x03\x09".to_vec(),
        vec![4, 2, 0, 4],
        vec![5, 2, 0, 0],
        vec![6, 6, 0, 1, 42, 7, 0, 1],
        vec![17, 8, 0, 0, 1, 0, 0, 0, 0, 0],
        inherited,
        b"\x18\x08\x02\x03oom\x02so".to_vec(),
    ]
}

fn expected() -> Vec<Record> {
    let mut records = definitions();
    records.extend([inherited(), triggered()]);
    records
}

#[test]
fn a_file_made_by_hand_reads_as_its_prose_says() {
    reads(&by_hand(), &expected());
}

#[test]
fn the_golden_file_still_reads() {
    let mut records = expected();
    records.push(Record::End(memspy::model::RecordingEnd {
        time: Nanos(102),
        reason: memspy::model::EndReason::Condition("oom".into()),
        totals: memspy::model::RecordingTotals::default(),
    }));
    reads_as_ever("trace-v1-inherited.memspy", &records);
}

#[test]
fn lost_origins_leave_their_blocks() {
    let whole = in_two_blocks(by_hand(), 6, &[0, 7, 1, 5, 0, 0, 1, 1, 1]);
    assert_eq!(read(&whole).0, expected());
    // The block with the definitions is missing.
    let records = without_its_first_block(whole);
    let Record::Keyframe(found) = &records[0] else { panic!("{records:?}") };
    assert_eq!(found.allocation_sources[1], AllocationSource::Lost);
    let AllocationSource::Observed { shares, .. } = &found.allocation_sources[2] else { panic!() };
    assert!(shares.iter().all(|share| share.by.is_none()));
    assert_eq!(found.memory[0].blocks.len(), 2);
}

#[test]
fn numbers_that_lie_are_damage_and_make_no_room() {
    let good = by_hand();
    for (at, value) in [(3, 250), (4, 9), (23, 250), (27, 7), (29, 250)] {
        let mut payload = good.clone();
        payload[6][at] = value;
        let payload: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
        let (records, summary) = read(&file(&[&payload]));
        assert_eq!(summary.damaged_places, 1, "byte {at} of {records:?}");
        assert!(!records.iter().any(|r| matches!(r, Record::Keyframe(_))));
    }
    // The writer refuses undefined references.
    let result = std::panic::catch_unwind(|| write(&[inherited()]));
    assert!(result.is_err());
}
