//! Any looks at holders.

use memspy::model::{
    Category, CudaIndex, HeldOnDevice, HeldStorages, HolderSnapshot, NamelessBlock, Nanos, Record,
    Step, StepClock,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::any_record::{number, text};

pub fn holders() -> impl Strategy<Value = Record> {
    let held =
        (0..6usize, text(), number(), number()).prop_map(|(category, holder, bytes, count)| {
            HeldStorages { category: Category::ALL[category], holder: holder.into(), bytes, count }
        });
    let sizes = (number(), number(), number(), option::of(number()));
    let device = (any::<u32>(), sizes, vec(held, 0..5)).prop_map(
        |(device, (allocated, rounding, without_tensor, results), held)| HeldOnDevice {
            device: CudaIndex(device),
            allocated,
            rounding,
            without_tensor,
            results,
            held,
        },
    );
    let nameless = (any::<u32>(), option::of(any::<u32>()), number(), number());
    let all = (number(), option::of(number()), vec(device, 0..3), vec(nameless, 0..4));
    all.prop_map(|(time, pause, devices, nameless)| {
        // Each names a device and a holder that is there.
        let fit = |(device, held, address, bytes): (u32, Option<u32>, u64, u64)| {
            let device = device.checked_rem(devices.len() as u32)?;
            let holders = devices[device as usize].held.len() as u32;
            let held = held.and_then(|held| held.checked_rem(holders));
            Some(NamelessBlock { device, held, address, bytes })
        };
        let nameless: Vec<_> = nameless.into_iter().filter_map(fit).collect();
        let (time, pause) = (Nanos(time), pause.map(Nanos));
        let age = Nanos(time.0 / 2);
        Record::Holders(HolderSnapshot { time, pause, devices, age, nameless })
    })
}

pub fn step() -> impl Strategy<Value = Record> {
    let clock = prop_oneof![
        Just(StepClock::Optimizer),
        Just(StepClock::Variable),
        Just(StepClock::Trainer),
        Just(StepClock::Scheduler)
    ];
    (number(), number(), option::of(number()), clock, option::of(number()), any::<bool>()).prop_map(
        |(time, step, epoch, clock, within, is_over)| {
            let within = within.map(Nanos);
            Record::Step(Step { time: Nanos(time), step, epoch, clock, within, is_over })
        },
    )
}
