//! Proptest strategies for owner snapshots.

use memspy::model::{
    CudaIndex, DeviceOwners, FreedBytes, Nanos, OwnedBlock, OwnedStorages, OwnershipBreakdown,
    Record, RetainedReference, StepSource, TensorCategory, TensorDevice, TrainingStep,
    UnnamedBlock,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::any_record::{number, text};

pub fn owners() -> impl Strategy<Value = Record> {
    let held =
        (0..6usize, text(), number(), number()).prop_map(|(category, owner, bytes, count)| {
            OwnedStorages {
                category: TensorCategory::ALL[category],
                owner: owner.into(),
                bytes,
                count,
            }
        });
    let sizes = (number(), number(), number(), option::of(number()));
    let device = (any::<u32>(), sizes, vec(held, 0..5)).prop_map(
        |(device, (allocated, rounding, without_tensor, results), held)| DeviceOwners {
            device: CudaIndex(device),
            allocated,
            rounding,
            without_tensor,
            results,
            held,
        },
    );
    let unnamed_blocks = (any::<u32>(), option::of(any::<u32>()), number(), number());
    let shares = vec((any::<u32>(), number()), 0..3);
    let blocks = vec((any::<u32>(), number(), shares), 0..4);
    let unnamed_blocks = vec(unnamed_blocks, 0..4);
    let frees = vec((any::<u8>(), option::of(any::<u8>()), number(), number()), 0..3);
    let retained = vec((text(), any::<bool>(), frees), 0..3);
    let all = (number(), option::of(number()), vec(device, 0..3), unnamed_blocks, blocks, retained);
    all.prop_map(|(time, pause, devices, unnamed_blocks, blocks, retained)| {
        // Each names an existing device and owner.
        let fit = |(device, held, address, bytes): (u32, Option<u32>, u64, u64)| {
            let device = device.checked_rem(devices.len() as u32)?;
            let owners = devices[device as usize].held.len() as u32;
            let held = held.and_then(|held| held.checked_rem(owners));
            Some(UnnamedBlock { device, held, address, bytes })
        };
        let unnamed_blocks: Vec<_> = unnamed_blocks.into_iter().filter_map(fit).collect();
        let fit = |(device, address, shares): (u32, u64, Vec<(u32, u64)>)| {
            let device = device.checked_rem(devices.len() as u32)?;
            let owners = devices[device as usize].held.len() as u32;
            let share = |(held, bytes): (u32, u64)| Some((held.checked_rem(owners)?, bytes / 4));
            let shares: Vec<_> = shares.into_iter().filter_map(share).collect();
            let size = shares.iter().map(|(_, bytes)| bytes).sum::<u64>().saturating_add(7);
            Some(OwnedBlock { device, address, size, shares })
        };
        let blocks: Vec<_> = blocks.into_iter().filter_map(fit).collect();
        let (time, pause) = (Nanos(time), pause.map(Nanos));
        let age = Nanos(time.0 / 2);
        let retained = retained.into_iter().map(|(name, is_least, frees)| {
            let freed = |(kind, index, at_once, after_collect)| FreedBytes {
                device: TensorDevice { kind, index },
                at_once,
                after_collect,
            };
            let frees = frees.into_iter().map(freed).collect();
            RetainedReference { name: name.into(), is_least, frees }
        });
        Record::Ownership(OwnershipBreakdown {
            time,
            pause,
            devices,
            age,
            unnamed_blocks,
            blocks,
            retained: retained.collect(),
        })
    })
}

pub fn step() -> impl Strategy<Value = Record> {
    let clock = prop_oneof![
        Just(StepSource::Optimizer),
        Just(StepSource::Variable),
        Just(StepSource::Trainer),
        Just(StepSource::Scheduler)
    ];
    (number(), number(), option::of(number()), clock, option::of(number()), any::<bool>()).prop_map(
        |(time, step, epoch, clock, within, is_over)| {
            let within = within.map(Nanos);
            Record::Step(TrainingStep {
                time: Nanos(time),
                step,
                epoch,
                clock,
                uncertainty: within,
                is_over,
            })
        },
    )
}
