//! The facts from which findings follow.

use crate::analysis::blocks::fragmentation::{Fragmentation, FreeBlocks};
use crate::analysis::live::observed_device::ObservedDevice;
use crate::analysis::live::process_snapshot::{DeviceSnapshot, OutsideTorch};
use crate::analysis::owners::growth::OwnerGrowth;
use crate::analysis::owners::owner_groups::OwnerGroup;
use crate::model::{AllocatorSnapshot, OwnershipSnapshot};

/// A device's memory in bytes; `None` is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuFacts {
    /// Its number in the process.
    pub gpu: u32,
    /// Memory of the device.
    pub total: Option<u64>,
    /// Allocated through PyTorch.
    pub allocated: Option<u64>,
    /// Reserved by PyTorch.
    pub reserved: Option<u64>,
    /// Of the process, outside PyTorch.
    pub outside: Option<u64>,
    /// Of other processes.
    pub others: Option<u64>,
    /// Free on the device.
    pub free: Option<u64>,
    /// Reserved by PyTorch when `free` was read.
    pub reserved_then: Option<u64>,
    /// The free cache.
    pub cache: Option<CacheFacts>,
}

/// The free cache of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheFacts {
    /// Usable by any tensor.
    pub general: FreeBlocks,
    /// Usable only by private pools, into which CUDA graphs replay.
    pub private: u64,
    /// What `empty_cache()` would return.
    pub releasable: u64,
}

impl CacheFacts {
    fn new(sums: &Fragmentation) -> CacheFacts {
        let Fragmentation { all, general, releasable, .. } = *sums;
        CacheFacts { general, private: all.free.saturating_sub(general.bytes), releasable }
    }
}

impl GpuFacts {
    /// `None` for unused devices.
    pub fn new(device: &DeviceSnapshot) -> Option<GpuFacts> {
        if device.is_unused() {
            return None;
        }
        let outside = match &device.outside {
            OutsideTorch::Bytes(bytes) => Some(*bytes),
            _ => None,
        };
        Some(GpuFacts {
            gpu: device.cuda_index?.0,
            total: device.total,
            allocated: device.allocated,
            reserved: device.reserved,
            outside,
            others: device.others,
            free: device.free,
            reserved_then: device.counters.as_ref().map(|c| c.reserved().max(0) as u64),
            cache: device.fragmentation.as_ref().map(CacheFacts::new),
        })
    }
}

impl GpuFacts {
    /// Replaces PyTorch's figures by a snapshot's, so that all are of one moment.
    pub fn with_blocks(self, blocks: &AllocatorSnapshot) -> GpuFacts {
        let sums = Fragmentation::new(blocks);
        let reserved = blocks.reserved();
        // Correct it by what was reserved or released since.
        let free =
            self.outside.and_then(|_| (self.free? + self.reserved_then?).checked_sub(reserved));
        GpuFacts {
            free: free.or(self.free),
            allocated: Some(blocks.allocated()),
            reserved: Some(reserved),
            cache: Some(CacheFacts::new(&sums)),
            ..self
        }
    }
}

/// The input of all rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct FindingFacts<'a> {
    /// The devices that the process uses.
    pub gpus: &'a [GpuFacts],
    /// The last complete owner snapshot, if any.
    pub snapshot: Option<&'a OwnershipSnapshot>,
    /// Its groups.
    pub groups: &'a [OwnerGroup],
    /// Growth over several snapshots.
    pub growth: &'a [OwnerGrowth],
    /// What else was observed of the devices.
    pub devices: &'a [ObservedDevice],
}
