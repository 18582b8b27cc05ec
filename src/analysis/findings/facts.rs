//! The facts that findings are made of.

use crate::analysis::blocks::fragmentation::{Fragmentation, FreeBlocks};
use crate::analysis::live::observed_device::ObservedDevice;
use crate::analysis::live::process_snapshot::{DeviceSnapshot, OutsideTorch};
use crate::analysis::owners::growth::OwnerGrowth;
use crate::analysis::owners::owner_groups::OwnerGroup;
use crate::model::{AllocatorSnapshot, OwnershipSnapshot};

/// Where the memory of a device is. Bytes; `None` is unknown.
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
    /// Reserved by PyTorch when the driver said how much is free.
    pub reserved_then: Option<u64>,
    /// What is cached and free.
    pub cache: Option<CacheFacts>,
}

/// What is cached and free on a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheFacts {
    /// What any tensor can have.
    pub general: FreeBlocks,
    /// What only the private pools of CUDA graphs and `MemPool`s can use: graphs replay into it.
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
    /// Those of a device that the process uses; `None` for others.
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
    /// The same with what PyTorch has by the blocks of a look: what is told together is of one moment.
    pub fn with_blocks(self, blocks: &AllocatorSnapshot) -> GpuFacts {
        let sums = Fragmentation::new(blocks);
        let reserved = blocks.reserved();
        // What PyTorch took or gave back since is no longer free, or is.
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

/// All that rules may look at.
#[derive(Debug, Clone, Copy, Default)]
pub struct FindingFacts<'a> {
    /// The devices that the process uses.
    pub gpus: &'a [GpuFacts],
    /// The last look at owners; `None` where there was none, or none that was complete.
    pub look: Option<&'a OwnershipSnapshot>,
    /// Its groups.
    pub groups: &'a [OwnerGroup],
    /// What grew over several looks.
    pub growth: &'a [OwnerGrowth],
    /// What else was observed of the devices.
    pub devices: &'a [ObservedDevice],
}
