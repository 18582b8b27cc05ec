//! Exact records in a trace: bytes as specified, a golden file, damage.

use std::collections::HashMap;

use crate::trace_support::allocations::{self, Allocations, Likeness};
use crate::trace_support::by_hand::{file, reads_as_ever};
use crate::trace_support::{borders, read};
use memspy::model::{
    AddressSpace, AllocationSite, CounterCheck, CounterSnapshot, CudaIndex, Definition,
    DriverEvent, EndReason, Event, EventBatch, EventKind, EventTotals, ExactSettings, Frame,
    FrameId, FreeTracking, Function, FunctionId, JobCost, MemoryKind, MissReason,
    MissedObservation, Nanos, NativeFrames, ProbeBackend, ReaderKind, Record, RecordSink,
    RecordingEnd, RecordingTotals, SiteId, StackId, StackNode, StackSource, StackTable, Thread,
    ThreadId,
};
use memspy::trace::{RejectedRecord, TraceWriter};

const HEAD: &[u8] = &[0, 7, 0, 0, 0, 0, 0, 0, 0];

fn torch(device: u32) -> MemoryKind {
    MemoryKind::Torch(CudaIndex(device))
}

fn allocated(
    memory_kind: MemoryKind,
    address: u64,
    size: u64,
    levels: Option<CounterSnapshot>,
) -> EventKind {
    EventKind::Allocated { memory_kind, address, size, levels, block: None }
}

fn freed(memory_kind: AddressSpace, address: u64) -> EventKind {
    EventKind::Freed { memory_kind, address, in_backward: false }
}

fn levels(allocated: i64, peak: i64, reserved: i64, active: i64) -> Option<CounterSnapshot> {
    Some(CounterSnapshot { allocated, peak, reserved, active })
}

fn event(time: u64, site: Option<u32>, change: EventKind) -> Event {
    Event { time: Nanos(time), change, site: site.map(SiteId) }
}

fn events(events: Vec<Event>) -> Record {
    Record::Events(EventBatch { events })
}

/// A function, frame, stack and thread: what a site needs.
fn below_a_site() -> [Record; 4] {
    [
        Definition::Function(
            FunctionId(0),
            Function {
                name: "f".into(),
                file: "a".into(),
                first_line: 3,
                last_line: 9,
                is_native: false,
            },
        ),
        Definition::Frame(FrameId(0), Frame { function: FunctionId(0), line: 4 }),
        Definition::Stack(StackId(0), StackNode { parent: None, frame: FrameId(0), module: None }),
        Definition::Thread(
            ThreadId(0),
            Thread { os_id: None, python_id: 7, name: None, main: true },
        ),
    ]
    .map(Record::Definition)
}

fn site(number: u32, source: StackSource, rest: (bool, Option<&str>, Option<u32>)) -> Record {
    let (truncated, node, forward) = rest;
    let taken = !matches!(source, StackSource::NotTaken | StackSource::Unknown);
    let site = AllocationSite {
        thread: ThreadId(0),
        stack: taken.then_some(StackId(0)),
        source,
        truncated,
        node: node.map(Into::into),
        forward: forward.map(StackId),
        native: Default::default(),
    };
    Record::Definition(Definition::Site(SiteId(number), site))
}

fn end(time: u64) -> Record {
    Record::End(RecordingEnd {
        time: Nanos(time),
        reason: EndReason::Duration,
        totals: RecordingTotals {
            ticks: 1,
            late: 2,
            stacks: 3,
            torn: 4,
            snapshots_consistent: 5,
            snapshots_degraded: 6,
            exact: Some(EventTotals {
                allocations: 11,
                frees: 12,
                lost: 13,
                truncated: 14,
                borrowed: 15,
                faulted: 16,
                unknown: 17,
                no_python: 18,
                native: 0,
                native_lost: 0,
            }),
            follow: None,
            cost: None,
        },
    })
}

fn with_native_totals_and_cost(end: Record) -> Record {
    let Record::End(mut end) = end else { unreachable!() };
    let totals = end.totals.exact.as_mut().unwrap();
    (totals.native, totals.native_lost) = (19, 20);
    end.totals.cost =
        Some(JobCost { calculated: Some(70_000), budget: Some(20_000), ..JobCost::default() });
    Record::End(end)
}

#[test]
fn exact_records_made_by_hand_read_as_their_prose_says() {
    // Kind, time, place, site, address, size, levels; numbers in units of 512 where folded.
    let batch: [[&[u8]; 7]; 8] = [
        // By PyTorch on the previous device, 0: 1024 more allocated, the peak follows; 2 MiB
        // reserved; active follows.
        [&[216], &[20], &[], &[0], &[16], &[2], &[4, 251, 0, 32, 0]],
        // Freed by the backward pass, at the same address.
        [&[18], &[10], &[], &[], &[0], &[], &[]],
        // By PyTorch on device 1, no site, no levels.
        [&[0], &[2], &[1], &[], &[16], &[1], &[]],
        // By the driver, device unknown, one unit below.
        [&[9], &[0], &[1, 0], &[0], &[1], &[0], &[]],
        // Page-locked memory freed.
        [&[3], &[2], &[5], &[], &[0], &[], &[]],
        // PyTorch's allocation on device 2 failed with code 2.
        [&[4], &[2], &[0, 3, 2], &[], &[], &[1], &[]],
        // A library was loaded.
        [&[5], &[2], &[2], &[], &[], &[], &[]],
        // By PyTorch on device 1 again: 512 allocated, a peak of 1024 more.
        [&[176], &[2], &[], &[], &[0], &[1], &[2, 4]],
    ];
    let column = |c: usize| batch.map(|event| event[c]).concat();
    let columns: Vec<Vec<u8>> = (0..7).map(column).collect();
    let mut body = vec![batch.len() as u8];
    body.extend(columns[1..].iter().map(|column| column.len() as u8));
    body.extend(columns.concat());
    let bytes = file(&[
        &[
            HEAD,
            b"\x03\x06\x01f\x01a\x03\x09",
            &[4, 2, 0, 4],
            &[5, 2, 0, 0],
            &[6, 5, 0, 0, 7, 0, 1],
            b"\x11\x0b\x00\x00\x01\x00\x01\x01\x01\x01N\x01\x00",
            b"\x12\x0c\xc8\x00\x01\x07\x00\x01\x01\x01p\x00\x01\x00",
            &[19, body.len() as u8],
            &body,
            &[20, 6, 2, 1, 1, 1, 4, 0],
        ],
        &[
            // Block 1: 8 records before, last time 121 ns, 1 function, 1 frame, 1 stack. Addresses
            // restart.
            &[0, 7, 1, 8, 121, 0, 1, 1, 1],
            &[19, 10, 1, 1, 0, 0, 1, 0, 0, 2, 2, 2],
        ],
        // The trailer, without totals of following, and a byte of the future.
        &[
            &[0, 7, 2, 9, 122, 0, 1, 1, 1],
            &[16, 33, 2, 0, 1, 2, 3, 4, 5, 6, 1, 11, 12, 13, 14, 15, 16, 17, 18, 0, 19, 20],
            // What it cost: 7 % by calculation, not measured, of a budget of 2 %.
            &[1, 252, 112, 17, 1, 0, 0, 1, 251, 32, 78, 0, 77],
        ],
    ]);
    let mut expected = below_a_site().to_vec();
    expected.extend([
        site(0, StackSource::Backward, (true, Some("N"), Some(0))),
        Record::ExactSettings(ExactSettings {
            time: Nanos(100),
            backend: ProbeBackend::UprobeMulti,
            frees: FreeTracking::Stacks,
            stacks_from: 7,
            stacks_every: 0,
            backward_lines: true,
            knows_backward: true,
            starts_empty: false,
            probes: vec!["p".into()],
            uncovered: vec![],
            native_from: None,
        }),
        events(vec![
            event(110, Some(0), allocated(torch(0), 4096, 1024, levels(1024, 1024, 2 << 20, 1024))),
            event(
                115,
                None,
                EventKind::Freed {
                    memory_kind: AddressSpace::Torch,
                    address: 4096,
                    in_backward: true,
                },
            ),
            event(116, None, allocated(torch(1), 8192, 512, None)),
            event(116, Some(0), allocated(MemoryKind::Driver(None), 7680, 0, None)),
            event(117, None, freed(AddressSpace::PinnedHost, 7680)),
            event(118, None, EventKind::Failed { memory_kind: torch(2), size: 512, code: 2 }),
            event(119, None, EventKind::Marked(DriverEvent::LibraryLoaded)),
            event(120, None, allocated(torch(1), 7680, 512, levels(512, 1536, 0, 512))),
        ]),
        Record::CounterCheck(CounterCheck {
            time: Nanos(121),
            device: CudaIndex(1),
            allocations: -1,
            frees: Some(2),
            requested: 0,
        }),
        events(vec![event(122, None, freed(AddressSpace::Torch, 512))]),
        with_native_totals_and_cost(end(123)),
    ]);
    let (records, summary) = read(&bytes);
    assert_eq!(records, expected);
    assert!(summary.is_whole());
    assert_eq!((summary.blocks, summary.lost_records), (3, 0));
}

#[test]
fn native_frame_records_made_by_hand_read_as_specified() {
    let bytes = file(&[&[
        HEAD,
        b"\x03\x06\x01f\x01a\x03\x09",
        &[4, 2, 0, 4],
        &[5, 2, 0, 0],
        &[6, 5, 0, 0, 7, 0, 1],
        // A compiled function, and a byte of the future; a stack of it, called by the first.
        b"\x03\x08\x01n\x01l\x00\x00\x01\x4d",
        &[4, 2, 1, 0],
        &[5, 3, 1, 0, 1],
        // Sites: no native frames requested, lost, with that stack.
        b"\x11\x08\x00\x00\x01\x00\x00\x00\x00\x00",
        b"\x11\x09\x01\x00\x01\x00\x00\x00\x00\x00\x00",
        b"\x11\x0a\x02\x00\x01\x00\x00\x00\x00\x00\x01\x01",
        // Of at least 9 bytes.
        b"\x12\x0b\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09",
    ]]);
    let mut expected = below_a_site().to_vec();
    let native = Function::native("n".into(), "l".into());
    expected.extend(
        [
            Definition::Function(FunctionId(1), native),
            Definition::Frame(FrameId(1), Frame { function: FunctionId(1), line: 0 }),
            Definition::Stack(
                StackId(1),
                StackNode { parent: Some(StackId(0)), frame: FrameId(1), module: None },
            ),
        ]
        .map(Record::Definition),
    );
    let frames = [NativeFrames::NotTaken, NativeFrames::Lost, NativeFrames::Stack(StackId(1))];
    for (number, native) in (0..).zip(frames) {
        let Record::Definition(Definition::Site(id, plain)) =
            site(number, StackSource::Own, (false, None, None))
        else {
            unreachable!()
        };
        let described = AllocationSite { native, ..plain };
        expected.push(Record::Definition(Definition::Site(id, described)));
    }
    expected.push(Record::ExactSettings(ExactSettings {
        time: Nanos(1),
        native_from: Some(9),
        ..ExactSettings::default()
    }));
    assert_eq!(read(&bytes).0, expected);

    // Written, they are these bytes; without native frames, those of all earlier traces.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let mut writer = TraceWriter::create(&path, false).unwrap();
    for record in &expected {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(read(&std::fs::read(&path).unwrap()).0, expected);
}

/// The golden file's records: every kind of event and every variant.
fn golden() -> Vec<Record> {
    use StackSource::{Backward, Borrowed, NoPython, NotTaken, Own, Sampled, Unknown};
    let exact = |time, way, frees| {
        Record::ExactSettings(ExactSettings {
            time: Nanos(time),
            backend: way,
            frees,
            stacks_from: 4096,
            stacks_every: 1 << 20,
            backward_lines: way == ProbeBackend::UprobeMulti,
            knows_backward: false,
            starts_empty: false,
            probes: vec!["pytorch:malloc".into(), "cuMemAlloc_v2".into()],
            uncovered: vec!["Größe unbekannt".into()],
            native_from: None,
        })
    };
    let counter_check = |time, frees| {
        Record::CounterCheck(CounterCheck {
            time: Nanos(time),
            device: CudaIndex(3),
            allocations: -70_000,
            frees,
            requested: 1 << 40,
        })
    };
    let gpu = |device| Some(CudaIndex(device));
    let changes = [
        allocated(torch(0), 0x7F00_0000_0000, 1000, levels(1024, 1024, 2 << 20, 1024)),
        allocated(torch(0), 0x7F00_0000_0400, 512, levels(1536, 4096, 2 << 20, 2048)),
        allocated(torch(7), 0x7F80_0000_0000, 1 << 33, levels(1 << 33, 1 << 33, 1 << 34, 1 << 33)),
        freed(AddressSpace::Torch, 0x7F00_0000_0000),
        allocated(torch(0), 0x7F00_0000_0000, 1, levels(512, 4096, 2 << 20, 1024)),
        allocated(torch(0), 0x7F00_0000_0600, 77, None),
        allocated(MemoryKind::Driver(None), 4096, 77, None),
        allocated(MemoryKind::Driver(gpu(3)), 4096, 77, None),
        allocated(MemoryKind::Physical(None), 12, 2 << 20, None),
        allocated(MemoryKind::Physical(gpu(0)), 13, 2 << 20, None),
        allocated(MemoryKind::Mapping, 1 << 40, 2 << 20, None),
        allocated(MemoryKind::Managed, (1 << 63) + 3, 1 << 50, None),
        allocated(MemoryKind::PinnedHost, 5, 6, None),
        freed(AddressSpace::Driver, 4096),
        freed(AddressSpace::Physical, 12),
        freed(AddressSpace::Mapping, 1 << 40),
        freed(AddressSpace::PinnedHost, 5),
        EventKind::Failed { memory_kind: torch(1), size: 1 << 50, code: 2 },
        EventKind::Failed { memory_kind: MemoryKind::Driver(None), size: 3, code: 700 },
        EventKind::Marked(DriverEvent::ContextCreated),
        EventKind::Marked(DriverEvent::ModuleLoaded),
        EventKind::Marked(DriverEvent::LibraryLoaded),
    ];
    let batch = |from: u64| {
        let at = |n: u64| from + n * n * 100;
        let all = (0..)
            .zip(changes)
            .map(|(n, change)| event(at(n), (n % 3 != 0).then_some(n as u32 % 7), change));
        events(all.collect())
    };
    let mut records = below_a_site().to_vec();
    let sources = [Own, Backward, Borrowed, NoPython, NotTaken, Unknown, Sampled];
    for (number, source) in (0..).zip(sources) {
        let node = (source == Backward).then_some("AddmmBackward0");
        let forward = node.map(|_| 0);
        records.push(site(number, source, (source == Own, node, forward)));
    }
    records.extend([
        exact(1000, ProbeBackend::UprobeMulti, FreeTracking::Events),
        exact(1000, ProbeBackend::PerfUprobes, FreeTracking::Stacks),
        exact(1000, ProbeBackend::PerfSamples, FreeTracking::Snapshots),
        batch(2000),
        counter_check(60_000, Some(-3)),
        events(vec![]),
        batch(70_000),
        counter_check(130_000, None),
        Record::Missed(MissedObservation {
            time: Nanos(140_000),
            reader: ReaderKind::Events,
            why: MissReason::Late,
            count: 300,
        }),
        end(150_000),
    ]);
    records
}

/// Sizes as large as numbers get: rounding one up to the allocator's unit overflowed.
#[test]
fn sizes_at_the_end_of_numbers_are_analysed() {
    let mut profile = memspy::analysis::Profile::default();
    for record in golden() {
        profile.record(&record).unwrap();
    }
    assert!(profile.exact().is_some());
}

#[test]
fn the_golden_file_of_exact_records_still_reads() {
    reads_as_ever("trace-v1-exact.memspy", &golden());
}

#[test]
fn events_that_do_not_follow_the_format_are_damage() {
    let thread: &[u8] = &[6, 5, 0, 0, 7, 0, 1];
    let site: &[u8] = &[17, 7, 0, 0, 0, 3, 0, 0, 0];
    for (bad, why) in [
        (&[19, 5, 252, 0, 0, 0, 1][..], "more events"),
        (&[19, 8, 1, 9, 0, 0, 0, 0, 0, 2], "longer than its block"),
        (&[19, 9, 1, 1, 0, 0, 0, 0, 0, 2, 0], "in the middle of a number"),
        // An unknown kind, mark, arena, arena freed; PyTorch's memory on no device; a device too
        // many.
        (&[19, 9, 1, 1, 0, 0, 0, 0, 0, 7, 0], "unknown kind"),
        (&[19, 10, 1, 1, 1, 0, 0, 0, 0, 5, 0, 3], "unknown kind"),
        (&[19, 12, 1, 1, 1, 0, 1, 1, 0, 1, 0, 6, 0, 0], "unknown kind"),
        (&[19, 11, 1, 1, 1, 0, 1, 0, 0, 3, 0, 4, 0], "unknown kind"),
        (&[19, 13, 1, 1, 3, 0, 0, 1, 0, 4, 0, 0, 0, 2, 0], "unknown kind"),
        (&[19, 15, 1, 1, 3, 0, 1, 1, 1, 16, 0, 251, 0, 4, 0, 0, 0], "more devices"),
        (&[17, 7, 1, 0, 0, 7, 0, 0, 0], "unknown source"),
        (site, "defined twice"),
    ] {
        let (records, summary) = read(&file(&[&[HEAD, thread, site, bad]]));
        assert_eq!((records.len(), summary.damaged_places), (2, 1), "{bad:?}");
        let damage = summary.first_damage.unwrap();
        assert!(damage.why.contains(why), "{bad:?}: {}", damage.why);
    }
}

#[test]
fn what_cannot_be_read_back_is_refused() {
    let wrong = levels(1, 1, 1, 1);
    for bad in [
        events(vec![event(1, Some(1), EventKind::Marked(DriverEvent::ModuleLoaded))]),
        events(vec![event(1, None, allocated(MemoryKind::Managed, 0, 1, wrong))]),
        events(vec![event(1, None, allocated(torch(1024), 0, 1, wrong))]),
        events(vec![event(1, None, EventKind::Marked(DriverEvent::ModuleLoaded)); (1 << 16) + 1]),
        site(0, StackSource::Own, (false, None, None)),
        site(2, StackSource::Own, (false, None, None)),
        site(1, StackSource::Own, (false, None, Some(1))),
    ] {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        for record in below_a_site() {
            writer.record(&record).unwrap();
        }
        writer.record(&site(0, StackSource::Own, (false, None, None))).unwrap();
        let error = writer.record(&bad).unwrap_err();
        let inner = error.io().unwrap().get_ref();
        assert!(inner.is_some_and(|e| e.is::<RejectedRecord>()), "{error}");
    }
}

/// The events of `records` by time, with their sites.
fn by_time(records: &[Record]) -> HashMap<u64, (EventKind, Option<String>)> {
    let mut table = StackTable::new();
    let mut all = HashMap::new();
    for record in records {
        match record {
            Record::Definition(definition) => assert!(table.define(definition.clone())),
            Record::Events(batch) => {
                for event in &batch.events {
                    let site = event.site.map(|id| crate::trace_support::site(&table, id));
                    assert!(all.insert(event.time.0, (event.change, site)).is_none());
                }
            }
            _ => {}
        }
    }
    all
}

#[test]
fn a_lost_block_takes_only_its_own_events() {
    let records = Allocations::story(Likeness::Varied, 21, 40, 512);
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for (n, record) in records.iter().enumerate() {
        writer.record(record).unwrap();
        if n % 9 == 8 {
            writer.flush().unwrap();
        }
    }
    let bytes = writer.finish().unwrap().0;
    let borders = borders(&bytes);
    let truth = by_time(&records);
    let held: Vec<u64> =
        borders.iter().map(|&b| allocations::count(&read(&bytes[..b]).0)).collect();
    let mut unknown = 0;
    // After the first damage definitions are lost; after the last block nothing follows.
    for block in 0..borders.len() - 2 {
        let mut bad = bytes.clone();
        bad[borders[block] + 20] ^= 0x10;
        let (copy, summary) = read(&bad);
        assert_eq!((summary.damaged_places, summary.lost_blocks), (1, 1));
        let lost = held[block + 1] - held[block];
        assert_eq!(allocations::count(&copy), allocations::count(&records) - lost);
        for (time, (change, site)) in by_time(&copy) {
            let (its_change, its_site) = &truth[&time];
            assert_eq!(change, *its_change);
            match site {
                Some(_) => assert_eq!(site, *its_site),
                None => unknown += u64::from(its_site.is_some()),
            }
        }
    }
    assert!(unknown > 0, "no site was lost");
}
