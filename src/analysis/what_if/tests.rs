//! Records of a recording become events; replays are compared.

use super::*;
use crate::model::{
    AddressSpace, AllocatorSnapshot, Block, BlockState, CounterSnapshot, Event, EventBatch,
    EventKind, ExactSettings, MemoryKind, Nanos, PoolId, Record, RecordSink, Segment,
    SnapshotConsistency,
};

const DEVICE: CudaIndex = CudaIndex(0);
const MIB: u64 = 1 << 20;

fn event(time: u64, change: EventKind) -> Event {
    Event { time: Nanos(time), change, site: None }
}

/// `reserved` and the bytes that wait for a stream, right after.
fn allocated(time: u64, address: u64, size: u64, reserved: u64, waits: u64) -> Event {
    let levels =
        CounterSnapshot { allocated: 0, peak: 0, reserved: reserved as i64, active: waits as i64 };
    let memory_kind = MemoryKind::Torch(DEVICE);
    let levels = Some(levels);
    event(time, EventKind::Allocated { memory_kind, address, size, levels, block: None })
}

fn freed(time: u64, memory_kind: AddressSpace, address: u64) -> Event {
    event(time, EventKind::Freed { memory_kind, address, in_backward: false })
}

fn driver(time: u64, address: u64, size: u64) -> Event {
    let memory_kind = MemoryKind::Driver(Some(DEVICE));
    event(time, EventKind::Allocated { memory_kind, address, size, levels: None, block: None })
}

fn refused(time: u64) -> Event {
    let memory_kind = MemoryKind::Driver(None);
    event(time, EventKind::Failed { memory_kind, size: MIB, code: 2 })
}

fn segment(address: u64, stream: u64, pool: PoolId, blocks: &[(u64, BlockState)]) -> Segment {
    let mut at = address;
    let blocks: Vec<Block> = blocks
        .iter()
        .map(|&(size, state)| {
            at += size;
            Block { address: at - size, size, requested: size, state }
        })
        .collect();
    Segment {
        address,
        size: at - address,
        stream,
        small: false,
        expandable: false,
        granule: 0,
        retired: false,
        pool,
        blocks,
    }
}

fn snapshot(time: u64, segments: Vec<Segment>) -> Record {
    Record::Snapshot(AllocatorSnapshot {
        time: Nanos(time),
        device: DEVICE,
        retries: 0,
        consistency: SnapshotConsistency::Consistent,
        segments,
    })
}

fn events(events: Vec<Event>) -> Record {
    Record::Events(EventBatch { events })
}

fn recorded(starts_empty: bool, records: Vec<Record>) -> RecordedAllocations {
    let mut builder = ReplayBuilder::new(DEVICE);
    let settings = ExactSettings { starts_empty, ..ExactSettings::default() };
    builder.record(&Record::ExactSettings(settings)).unwrap();
    for record in records {
        builder.record(&record).unwrap();
    }
    builder.finish().unwrap()
}

use ReplayEvent::{Allocate, EmptyCache, Free, Peak, Pool, Stream};

#[test]
fn blocks_are_numbers_and_the_peak_is_marked() {
    let recorded = recorded(
        true,
        vec![events(vec![
            allocated(1, 100, 512, 2 * MIB, 0),
            allocated(2, 200, 700, 4 * MIB, 0),
            freed(3, AddressSpace::Torch, 100),
            allocated(4, 300, 900, 4 * MIB, 0),
        ])],
    );
    assert_eq!(
        recorded.events,
        [
            Allocate { block: 0, size: 512 },
            Allocate { block: 1, size: 700 },
            Peak,
            Free { block: 0 },
            Allocate { block: 0, size: 900 },
        ]
    );
    assert_eq!((recorded.reserved_peak, recorded.blocks, recorded.streams), (4 * MIB, 2, 1));
    assert!(recorded.start.is_empty() && recorded.settings.is_empty());
}

#[test]
fn a_free_waits_as_long_as_another_stream_uses_the_block() {
    let recorded = recorded(
        true,
        vec![events(vec![
            allocated(1, 100, 512, MIB, 0),
            freed(2, AddressSpace::Torch, 100),
            allocated(3, 200, 1024, MIB, 512),
            allocated(4, 300, 1024, MIB, 0),
        ])],
    );
    let order = recorded.events.iter().filter(|event| **event != Peak);
    assert_eq!(
        order.copied().collect::<Vec<_>>(),
        [
            Allocate { block: 0, size: 512 },
            Allocate { block: 1, size: 1024 },
            Free { block: 0 },
            Allocate { block: 0, size: 1024 },
        ]
    );
    assert_eq!(recorded.gaps.undeferred, 0);
}

#[test]
fn an_emptied_cache_is_replayed_once_and_a_retry_is_left_to_pytorch() {
    let run = |released: Vec<Event>| {
        let mut all = vec![
            driver(1, 1000, 100),
            allocated(2, 1000, 50, MIB, 0),
            driver(3, 2000, 100),
            allocated(4, 2000, 50, 2 * MIB, 0),
            freed(5, AddressSpace::Torch, 1000),
            freed(5, AddressSpace::Torch, 2000),
        ];
        all.extend(released);
        all.push(allocated(9, 3000, 50, 2 * MIB, 0));
        let recorded = recorded(true, vec![events(all)]);
        recorded.events.iter().filter(|event| **event == EmptyCache).count()
    };
    let releases =
        || vec![freed(7, AddressSpace::Driver, 1000), freed(7, AddressSpace::Driver, 2000)];
    assert_eq!(run(vec![]), 0);
    assert_eq!(run(releases()), 1);
    // Memory of others than PyTorch.
    assert_eq!(run(vec![driver(6, 8000, 10), freed(7, AddressSpace::Driver, 8000)]), 0);
    assert_eq!(run([vec![refused(6)], releases()].concat()), 0);
}

#[test]
fn reserved_bytes_that_fall_are_an_emptied_cache_before_the_frees_that_follow_it() {
    let recorded = recorded(
        true,
        vec![events(vec![
            allocated(1, 100, 50, 4 * MIB, 0),
            allocated(2, 200, 50, 4 * MIB, 0),
            freed(3, AddressSpace::Torch, 100),
            freed(4, AddressSpace::Physical, 77),
            freed(5, AddressSpace::Torch, 200),
            allocated(6, 300, 50, 2 * MIB, 0),
        ])],
    );
    let tail = &recorded.events[3..];
    assert_eq!(tail[..3], [Free { block: 0 }, EmptyCache, Free { block: 1 }], "{tail:?}");
}

#[test]
fn streams_and_pools_come_from_the_segments() {
    let graph = PoolId(0, 3);
    let used = BlockState::Allocated;
    let segments = vec![
        segment(1000, 0, PoolId::default(), &[(500, used)]),
        segment(2000, 7, PoolId::default(), &[(500, used)]),
        segment(3000, 7, graph, &[(500, used)]),
    ];
    let recorded = recorded(
        true,
        vec![
            events(vec![
                allocated(1, 1000, 50, MIB, 0),
                allocated(2, 2000, 50, MIB, 0),
                allocated(3, 3000, 50, MIB, 0),
            ]),
            snapshot(4, segments),
            events(vec![allocated(5, 1100, 50, MIB, 0), allocated(6, 9000, 50, MIB, 0)]),
        ],
    );
    let moves = recorded.events.iter().filter(|it| matches!(it, Stream(_) | Pool(_)));
    assert_eq!(moves.copied().collect::<Vec<_>>(), [Stream(1), Pool(1), Stream(0), Pool(0)]);
    assert_eq!((recorded.streams, recorded.gaps.unplaced, recorded.gaps.private), (2, 1, 1));
}

#[test]
fn a_segment_at_an_old_address_may_be_of_another_stream() {
    let used = BlockState::Allocated;
    let of = |stream| vec![segment(1000, stream, PoolId::default(), &[(500, used)])];
    let recorded = recorded(
        true,
        vec![
            events(vec![driver(1, 1000, 500), allocated(2, 1000, 50, MIB, 0)]),
            snapshot(3, of(7)),
            events(vec![
                freed(4, AddressSpace::Torch, 1000),
                allocated(5, 1100, 50, MIB, 0),
                freed(6, AddressSpace::Torch, 1100),
                freed(7, AddressSpace::Driver, 1000),
                driver(8, 1000, 500),
                allocated(9, 1000, 50, MIB, 0),
            ]),
            snapshot(10, of(0)),
            // Of the same segment: not believed.
            snapshot(11, of(7)),
        ],
    );
    let moves = recorded.events.iter().filter(|it| matches!(it, Stream(_) | EmptyCache));
    assert_eq!(moves.copied().collect::<Vec<_>>(), [Stream(1), EmptyCache, Stream(0)]);
}

#[test]
fn what_is_older_is_made_first_in_its_segments() {
    use BlockState::{Allocated, Inactive};
    let blocks = [(4 * MIB, Allocated), (6 * MIB, Inactive), (10 * MIB, Allocated)];
    let segments = vec![segment(MIB, 0, PoolId::default(), &blocks)];
    let recorded = recorded(
        false,
        vec![
            snapshot(1, segments),
            events(vec![
                allocated(2, 5 * MIB, 6 * MIB, 20 * MIB, 0),
                freed(3, AddressSpace::Torch, MIB),
                allocated(4, 90 * MIB, 2 * MIB, 40 * MIB, 0),
            ]),
        ],
    );
    assert_eq!(
        recorded.start_with_cache,
        [
            Allocate { block: 2, size: 20 * MIB },
            Free { block: 2 },
            Allocate { block: 0, size: 4 * MIB },
            Allocate { block: 3, size: 6 * MIB },
            Allocate { block: 1, size: 10 * MIB },
            Free { block: 3 },
        ]
    );
    let live = [Allocate { block: 0, size: 4 * MIB }, Allocate { block: 1, size: 10 * MIB }];
    assert_eq!(recorded.start, live);
    let older = OlderMemory { live: 14 * MIB, live_at_peak: 10 * MIB, cached: 6 * MIB };
    assert_eq!(recorded.older, older);
    assert!(recorded.events.contains(&Free { block: 0 }));
}

#[test]
fn segments_keep_their_order_and_lose_the_gaps() {
    let recorded = recorded(
        true,
        vec![events(vec![
            driver(1, 90 * MIB, 2 * MIB),
            allocated(2, 90 * MIB, 50, MIB, 0),
            driver(3, 7 * MIB, MIB),
            driver(4, 20 * MIB, 4 * MIB),
            allocated(5, 21 * MIB, 50, MIB, 0),
            freed(6, AddressSpace::Driver, 90 * MIB),
            driver(7, 91 * MIB, 2 * MIB),
            allocated(8, 91 * MIB, 50, MIB, 0),
        ])],
    );
    // The one at 7 MiB is not PyTorch's; the last one overlaps one that is gone.
    let places = [(2 * MIB, 4 * MIB), (4 * MIB, 0), (2 * MIB, 5 * MIB)];
    assert_eq!(recorded.segments, places);
}

fn setting(settings: &str, reserved_peak: u64, out_of_memory: u64) -> ReplayedSetting {
    let outcome = ReplayOutcome {
        reserved_peak,
        allocated_peak: 0,
        at_peak: ReplayMoment::default(),
        at_end: ReplayMoment::default(),
        counts: ReplayCounts { out_of_memory, ..ReplayCounts::default() },
        torch: String::new(),
        seconds: 0.0,
    };
    ReplayedSetting { settings: settings.to_owned(), empties_at_steps: false, outcome }
}

#[test]
fn the_best_setting_is_one_that_is_worth_a_change() {
    let both = setting("expandable_segments:True,roundup_power2_divisions:8", 700, 0);
    let ties = vec![both, setting("expandable_segments:True", 700, 0)];
    let tied = SettingComparison::new((1000, 1000), setting("", 1000, 0), ties);
    assert_eq!(tied.best().unwrap().settings, "expandable_segments:True", "the simpler one");
    let compared = |others| SettingComparison::new((1000, 1005), setting("", 1005, 0), others);
    let comparison =
        compared(vec![setting("a", 700, 0), setting("b", 600, 0), setting("c", 500, 1)]);
    assert!(comparison.agrees());
    assert_eq!(comparison.best().unwrap().settings, "b");
    assert_eq!(comparison.saved(comparison.best().unwrap()), 405);
    assert_eq!(compared(vec![setting("a", 1000, 0)]).best(), None);
    assert_eq!(compared(vec![setting("a", 500, 1)]).best(), None);
    let failing =
        SettingComparison::new((1000, 980), setting("", 900, 2), vec![setting("a", 950, 0)]);
    assert_eq!(failing.best().unwrap().settings, "a");
    assert!(!failing.agrees() && !failing.always_fails());
    assert!(
        SettingComparison::new((1, 1), setting("", 1, 2), vec![setting("a", 1, 1)]).always_fails()
    );
    let mut retrying = setting("", 1000, 0);
    retrying.outcome.counts.retries = 3;
    let comparison = SettingComparison::new((1000, 1000), retrying, vec![setting("a", 1000, 0)]);
    assert_eq!(comparison.best().unwrap().settings, "a");
}
