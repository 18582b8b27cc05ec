//! Proptest strategies: anything that a recording inherits from its dropped beginning.

use memspy::model::{
    Arena, CudaIndex, Inherited, InheritedBlock, InheritedMemory, Levels, Maker, Nanos, Record,
    Share, SiteId, StackId, ThreadId, Thrown, ThrownError, Triggered,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::any_record::{number, text};

/// A time that is not beyond what "plus 1" can tell.
fn time() -> impl Strategy<Value = Nanos> + Clone {
    number().prop_map(|n| Nanos(n.min(u64::MAX - 1)))
}

fn maker() -> impl Strategy<Value = Maker> {
    let share = (option::of((any::<u32>(), any::<u32>())), number()).prop_map(|(by, weight)| {
        Share { by: by.map(|(thread, stack)| (ThreadId(thread), StackId(stack))), weight }
    });
    prop_oneof![
        Just(Maker::Before),
        Just(Maker::NoEvent),
        Just(Maker::Lost),
        Just(Maker::NotTaken),
        any::<u32>().prop_map(|site| Maker::Site(SiteId(site))),
        (vec(share, 0..4), option::of(time()))
            .prop_map(|(shares, span)| Maker::Seen { shares, span }),
    ]
}

fn memory(makers: usize) -> impl Strategy<Value = InheritedMemory> {
    let arena = prop_oneof![
        (0..9u32).prop_map(|device| Arena::Torch(CudaIndex(device))),
        option::of(any::<u32>().prop_map(CudaIndex)).prop_map(Arena::Driver),
        Just(Arena::Managed),
        Just(Arena::PinnedHost),
    ];
    let levels = (any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>()).prop_map(
        |(allocated, peak, reserved, active)| Levels { allocated, peak, reserved, active },
    );
    let block = (number(), number(), number(), number(), number(), any::<bool>(), any::<u32>());
    let block =
        block.prop_map(move |(address, size, requested, stands_for, born, small, maker)| {
            let (born, maker) = (Nanos(born), maker % makers.max(1) as u32);
            InheritedBlock { address, size, requested, stands_for, born, small, maker }
        });
    let most = if makers == 0 { 1 } else { 20 };
    (arena, option::of(time()), option::of(levels), number(), vec(block, 0..most)).prop_map(
        |(arena, mapped, levels, freed_since, blocks)| InheritedMemory {
            arena,
            mapped,
            levels,
            freed_since,
            blocks,
        },
    )
}

pub fn inherited() -> impl Strategy<Value = Record> {
    (time(), vec(maker(), 0..5))
        .prop_flat_map(|(time, makers)| {
            (Just((time, makers.clone())), vec(memory(makers.len()), 0..3))
        })
        .prop_map(|((time, makers), memory)| Record::Inherited(Inherited { time, makers, memory }))
}

/// Brings what a maker uses into the range of what is defined.
pub fn fit(maker: &mut Maker, threads: u32, stacks: u32, sites: u32) {
    match maker {
        Maker::Site(_) if sites == 0 => *maker = Maker::Lost,
        Maker::Site(site) => site.0 %= sites,
        Maker::Seen { shares, .. } => {
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
        Record::Triggered(Triggered { time: Nanos(time), condition, seen })
    })
}

pub fn thrown() -> impl Strategy<Value = Record> {
    let number_of = || option::of(any::<u32>());
    (number(), option::of((number_of(), number_of(), text()))).prop_map(|(time, error)| {
        let error = error.map(|(thread, stack, text)| ThrownError {
            thread: thread.map(ThreadId),
            stack: stack.map(StackId),
            text,
        });
        Record::Thrown(Thrown { time: Nanos(time), error })
    })
}
