//! Owners of memory at one moment.

use bincode::{BorrowDecode, Encode};

use super::MalformedPayload;
use crate::model;

#[derive(Encode, BorrowDecode)]
struct WireOwnedBytes<'a> {
    category: u8,
    owner: &'a str,
    bytes: u64,
    count: u64,
}

#[derive(Encode, BorrowDecode)]
struct WireOwnedOnDevice<'a> {
    device: u32,
    allocated: u64,
    rounding: u64,
    without_tensor: u64,
    held: Vec<WireOwnedBytes<'a>>,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireOwnership<'a> {
    pause: Option<u64>,
    devices: Vec<WireOwnedOnDevice<'a>>,
}

impl<'a> From<&'a model::OwnershipBreakdown> for WireOwnership<'a> {
    fn from(snapshot: &'a model::OwnershipBreakdown) -> Self {
        let held = |held: &'a model::OwnedStorages| WireOwnedBytes {
            category: held.category as u8,
            owner: &held.owner,
            bytes: held.bytes,
            count: held.count,
        };
        let device = |device: &'a model::DeviceOwners| WireOwnedOnDevice {
            device: device.device.0,
            allocated: device.allocated,
            rounding: device.rounding,
            without_tensor: device.without_tensor,
            held: device.held.iter().map(held).collect(),
        };
        WireOwnership {
            pause: snapshot.pause.map(|pause| pause.0),
            devices: snapshot.devices.iter().map(device).collect(),
        }
    }
}

impl WireOwnership<'_> {
    pub(crate) fn at(
        self,
        time: model::Nanos,
    ) -> Result<model::OwnershipBreakdown, MalformedPayload> {
        let held = |held: WireOwnedBytes<'_>| {
            let category = model::TensorCategory::ALL.get(usize::from(held.category));
            Ok(model::OwnedStorages {
                category: *category.ok_or(MalformedPayload("a category of owners is unknown"))?,
                owner: held.owner.into(),
                bytes: held.bytes,
                count: held.count,
            })
        };
        let device = |device: WireOwnedOnDevice<'_>| {
            Ok(model::DeviceOwners {
                device: model::CudaIndex(device.device),
                allocated: device.allocated,
                rounding: device.rounding,
                without_tensor: device.without_tensor,
                results: None,
                held: device.held.into_iter().map(held).collect::<Result<_, _>>()?,
            })
        };
        Ok(model::OwnershipBreakdown {
            time,
            pause: self.pause.map(model::Nanos),
            devices: self.devices.into_iter().map(device).collect::<Result<_, _>>()?,
            age: model::Nanos(0),
            unnamed_blocks: Vec::new(),
            blocks: Vec::new(),
            retained: Vec::new(),
        })
    }
}

/// First field after the owners: unnamed blocks.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireUnnamed {
    age: u64,
    blocks: Vec<WireUnnamedBlock>,
}

#[derive(Encode, BorrowDecode)]
struct WireUnnamedBlock {
    device: u32,
    held: Option<u32>,
    address: u64,
    bytes: u64,
}

impl WireUnnamed {
    pub(crate) fn new(snapshot: &model::OwnershipBreakdown) -> WireUnnamed {
        let block = |block: &model::UnnamedBlock| WireUnnamedBlock {
            device: block.device,
            held: block.held,
            address: block.address,
            bytes: block.bytes,
        };
        let blocks = snapshot.unnamed_blocks.iter().map(block).collect();
        WireUnnamed { age: snapshot.age.0, blocks }
    }

    /// Unknown devices or owners are damage.
    pub(crate) fn add_to(
        self,
        snapshot: &mut model::OwnershipBreakdown,
    ) -> Result<(), MalformedPayload> {
        snapshot.age = model::Nanos(self.age);
        for WireUnnamedBlock { device, held, address, bytes } in self.blocks {
            let owners = snapshot.devices.get(device as usize).map(|device| device.held.len());
            let fits = owners.is_some_and(|len| held.is_none_or(|held| (held as usize) < len));
            if !fits {
                return Err(MalformedPayload("a block names an owner that is not listed"));
            }
            snapshot.unnamed_blocks.push(model::UnnamedBlock { device, held, address, bytes });
        }
        Ok(())
    }
}

/// After the unnamed blocks: outputs of autograd nodes.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireAutogradOutputs {
    /// By device.
    bytes: Vec<Option<u64>>,
}

impl WireAutogradOutputs {
    pub(crate) fn new(snapshot: &model::OwnershipBreakdown) -> WireAutogradOutputs {
        WireAutogradOutputs {
            bytes: snapshot.devices.iter().map(|device| device.results).collect(),
        }
    }

    pub(crate) fn add_to(self, snapshot: &mut model::OwnershipBreakdown) {
        for (device, bytes) in snapshot.devices.iter_mut().zip(self.bytes) {
            device.results = bytes;
        }
    }
}

/// Before the last field: blocks by address, in a recording's first snapshot.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireOwnedBlocks {
    blocks: Vec<WireOwnedBlock>,
}

#[derive(Encode, BorrowDecode)]
struct WireOwnedBlock {
    device: u32,
    /// Address less the previous, wrapping.
    further: u64,
    size: u64,
    shares: Vec<(u32, u64)>,
}

impl WireOwnedBlocks {
    pub(crate) fn new(snapshot: &model::OwnershipBreakdown) -> WireOwnedBlocks {
        let mut before = 0;
        let block = |block: &model::OwnedBlock| {
            let further = block.address.wrapping_sub(before);
            before = block.address;
            let model::OwnedBlock { device, size, .. } = *block;
            WireOwnedBlock { device, further, size, shares: block.shares.clone() }
        };
        WireOwnedBlocks { blocks: snapshot.blocks.iter().map(block).collect() }
    }

    /// Unknown devices or owners are damage.
    pub(crate) fn add_to(
        self,
        snapshot: &mut model::OwnershipBreakdown,
    ) -> Result<(), MalformedPayload> {
        let mut address: u64 = 0;
        for WireOwnedBlock { device, further, size, shares } in self.blocks {
            address = address.wrapping_add(further);
            let owners = snapshot.devices.get(device as usize).map(|device| device.held.len());
            let fits = |&(held, _): &(u32, u64)| owners.is_some_and(|len| (held as usize) < len);
            let taken = shares.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
            if owners.is_none() || !shares.iter().all(fits) || taken.is_none_or(|it| it > size) {
                return Err(MalformedPayload("a block does not fit the owners named of it"));
            }
            snapshot.blocks.push(model::OwnedBlock { device, address, size, shares });
        }
        Ok(())
    }
}

/// Last field, absent where nothing is known: what references would free.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireRetained<'a> {
    references: Vec<WireRetainedReference<'a>>,
}

#[derive(Encode, BorrowDecode)]
struct WireRetainedReference<'a> {
    name: &'a str,
    is_least: bool,
    /// Device (kind, opt index), at once, after `gc.collect()`.
    frees: Vec<(u8, Option<u8>, u64, u64)>,
}

impl<'a> WireRetained<'a> {
    pub(crate) fn new(snapshot: &'a model::OwnershipBreakdown) -> WireRetained<'a> {
        let freed = |freed: &model::FreedBytes| {
            let model::TensorDevice { kind, index } = freed.device;
            (kind, index, freed.at_once, freed.after_collect)
        };
        let reference = |reference: &'a model::RetainedReference| WireRetainedReference {
            name: &reference.name,
            is_least: reference.is_least,
            frees: reference.frees.iter().map(freed).collect(),
        };
        WireRetained { references: snapshot.retained.iter().map(reference).collect() }
    }

    pub(crate) fn add_to(self, snapshot: &mut model::OwnershipBreakdown) {
        let freed = |(kind, index, at_once, after_collect)| model::FreedBytes {
            device: model::TensorDevice { kind, index },
            at_once,
            after_collect,
        };
        let reference = |reference: WireRetainedReference<'_>| model::RetainedReference {
            name: reference.name.into(),
            is_least: reference.is_least,
            frees: reference.frees.into_iter().map(freed).collect(),
        };
        snapshot.retained = self.references.into_iter().map(reference).collect();
    }
}
