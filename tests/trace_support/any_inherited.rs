//! Proptest strategies for the state that a recording inherits from its dropped start.

use memspy::model::{
    AllocationSource, AttributionShare, CounterSnapshot, CudaIndex, Keyframe, KeyframeBlock,
    KeyframeMemory, MemoryKind, Nanos, OomException, RaisedError, Record, SiteId, StackId,
    ThreadId, TriggerFired,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::any_record::{number, text};

/// A time within the range of "plus 1".
fn time() -> impl Strategy<Value = Nanos> + Clone {
    number().prop_map(|n| Nanos(n.min(u64::MAX - 1)))
}

fn allocation_source() -> impl Strategy<Value = AllocationSource> {
    let share = (option::of((any::<u32>(), any::<u32>())), number()).prop_map(|(by, weight)| {
        AttributionShare {
            by: by.map(|(thread, stack)| (ThreadId(thread), StackId(stack))),
            weight,
        }
    });
    prop_oneof![
        Just(AllocationSource::Before),
        vec((vec(text(), 0..3), number()), 0..3).prop_map(|owners| {
            let path = |path: Vec<String>| path.into_iter().map(Into::into).collect::<Vec<_>>();
            let owner = |(steps, weight)| (path(steps).into(), weight);
            AllocationSource::BeforeOwned(owners.into_iter().map(owner).collect())
        }),
        Just(AllocationSource::NoEvent),
        Just(AllocationSource::Lost),
        Just(AllocationSource::NotTaken),
        any::<u32>().prop_map(|site| AllocationSource::Site(SiteId(site))),
        (vec(share, 0..4), option::of(time()), any::<bool>()).prop_map(
            |(shares, span, contested)| AllocationSource::Observed { shares, span, contested }
        ),
    ]
}

fn memory(allocation_sources: usize) -> impl Strategy<Value = KeyframeMemory> {
    let memory_kind = prop_oneof![
        (0..9u32).prop_map(|device| MemoryKind::Torch(CudaIndex(device))),
        option::of(any::<u32>().prop_map(CudaIndex)).prop_map(MemoryKind::Driver),
        Just(MemoryKind::Managed),
        Just(MemoryKind::PinnedHost),
    ];
    let levels = (any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>()).prop_map(
        |(allocated, peak, reserved, active)| CounterSnapshot { allocated, peak, reserved, active },
    );
    let block = (number(), number(), number(), number(), number(), any::<bool>(), any::<u32>());
    let block = block.prop_map(
        move |(address, size, requested, stands_for, born, small, allocation_source)| {
            let (born, allocation_source) =
                (Nanos(born), allocation_source % allocation_sources.max(1) as u32);
            KeyframeBlock {
                address,
                size,
                requested,
                stands_for,
                allocated_at: born,
                small,
                allocation_source,
            }
        },
    );
    let most = if allocation_sources == 0 { 1 } else { 20 };
    (memory_kind, option::of(time()), option::of(levels), number(), vec(block, 0..most)).prop_map(
        |(memory_kind, mapped, levels, freed_since, blocks)| KeyframeMemory {
            memory_kind,
            mapped,
            levels,
            freed_since,
            blocks,
        },
    )
}

pub fn inherited() -> impl Strategy<Value = Record> {
    (time(), vec(allocation_source(), 0..5))
        .prop_flat_map(|(time, allocation_sources)| {
            (Just((time, allocation_sources.clone())), vec(memory(allocation_sources.len()), 0..3))
        })
        .prop_map(|((time, allocation_sources), memory)| {
            Record::Keyframe(Keyframe { time, allocation_sources, memory })
        })
}

/// Maps the numbers of an allocation site into the defined range.
pub fn fit(allocation_source: &mut AllocationSource, threads: u32, stacks: u32, sites: u32) {
    match allocation_source {
        AllocationSource::Site(_) if sites == 0 => *allocation_source = AllocationSource::Lost,
        AllocationSource::Site(site) => site.0 %= sites,
        AllocationSource::Observed { shares, .. } => {
            for share in shares {
                share.by = share.by.filter(|_| threads > 0 && stacks > 0).map(|(thread, stack)| {
                    (ThreadId(thread.0 % threads), StackId(stack.0 % stacks))
                });
            }
        }
        _ => {}
    }
}

pub fn triggered() -> impl Strategy<Value = Record> {
    (number(), text(), text()).prop_map(|(time, condition, seen)| {
        Record::TriggerFired(TriggerFired { time: Nanos(time), condition, seen })
    })
}

pub fn oom_exception() -> impl Strategy<Value = Record> {
    let number_of = || option::of(any::<u32>());
    (number(), option::of((number_of(), number_of(), text()))).prop_map(|(time, error)| {
        let error = error.map(|(thread, stack, text)| RaisedError {
            thread: thread.map(ThreadId),
            stack: stack.map(StackId),
            text,
        });
        Record::OomException(OomException { time: Nanos(time), error })
    })
}
