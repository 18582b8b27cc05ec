//! Any looks at holders.

use memspy::model::{
    Category, CudaIndex, HeldOnDevice, HeldStorages, HolderSnapshot, Nanos, Record, Step, StepClock,
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
    let device = (any::<u32>(), number(), number(), number(), vec(held, 0..5)).prop_map(
        |(device, allocated, rounding, without_tensor, held)| HeldOnDevice {
            device: CudaIndex(device),
            allocated,
            rounding,
            without_tensor,
            held,
        },
    );
    (number(), option::of(number()), vec(device, 0..3)).prop_map(|(time, pause, devices)| {
        Record::Holders(HolderSnapshot { time: Nanos(time), pause: pause.map(Nanos), devices })
    })
}

pub fn step() -> impl Strategy<Value = Record> {
    let clock = prop_oneof![Just(StepClock::Optimizer), Just(StepClock::Variable)];
    (number(), number(), option::of(number()), clock).prop_map(|(time, step, epoch, clock)| {
        Record::Step(Step { time: Nanos(time), step, epoch, clock })
    })
}
