//! The format as specified: a file made by hand, a golden file of version 1, hostile payloads.

use crate::trace_support::by_hand::{crc32c, file, reads_as_ever};
use crate::trace_support::read;
use memspy::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, Block, BlockState, CudaIndex,
    Definition, DeviceOwners, DeviceUsage, EndReason, Frame, FrameId, Function, FunctionId,
    GpuDevice, Metric, MissReason, MissedObservation, Nanos, OwnedBlock, OwnedStorages,
    OwnershipBreakdown, Pool, PoolId, ProcessUsage, ReaderKind, Record, RecordingEnd,
    RecordingStart, RecordingTotals, Segment, SnapshotConsistency, SourceText, StackId, StackNode,
    StackSample, Stat, StepSource, TargetRuntime, TensorCategory, Thread, ThreadActivity, ThreadId,
    ThreadSample, TrainingStep,
};

fn entry(thread: u32, stack: u32, gil: bool, activity: ThreadActivity) -> ThreadSample {
    ThreadSample { thread: ThreadId(thread), stack: StackId(stack), gil, activity }
}

fn sample(time: u64, threads: Vec<ThreadSample>) -> Record {
    Record::Sample(StackSample { time: Nanos(time), threads })
}

#[test]
fn a_file_made_by_hand_reads_as_its_prose_says() {
    let bytes = file(&[
        &[
            &[0, 7, 0, 0, 0, 0, 0, 0, 0],
            b"\x01\x0f\x030.1\x09\x01h\x01\x02py\x00\x00\x64\x00",
            // Function f in a.py, lines 3 to 300; frame at line 4; stacks 0 and 1.
            b"\x03\x0b\x01f\x04a.py\x03\xfb\x2c\x01",
            &[4, 2, 0, 4],
            &[5, 2, 0, 0],
            &[5, 3, 1, 0, 0],
            b"\x06\x09\x00\x01\x2a\x07\x01\x02Ma\x01",
            // At 100 ns thread 0 in stack 1 with the GIL, active.
            &[9, 5, 200, 1, 0, 1, 1],
            // At 90 ns, 10 before the expected time (no period), the same.
            &[11, 1, 19],
            // At 90 ns stack 0, unknown activity, without the GIL.
            &[10, 5, 0, 1, 0, 1, 4],
            // A tag of the future.
            &[200, 3, 9, 9, 9],
        ],
        &[
            // Block 1: 10 records before, last time 90 ns, period 10 ns, 1 function, 1 frame, 2
            // stacks.
            &[0, 7, 1, 10, 90, 10, 1, 1, 2],
            &[9, 5, 20, 1, 0, 0, 2],
            &[11, 2, 0, 77], // 110 ns, and a byte of the future
            // Counters of device 1 at 115 ns: in the large pool two units more allocated, and two
            // fewer freed than expected.
            &[12, 7, 10, 1, 0, 16, 12, 4, 3],
            // A snapshot of device 0 at 115 ns, never retried, consistent: one new segment of 3
            // units at unit 8, stream 5, pool (1, 2), small; its blocks: 2 units, 1000 B requested;
            // 1 unit, inactive.
            &[13, 19, 0, 0, 0, 0, 6, 1, 8, 3, 5, 1, 2, 10, 0, 2, 48, 10, 1, 0, 0],
            // Owners at 115 ns, in a pause of 7 ns: on device 0 200 bytes, 3 by rounding, 4 in no
            // tensor; parameter w has 193 in 2 storages. The process had just been stopped; every
            // block has a name; node outputs are unknown. The block at 0x1000 has 196 bytes, 193 of
            // them w's.
            &[
                21, 27, 0, 1, 7, 1, 0, 200, 3, 4, 1, 0, 1, b'w', 193, 2, 0, 0, 1, 0, 1, 0, 251, 0,
                16, 196, 1, 0, 193,
            ],
            // At 116 ns training had done 99 steps.
            &[22, 6, 2, 99, 0, 0, 0, 0],
            // At 117 ns, by a variable, step 5 of epoch 3.
            &[22, 7, 2, 5, 1, 3, 1, 0, 0],
            // Step 6, seen at an event.
            &[22, 8, 2, 6, 1, 3, 1, 1, 0, 0],
        ],
    ]);
    let (records, summary) = read(&bytes);
    let mut counters = AllocatorCounters::default();
    let grown = Stat { current: 1024, peak: 1024, allocated: 1024, freed: 0 };
    let shrunk = Stat { current: -1024, freed: 1024, ..Stat::default() };
    for (metric, stat) in [
        (Metric::AllocatedBytes, grown),
        (Metric::ActiveBytes, grown),
        (Metric::RequestedBytes, grown),
        (Metric::InactiveSplitBytes, shrunk),
    ] {
        for pool in [Pool::All, Pool::Large] {
            counters.stats[metric as usize][pool as usize] = stat;
        }
    }
    let expected = vec![
        Record::Start(RecordingStart {
            memspy: "0.1".into(),
            pid: 9,
            host: "h".into(),
            command: vec!["py".into()],
            directory: None,
            unix_nanos: 0,
            rate: 100,
            rank: None,
        }),
        function(0, "f", 3, 300),
        frame(0, 0, 4),
        stack(0, None, 0),
        stack(1, Some(0), 0),
        thread(0, Some(42), 7, Some("Ma"), true),
        sample(100, vec![entry(0, 1, true, ThreadActivity::Active)]),
        sample(90, vec![entry(0, 1, true, ThreadActivity::Active)]),
        sample(90, vec![entry(0, 0, false, ThreadActivity::Unknown)]),
        sample(100, vec![entry(0, 0, false, ThreadActivity::Idle)]),
        sample(110, vec![entry(0, 0, false, ThreadActivity::Idle)]),
        Record::Counters { time: Nanos(115), device: CudaIndex(1), counters: Box::new(counters) },
        map(SnapshotConsistency::Consistent),
        owners(),
        Record::Step(TrainingStep { time: Nanos(116), step: 99, ..TrainingStep::default() }),
        Record::Step(TrainingStep {
            time: Nanos(117),
            step: 5,
            epoch: Some(3),
            clock: StepSource::Variable,
            uncertainty: None,
            is_over: false,
        }),
        Record::Step(TrainingStep {
            time: Nanos(118),
            step: 6,
            epoch: Some(3),
            clock: StepSource::Variable,
            uncertainty: Some(Nanos(0)),
            is_over: false,
        }),
    ];
    assert_eq!(records, expected);
    assert_eq!(summary.unknown_tags, 1);
    assert_eq!((summary.blocks, summary.lost_records), (2, 0));
    assert_eq!((summary.damaged_places, summary.complete), (0, false));
}

fn function(number: u32, name: &str, first_line: u32, last_line: u32) -> Record {
    let function = Function {
        name: name.into(),
        file: "a.py".into(),
        first_line,
        last_line,
        is_native: false,
    };
    Record::Definition(Definition::Function(FunctionId(number), function))
}

fn frame(number: u32, function: u32, line: u32) -> Record {
    let function = FunctionId(function);
    Record::Definition(Definition::Frame(FrameId(number), Frame { function, line }))
}

fn stack(number: u32, parent: Option<u32>, frame: u32) -> Record {
    let node = StackNode { parent: parent.map(StackId), frame: FrameId(frame), module: None };
    Record::Definition(Definition::Stack(StackId(number), node))
}

fn thread(
    number: u32,
    os_id: Option<u64>,
    python_id: u64,
    name: Option<&str>,
    main: bool,
) -> Record {
    let thread = Thread { os_id, python_id, name: name.map(Into::into), main };
    Record::Definition(Definition::Thread(ThreadId(number), thread))
}

fn owners() -> Record {
    let weight = OwnedStorages {
        category: TensorCategory::Parameter,
        owner: "w".into(),
        bytes: 193,
        count: 2,
    };
    let device = DeviceOwners {
        device: CudaIndex(0),
        allocated: 200,
        rounding: 3,
        without_tensor: 4,
        results: None,
        held: vec![weight],
    };
    let pause = Some(Nanos(7));
    let unnamed_blocks = Vec::new();
    let (time, age, devices) = (Nanos(115), Nanos(0), vec![device]);
    let blocks = vec![OwnedBlock { device: 0, address: 0x1000, size: 196, shares: vec![(0, 193)] }];
    let retained = Vec::new();
    Record::Ownership(OwnershipBreakdown {
        time,
        pause,
        devices,
        age,
        unnamed_blocks,
        blocks,
        retained,
    })
}

fn map(consistency: SnapshotConsistency) -> Record {
    let block = |address, size, requested, state| Block { address, size, requested, state };
    Record::Snapshot(AllocatorSnapshot {
        time: Nanos(115),
        device: CudaIndex(0),
        retries: 0,
        consistency,
        segments: vec![Segment {
            address: 4096,
            size: 1536,
            stream: 5,
            small: true,
            expandable: false,
            granule: 0,
            retired: false,
            pool: PoolId(1, 2),
            blocks: vec![
                block(4096, 1024, 1000, BlockState::Allocated),
                block(5120, 512, 0, BlockState::Inactive),
            ],
        }],
    })
}

/// The golden file's records: every kind, every variant with fields.
fn golden() -> Vec<Record> {
    let runtime = |allocator| {
        Record::Runtime(TargetRuntime {
            time: Nanos(50),
            python: Some("3.12.1".into()),
            torch: None,
            allocator,
        })
    };
    let usage = |process, reserved| {
        Record::Usage(DeviceUsage {
            time: Nanos(130),
            nvml_index: 2,
            total: 1 << 36,
            used: 1 << 35,
            free: 1 << 35,
            reserved,
            process,
        })
    };
    let missed =
        |reader, why| Record::Missed(MissedObservation { time: Nanos(140), reader, why, count: 3 });
    let counters = |time, by: i64| {
        let mut counters = AllocatorCounters {
            num_ooms: by,
            num_device_alloc: Some(by),
            max_split_size: Some(i64::MAX),
            ..AllocatorCounters::default()
        };
        for (i, stat) in counters.stats.iter_mut().flatten().enumerate() {
            stat.current = by * i as i64 * 512;
            stat.peak = by << i;
            stat.allocated = by * 1000;
        }
        counters.oversize_segments.freed = -by;
        Record::Counters { time: Nanos(time), device: CudaIndex(1), counters: Box::new(counters) }
    };
    let degraded =
        SnapshotConsistency::Degraded { allocated_in_blocks: 1024, allocated_counter: 1000 };
    let threads =
        vec![entry(0, 1, true, ThreadActivity::Active), entry(1, 0, false, ThreadActivity::Idle)];
    let mut moved = threads.clone();
    moved[1] = entry(1, 1, false, ThreadActivity::Unknown);
    let mut records = vec![
        Record::Start(RecordingStart {
            memspy: "0.1.0".into(),
            pid: 70_000,
            host: "rechner".into(),
            command: vec!["python".into(), "größe.py".into()],
            directory: Some("/tmp".into()),
            unix_nanos: 1_763_000_000_000_000_000,
            rate: 200,
            rank: None,
        }),
        Record::Device(GpuDevice {
            cuda_index: Some(CudaIndex(1)),
            nvml_index: None,
            uuid: Some("GPU-1".into()),
            pci_bus_id: None,
            name: Some("H200".into()),
            total: Some(1 << 37),
        }),
        runtime(AllocatorBackend::NotLoaded),
        runtime(AllocatorBackend::NotInitialized),
        runtime(AllocatorBackend::Native),
        runtime(AllocatorBackend::CudaMallocAsync),
        runtime(AllocatorBackend::Pluggable("Mine".into())),
        runtime(AllocatorBackend::Unknown("what".into())),
        function(0, "f", 3, 300),
        function(1, "<module>", 1, 70_000),
        frame(0, 1, 66_000),
        frame(1, 0, 4),
        stack(0, None, 0),
        stack(1, Some(0), 1),
        thread(0, Some(42), 1 << 46, Some("MainThread"), true),
        thread(1, None, 7, None, false),
        thread(1, None, 7, Some("loader"), false),
        Record::Source(SourceText {
            function: FunctionId(0),
            first_line: 3,
            text: "def f():\n    pass\n".into(),
        }),
        sample(5_000_000, threads.clone()),
        counters(5_000_100, 1),
        sample(10_000_300, threads),
        counters(10_000_400, 7),
        sample(15_000_000, moved),
        map(SnapshotConsistency::Consistent),
        map(degraded),
        usage(ProcessUsage::Bytes(5 << 30), Some(9)),
        usage(ProcessUsage::Unknown("no NVML".into()), None),
        missed(ReaderKind::Stacks, MissReason::Torn),
        missed(ReaderKind::Counters, MissReason::Late),
        missed(ReaderKind::Snapshots, MissReason::Failed("EFAULT".into())),
        missed(ReaderKind::Gpu, MissReason::Torn),
    ];
    records.push(Record::End(RecordingEnd {
        time: Nanos(16_000_000),
        reason: EndReason::Failed("disk".into()),
        totals: RecordingTotals {
            ticks: 1,
            late: 2,
            stacks: 3,
            torn: 4,
            snapshots_consistent: 5,
            snapshots_degraded: 6,
            exact: None,
            follow: None,
            cost: None,
        },
    }));
    records
}

/// Files of version 1 exist: this one must always read the same.
#[test]
fn the_golden_file_of_version_1_still_reads() {
    reads_as_ever("trace-v1.memspy", &golden());
}

const HEAD: &[u8] = &[0, 7, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn payloads_that_do_not_follow_the_format_are_damage() {
    for bad in [
        // A record longer than its block; one that ends in the middle of a number; no length at
        // all.
        &[9, 40, 1][..],
        &[11, 2, 251, 0],
        &[11],
        // A sample that needs a previous one; one with an unknown activity.
        &[11, 1, 0],
        &[9, 5, 0, 1, 0, 0, 6],
        // False lengths: threads, command words, blocks, kept segments.
        b"\x09\x0a\x00\xfd\xff\xff\xff\xff\xff\xff\xff\x0f",
        b"\x01\x0d\x010\x09\x01h\xfc\xff\xff\xff\x7f\x00\x00\x00",
        b"\x0d\x12\x00\x00\x00\x00\x06\x01\x08\x03\x05\x01\x02\xfc\xfe\xff\xff\xff\x00\x00",
        b"\x0d\x09\x00\x00\x00\x00\xfc\xfc\xff\xff\xff",
        // Text that is not UTF-8.
        b"\x03\x05\x01\xff\x00\x00\x00",
    ] {
        let (records, summary) = read(&file(&[&[HEAD, bad]]));
        assert_eq!((records.len(), summary.damaged_places), (0, 1), "{bad:?}");
        assert!(summary.first_damage.is_some_and(|d| d.offset == 10));
    }
    // Without a head a block is unreadable.
    let (_, summary) = read(&file(&[&[&[11, 1, 0]]]));
    assert_eq!((summary.blocks, summary.damaged_places), (0, 1));
}

#[test]
fn a_payload_of_false_huge_size_is_refused_without_allocation() {
    // Frame header with an eight-byte content size of 2^60.
    let mut body = vec![0x28, 0xB5, 0x2F, 0xFD, 0xE0];
    body.extend_from_slice(&(1u64 << 60).to_le_bytes());
    body.extend_from_slice(&[1, 0, 0]);
    let mut bytes = b"MEMSPY\r\n\x01\x00".to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    let (_, summary) = read(&bytes);
    assert!(summary.first_damage.is_some_and(|d| d.why.contains("larger")));
}
