//! Proptest strategies for records of exact recordings. Their numbers are fitted elsewhere.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use memspy::model::{
    AddressSpace, AllocationSite, CounterCheck, CounterSnapshot, CudaIndex, Definition,
    DriverEvent, Event, EventBatch, EventKind, EventTotals, ExactSettings, FreeTracking,
    MemoryKind, Nanos, NativeFrames, ProbeBackend, Record, SiteId, StackId, StackSource, ThreadId,
};

use super::any_record::{number, text};

fn signed() -> impl Strategy<Value = i64> + Clone {
    number().prop_map(|v| v as i64)
}

/// Few, so that devices repeat.
fn device() -> impl Strategy<Value = CudaIndex> + Clone {
    prop_oneof![4 => Just(0), 2 => 1..3u32, 1 => 0..1024u32].prop_map(CudaIndex)
}

/// Heap addresses: some repeat, some are arbitrary.
fn address() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![(0..40u64).prop_map(|n| 0x7F00_0000_0000 + n * 512), number()]
}

fn memory_kind() -> impl Strategy<Value = MemoryKind> + Clone {
    prop_oneof![
        4 => device().prop_map(MemoryKind::Torch),
        1 => option::of(any::<u32>().prop_map(CudaIndex)).prop_map(MemoryKind::Driver),
        1 => option::of(any::<u32>().prop_map(CudaIndex)).prop_map(MemoryKind::Physical),
        1 => Just(MemoryKind::Mapping),
        1 => Just(MemoryKind::Managed),
        1 => Just(MemoryKind::PinnedHost),
    ]
}

fn levels() -> impl Strategy<Value = CounterSnapshot> + Clone {
    let grown = (0..9i64, 0..9i64).prop_map(|(allocated, peak)| CounterSnapshot {
        allocated: allocated * 512,
        peak: peak * 512,
        reserved: 1 << 21,
        active: (allocated + 1) * 512,
    });
    let any =
        (signed(), signed(), signed(), signed()).prop_map(|(allocated, peak, reserved, active)| {
            CounterSnapshot { allocated, peak, reserved, active }
        });
    prop_oneof![3 => grown, 1 => any]
}

fn change() -> impl Strategy<Value = EventKind> {
    let block = option::of(prop_oneof![Just(None), number().prop_map(Some)]);
    let allocated = (memory_kind(), address(), number(), option::of(levels()), block).prop_map(
        |(memory_kind, address, size, levels, block)| {
            let is_torch = matches!(memory_kind, MemoryKind::Torch(_));
            let levels = levels.filter(|_| is_torch);
            let rounded = size.max(1).checked_next_multiple_of(512);
            let block = block.map(|other| other.or(rounded).unwrap_or(size)).filter(|_| is_torch);
            EventKind::Allocated { memory_kind, address, size, levels, block }
        },
    );
    let freed = (memory_kind(), address()).prop_map(|(memory_kind, address)| EventKind::Freed {
        memory_kind: memory_kind.freed(),
        address,
        in_backward: false,
    });
    let failed = (memory_kind(), number(), any::<u32>())
        .prop_map(|(memory_kind, size, code)| EventKind::Failed { memory_kind, size, code });
    let marks =
        [DriverEvent::ContextCreated, DriverEvent::ModuleLoaded, DriverEvent::LibraryLoaded];
    let torch = (address(), any::<bool>()).prop_map(|(address, in_backward)| EventKind::Freed {
        memory_kind: AddressSpace::Torch,
        address,
        in_backward,
    });
    prop_oneof![
        4 => allocated,
        2 => torch,
        1 => freed,
        1 => failed,
        1 => (0..3usize).prop_map(move |mark| EventKind::Marked(marks[mark])),
    ]
}

/// Includes time orders that no recorder writes.
pub fn events() -> impl Strategy<Value = Record> {
    let event = (number(), change(), option::of(any::<u32>().prop_map(SiteId)))
        .prop_map(|(time, change, site)| Event { time: Nanos(time), change, site });
    vec(event, 0..40).prop_map(|events| Record::Events(EventBatch { events }))
}

pub fn exact() -> impl Strategy<Value = Record> {
    use ProbeBackend::{PerfSamples, PerfUprobes, UprobeMulti};
    let texts = || vec(text().prop_map(Into::into), 0..4);
    (
        number(),
        0..3usize,
        0..3usize,
        (number(), number()),
        any::<[bool; 3]>(),
        (texts(), texts(), option::of(number())),
    )
        .prop_map(|(time, way, frees, stacks, backward, (probes, uncovered, native_from))| {
            Record::ExactSettings(ExactSettings {
                time: Nanos(time),
                backend: [UprobeMulti, PerfUprobes, PerfSamples][way],
                frees: [FreeTracking::Events, FreeTracking::Stacks, FreeTracking::Snapshots][frees],
                stacks_from: stacks.0,
                stacks_every: stacks.1,
                backward_lines: backward[0],
                native_from,
                knows_backward: backward[1],
                starts_empty: backward[2],
                probes,
                uncovered,
            })
        })
}

pub fn counter_check() -> impl Strategy<Value = Record> {
    (number(), any::<u32>(), signed(), option::of(signed()), signed()).prop_map(
        |(time, device, allocations, frees, requested)| {
            Record::CounterCheck(CounterCheck {
                time: Nanos(time),
                device: CudaIndex(device),
                allocations,
                frees,
                requested,
            })
        },
    )
}

pub fn site() -> impl Strategy<Value = Record> {
    use StackSource::{Backward, Borrowed, NoPython, NotTaken, Own, Sampled, Unknown};
    let sources = [Own, Backward, Borrowed, NoPython, NotTaken, Unknown, Sampled];
    let stack = || option::of(any::<u32>().prop_map(StackId));
    let native = prop_oneof![
        Just(NativeFrames::NotTaken),
        Just(NativeFrames::Lost),
        any::<u32>().prop_map(|stack| NativeFrames::Stack(StackId(stack))),
    ];
    (any::<u32>(), stack(), 0..7usize, any::<bool>(), option::of(text()), stack(), native).prop_map(
        move |(thread, stack, source, truncated, node, forward, native)| {
            let site = AllocationSite {
                thread: ThreadId(thread),
                stack,
                source: sources[source],
                truncated,
                node: node.map(Into::into),
                forward,
                native,
            };
            Record::Definition(Definition::Site(SiteId(0), site))
        },
    )
}

pub fn totals() -> impl Strategy<Value = EventTotals> {
    vec(number(), 10).prop_map(|n| EventTotals {
        allocations: n[0],
        frees: n[1],
        lost: n[2],
        truncated: n[3],
        borrowed: n[4],
        faulted: n[5],
        unknown: n[6],
        no_python: n[7],
        native: n[8],
        native_lost: n[9],
    })
}
