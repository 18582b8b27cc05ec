//! The record of who held the memory at one moment.

use bincode::{BorrowDecode, Encode};

use super::Malformed;
use crate::model;

#[derive(Encode, BorrowDecode)]
struct Held<'a> {
    category: u8,
    holder: &'a str,
    bytes: u64,
    count: u64,
}

#[derive(Encode, BorrowDecode)]
struct Device<'a> {
    device: u32,
    allocated: u64,
    rounding: u64,
    without_tensor: u64,
    held: Vec<Held<'a>>,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Holders<'a> {
    pause: Option<u64>,
    devices: Vec<Device<'a>>,
}

impl<'a> From<&'a model::HolderSnapshot> for Holders<'a> {
    fn from(snapshot: &'a model::HolderSnapshot) -> Self {
        let held = |held: &'a model::HeldStorages| Held {
            category: held.category as u8,
            holder: &held.holder,
            bytes: held.bytes,
            count: held.count,
        };
        let device = |device: &'a model::HeldOnDevice| Device {
            device: device.device.0,
            allocated: device.allocated,
            rounding: device.rounding,
            without_tensor: device.without_tensor,
            held: device.held.iter().map(held).collect(),
        };
        Holders {
            pause: snapshot.pause.map(|pause| pause.0),
            devices: snapshot.devices.iter().map(device).collect(),
        }
    }
}

impl Holders<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> Result<model::HolderSnapshot, Malformed> {
        let held = |held: Held<'_>| {
            let category = model::Category::ALL.get(usize::from(held.category));
            Ok(model::HeldStorages {
                category: *category.ok_or(Malformed("a category of holders is unknown"))?,
                holder: held.holder.into(),
                bytes: held.bytes,
                count: held.count,
            })
        };
        let device = |device: Device<'_>| {
            Ok(model::HeldOnDevice {
                device: model::CudaIndex(device.device),
                allocated: device.allocated,
                rounding: device.rounding,
                without_tensor: device.without_tensor,
                results: None,
                held: device.held.into_iter().map(held).collect::<Result<_, _>>()?,
            })
        };
        Ok(model::HolderSnapshot {
            time,
            pause: self.pause.map(model::Nanos),
            devices: self.devices.into_iter().map(device).collect::<Result<_, _>>()?,
            age: model::Nanos(0),
            nameless: Vec::new(),
        })
    }
}

/// What follows the holders; older files end before it where nothing was recorded exactly.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Nameless {
    age: u64,
    blocks: Vec<NamelessBlock>,
}

#[derive(Encode, BorrowDecode)]
struct NamelessBlock {
    device: u32,
    held: Option<u32>,
    address: u64,
    bytes: u64,
}

impl Nameless {
    /// Those of a snapshot.
    pub(crate) fn of(snapshot: &model::HolderSnapshot) -> Nameless {
        let block = |block: &model::NamelessBlock| NamelessBlock {
            device: block.device,
            held: block.held,
            address: block.address,
            bytes: block.bytes,
        };
        let blocks = snapshot.nameless.iter().map(block).collect();
        Nameless { age: snapshot.age.0, blocks }
    }

    /// Adds them to their snapshot. Those that name what it does not have are damage.
    pub(crate) fn add_to(self, snapshot: &mut model::HolderSnapshot) -> Result<(), Malformed> {
        snapshot.age = model::Nanos(self.age);
        for NamelessBlock { device, held, address, bytes } in self.blocks {
            let holders = snapshot.devices.get(device as usize).map(|device| device.held.len());
            let fits = holders.is_some_and(|len| held.is_none_or(|held| (held as usize) < len));
            if !fits {
                return Err(Malformed("a block names a holder that is not there"));
            }
            snapshot.nameless.push(model::NamelessBlock { device, held, address, bytes });
        }
        Ok(())
    }
}

/// What follows these; older files end before it.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Results {
    /// Of each device.
    bytes: Vec<Option<u64>>,
}

impl Results {
    /// Those of a snapshot.
    pub(crate) fn of(snapshot: &model::HolderSnapshot) -> Results {
        Results { bytes: snapshot.devices.iter().map(|device| device.results).collect() }
    }

    /// Adds them to their snapshot.
    pub(crate) fn add_to(self, snapshot: &mut model::HolderSnapshot) {
        for (device, bytes) in snapshot.devices.iter_mut().zip(self.bytes) {
            device.results = bytes;
        }
    }
}
