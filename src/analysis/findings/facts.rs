//! The facts from which findings follow.

use super::{LastingCopies, LastingGradients};
use crate::analysis::blocks::{Fragmentation, FreeBlocks};
use crate::analysis::live::{DeviceSnapshot, HostUse, ObservedDevice, OutsideTorch};
use crate::analysis::owners::{GrowthWatch, OwnerGroup, OwnerGrowth};
use crate::analysis::profile::HighWater;
use crate::model::{AllocatorSnapshot, GpuNeighbour, JobThreads, OwnershipSnapshot};

/// A device's memory in bytes, `None` if unknown. `outside` is the process's memory outside
/// PyTorch, `others` that of other processes, `reserved_then` is `reserved` when `free` was read.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuFacts {
    pub gpu: u32,
    pub total: Option<u64>,
    pub allocated: Option<u64>,
    pub reserved: Option<u64>,
    pub outside: Option<u64>,
    pub others: Option<u64>,
    pub free: Option<u64>,
    pub reserved_then: Option<u64>,
    pub cache: Option<CacheFacts>,
}

/// The free cache of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheFacts {
    /// Usable by any tensor.
    pub general: FreeBlocks,
    /// Only for private pools, into which CUDA graphs replay.
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
    /// What PyTorch can have, in bytes.
    pub fn capacity(&self) -> Option<u64> {
        Some(self.reserved? + self.free?)
    }

    /// What it may still allocate.
    pub fn left(&self) -> Option<u64> {
        self.capacity()?.checked_sub(self.allocated?)
    }

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

/// The input of all rules: `snapshot` is the last one with all tensors, with its `groups`; without
/// one, `groups` are what a cut snapshot has.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FindingFacts<'a> {
    pub gpus: &'a [GpuFacts],
    pub snapshot: Option<&'a OwnershipSnapshot>,
    pub groups: &'a [OwnerGroup],
    pub growth: &'a [OwnerGrowth],
    pub watch: Option<&'a GrowthWatch>,
    pub devices: &'a [ObservedDevice],
    pub lasting: Option<&'a LastingCopies>,
    pub gradients: Option<&'a LastingGradients>,
    pub host: Option<&'a HostUse>,
    pub threads: Option<&'a JobThreads>,
    pub neighbours: &'a [GpuNeighbour],
}

impl FindingFacts<'_> {
    /// The peak of what is allocated on a GPU.
    pub(super) fn peak(&self, gpu: u32) -> Option<HighWater> {
        self.devices.iter().find(|device| device.gpu == gpu)?.peak
    }
}
