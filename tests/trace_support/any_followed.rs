//! Proptest strategies for counter deltas. Their numbers are fitted elsewhere.

use proptest::collection::vec;
use proptest::prelude::*;

use memspy::model::{
    AddressedBlock, CounterDelta, CudaIndex, FollowTotals, FollowedAddresses, FollowedChange,
    FollowedChanges, FollowedThread, Nanos, Record, StackId, StackReading, ThreadId,
};

use super::any_record::number;

fn delta() -> impl Strategy<Value = CounterDelta> {
    let none = CounterDelta::default();
    let one = (1..9i64).prop_map(move |n| CounterDelta {
        allocations: 1,
        allocated_bytes: n * 512,
        requested_bytes: n * 512 - n,
        ..none
    });
    let freed = (1..9i64).prop_map(move |n| CounterDelta {
        frees: 1,
        freed_bytes: n * 512,
        freed_requested_bytes: n * 512 - n,
        ..none
    });
    let any = vec(number(), 6).prop_map(|n| CounterDelta {
        allocations: n[0] as i64,
        frees: n[1] as i64,
        allocated_bytes: n[2] as i64,
        freed_bytes: n[3] as i64,
        requested_bytes: n[4] as i64,
        freed_requested_bytes: n[5] as i64,
    });
    prop_oneof![3 => Just(none), 2 => one, 2 => freed, 1 => any]
}

fn reading() -> impl Strategy<Value = StackReading> {
    prop_oneof![
        4 => (0..5u32).prop_map(|n| StackReading::Whole(StackId(n))),
        1 => Just(StackReading::Torn),
        1 => Just(StackReading::NoFrames),
        1 => Just(StackReading::NotRead),
    ]
}

/// Includes time orders that no poller writes.
pub fn followed() -> impl Strategy<Value = Record> {
    let waits = any::<[bool; 2]>();
    let thread = (0..3u32, reading(), reading(), any::<bool>(), waits).prop_map(
        |(thread, before, after, held_lock, waits)| FollowedThread {
            thread: ThreadId(thread),
            before,
            after,
            held_lock,
            wait: waits.into(),
        },
    );
    let change = (
        (number(), number()),
        prop_oneof![4 => Just(0), 1 => 0..1024u32],
        (delta(), delta()),
        (number(), number()),
        vec(thread, 0..=FollowedChange::MAX_THREADS),
        any::<[bool; 3]>(),
        proptest::option::of(addresses()),
    )
        .prop_map(
            |((before, after), device, (small, large), live, threads, flags, addresses)| {
                FollowedChange {
                    before: Nanos(before),
                    after: Nanos(after),
                    device: CudaIndex(device),
                    small,
                    large,
                    live: [live.0 as i64, live.1 as i64],
                    threads,
                    others_possible: flags[0],
                    counters_torn: flags[1],
                    totals_reset: flags[2],
                    addresses: addresses.map(Box::new),
                }
            },
        );
    vec(change, 0..20).prop_map(|changes| Record::Followed(FollowedChanges { changes }))
}

fn addresses() -> impl Strategy<Value = FollowedAddresses> {
    let block = (number(), number(), number());
    let block =
        block.prop_map(|(address, size, requested)| AddressedBlock { address, size, requested });
    (any::<u32>(), vec(block, 0..4), vec(number(), 0..4))
        .prop_map(|(changes, allocated, freed)| FollowedAddresses { changes, allocated, freed })
}

/// Maps the numbers used into the defined range.
pub fn fit(change: &mut FollowedChange, threads: u32, stacks: u32) {
    change.threads.retain_mut(|entry| {
        entry.thread.0 %= threads.max(1);
        for reading in [&mut entry.before, &mut entry.after] {
            if let StackReading::Whole(stack) = reading {
                stack.0 %= stacks.max(1);
                if stacks == 0 {
                    *reading = StackReading::NotRead;
                }
            }
        }
        threads > 0
    });
}

pub fn totals() -> impl Strategy<Value = FollowTotals> {
    vec(number(), 8).prop_map(|n| FollowTotals {
        polls: n[0],
        polling_nanos: n[1],
        cpu_nanos: n[2],
        slow_poll_nanos: n[3],
        changes: n[4],
        single_changes: n[5],
        steady_changes: n[6],
        held_back: n[7],
    })
}
