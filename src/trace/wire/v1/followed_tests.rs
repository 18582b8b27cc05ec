//! Tests of encoding counter deltas.

use super::*;
use proptest::prelude::*;

fn changes() -> Vec<FollowedChange> {
    let single =
        |n, a, f| CounterDelta { allocations: n, allocated_bytes: a, requested_bytes: a - 12, ..f };
    let none = CounterDelta::default();
    let freed = CounterDelta {
        frees: 1,
        freed_bytes: 2 << 20,
        freed_requested_bytes: (2 << 20) - 1,
        ..none
    };
    let odd = CounterDelta {
        allocations: i64::MIN,
        frees: i64::MAX,
        allocated_bytes: -1,
        freed_bytes: 513,
        requested_bytes: i64::MAX,
        freed_requested_bytes: i64::MIN,
    };
    let amounts = [
        (single(1, 1024, none), none),
        (none, single(1, 20 << 20, none)),
        (freed, none),
        (none, freed),
        (none, none),
        (single(2, 1024, freed), single(1, 4 << 20, none)),
        (odd, odd),
    ];
    let readings = [
        StackReading::Whole(StackId(7)),
        StackReading::Whole(StackId(u32::MAX)),
        StackReading::Torn,
        StackReading::NoFrames,
        StackReading::NotRead,
    ];
    let mut live = [0; 2];
    (0u32..)
        .zip(amounts.into_iter().cycle().take(21))
        .map(|(i, (small, large))| {
            let n = i as usize;
            let mut change = FollowedChange {
                before: Nanos(u64::from(i) * 1000),
                after: Nanos(u64::from(i) * 1000 + 700),
                device: CudaIndex(i % 5 / 4),
                small,
                large,
                live,
                threads: (0..i % 4)
                    .map(|t| {
                        let [before, after] = [readings[n % 5], readings[(n / 3) % 5]];
                        let wait = match before == after && before.stack().is_some() {
                            true if t == 0 => ThreadWait::Throughout,
                            _ => ThreadWait::from([n & 2 == 0, n & 4 == 0]),
                        };
                        let thread = ThreadId(t);
                        FollowedThread { thread, before, after, held_lock: t == 1, wait }
                    })
                    .collect(),
                others_possible: i % 3 == 0,
                counters_torn: i % 7 == 1,
                totals_reset: i % 11 == 1,
                addresses: None,
            };
            change.live = expected_live(&live, &change);
            change.live[0] += i64::from(i / 12);
            live = change.live;
            change
        })
        .collect()
}

fn encoded(
    state: &mut WireFollowedState,
    clock: &mut BlockClock,
    changes: &[FollowedChange],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.encode(changes, clock, &mut bytes).unwrap();
    bytes
}

fn decoded(
    state: &mut WireFollowedState,
    clock: &mut BlockClock,
    bytes: &[u8],
) -> Result<Vec<FollowedChange>, MalformedPayload> {
    let mut changes = Vec::new();
    state.decode(&mut PayloadCursor(bytes), clock, &mut changes, Some, Some).map(|()| changes)
}

#[test]
fn every_delta_reads_back_twice() {
    let (mut write, mut read) = (WireFollowedState::default(), WireFollowedState::default());
    let mut clocks = [BlockClock::default(); 2];
    for _ in 0..2 {
        let bytes = encoded(&mut write, &mut clocks[0], &changes());
        assert_eq!(decoded(&mut read, &mut clocks[1], &bytes), Ok(changes()));
    }
}

#[test]
fn truncated_bytes_are_refused() {
    let bytes = encoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &changes());
    for length in 0..bytes.len() {
        let read = decoded(
            &mut WireFollowedState::default(),
            &mut BlockClock::default(),
            &bytes[..length],
        );
        assert!(read.is_err(), "{length}");
    }
}

#[test]
fn a_delta_survives_lost_threads_and_stacks() {
    let bytes = encoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &changes());
    let mut read = Vec::new();
    let odd = |n: u32| (n % 2 == 1).then_some(n);
    WireFollowedState::default()
        .decode(&mut PayloadCursor(&bytes), &mut BlockClock::default(), &mut read, odd, |_| None)
        .unwrap();
    assert_eq!(read.len(), changes().len());
    for (read, written) in read.iter().zip(changes()) {
        assert_eq!(
            (read.small, read.large, read.live),
            (written.small, written.large, written.live)
        );
        assert_eq!(read.threads.len(), written.threads.len() / 2);
        assert!(read.threads.iter().all(|t| t.before.stack().is_none()));
        assert!(read.others_possible || written.threads.is_empty());
    }
}

#[test]
fn a_single_allocation_takes_few_bytes() {
    let change = |i: u64| FollowedChange {
        before: Nanos(i * 20_000),
        after: Nanos(i * 20_000 + 1_500),
        device: CudaIndex(0),
        small: single_delta(0, 4096, 4000),
        large: CounterDelta::default(),
        live: [4096 * (i as i64 + 1), 0],
        threads: vec![FollowedThread {
            thread: ThreadId(0),
            before: StackReading::Whole(StackId(3000)),
            after: StackReading::Whole(StackId(3000)),
            held_lock: false,
            wait: ThreadWait::Unknown,
        }],
        others_possible: false,
        counters_torn: false,
        totals_reset: false,
        addresses: None,
    };
    let many: Vec<_> = (0..1000).map(change).collect();
    let bytes = encoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &many);
    assert!(bytes.len() < 16 * many.len(), "{} bytes", bytes.len());
    assert_eq!(
        decoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &bytes),
        Ok(many)
    );
}

proptest! {
    #[test]
    fn damaged_bytes_are_refused_or_decode_to_deltas(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes =
            encoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &changes());
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let read = |bytes: &[u8]| {
            decoded(&mut WireFollowedState::default(), &mut BlockClock::default(), bytes)
        };
        if let Ok(changes) = read(&bytes) {
            let again =
                encoded(&mut WireFollowedState::default(), &mut BlockClock::default(), &changes);
            prop_assert_eq!(read(&again), Ok(changes));
        }
    }
}
