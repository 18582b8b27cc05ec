//! What a look at owners adds up to, device by device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::gpu::CudaIndex;
use super::owners::TensorCategory;
use super::record::Nanos;
use super::tensors::{Storage, TensorDevice};

/// Bytes and number of the storages of a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedBytes {
    /// Bytes.
    pub bytes: u64,
    /// Storages.
    pub storages: u64,
}

impl OwnedBytes {
    /// Counts one storage more.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.storages += 1;
    }
}

/// The tensors of a device that Python has objects of, each counted by itself: views again with what they show of their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PythonTensors {
    /// How many.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Bytes of these elements.
    pub bytes: u64,
    /// How many of them have an unknown (symbolic) size, and are in neither sum.
    pub unknown: u64,
}

/// A device's memory by who holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceOwnership {
    /// The tensors' bytes by category; a storage counts once, in the first of its categories.
    pub by_category: BTreeMap<TensorCategory, OwnedBytes>,
    /// Bytes and storages among these without any name, and kept by no node.
    pub unnamed: OwnedBytes,
    /// Storages among these that only garbage holds: `gc.collect()` would free them.
    pub garbage: OwnedBytes,
    /// Bytes that `torch.cuda.empty_cache()` would return: [`Segment::releasable`](super::Segment::releasable).
    pub releasable: u64,
    /// What the allocator added to the bytes asked for.
    pub rounding: u64,
    /// Allocated blocks that no tensor was found in: work spaces, tensors that only C++ holds.
    pub without_tensor: OwnedBytes,
    /// Freed by the program, while another stream may still use them.
    pub pending_free: OwnedBytes,
    /// Storages in private pools where the allocator has no block in use: what a CUDA graph made when it was replayed.
    pub in_pools: OwnedBytes,
    /// Storages in no block: memory of other libraries, or shared by another process.
    pub elsewhere: OwnedBytes,
    /// `allocated_bytes` by the blocks; `None` for devices without PyTorch's native CUDA allocator.
    pub allocated: Option<u64>,
    /// Its tensors as Python counts them.
    pub in_python: PythonTensors,
    /// What is said in place of `without_tensor` where tensors may be missing in the snapshot.
    pub not_read: Option<String>,
}

impl DeviceOwnership {
    /// Bytes of all tensors.
    pub fn in_tensors(&self) -> u64 {
        self.by_category.values().map(|held| held.bytes).sum()
    }

    /// Storages of all tensors.
    pub fn storages(&self) -> u64 {
        self.by_category.values().map(|held| held.storages).sum()
    }
}

/// One storage and the tensors on it.
#[derive(Debug, Clone)]
pub struct StorageGroup {
    /// The storage.
    pub storage: Storage,
    /// Its device.
    pub device: TensorDevice,
    /// What it is for.
    pub category: TensorCategory,
    /// Indices of its tensors in [`OwnershipSnapshot::tensors`](super::OwnershipSnapshot::tensors), the best named first.
    pub tensors: Vec<usize>,
}

impl StorageGroup {
    /// [`Storage::memory`].
    pub fn bytes(&self) -> u64 {
        self.storage.memory()
    }
}

/// Storages with the same owner, or the memory of a cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedStorages {
    /// What they are for.
    pub category: TensorCategory,
    /// Who holds them: the best name, or the node that keeps them.
    pub owner: Arc<str>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// A device's memory by owner at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOnDevice {
    /// The device, as the target numbers it.
    pub device: CudaIndex,
    /// `allocated_bytes` by the blocks.
    pub allocated: u64,
    /// What the allocator added to the bytes asked for.
    pub rounding: u64,
    /// Allocated blocks that no tensor was found in.
    pub without_tensor: u64,
    /// Bytes among the other tensors that are results of autograd nodes: activations that only Python keeps. `None` in
    /// recordings that did not tell.
    pub results: Option<u64>,
    /// The tensors' storages.
    pub held: Vec<OwnedStorages>,
}

/// The CUDA memory of a process by owner at one moment: what a recording keeps of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipBreakdown {
    /// When this was recorded.
    pub time: Nanos,
    /// For how long; `None` when it ran on.
    pub pause: Option<Nanos>,
    /// Its devices.
    pub devices: Vec<OwnedOnDevice>,
    /// How long before `time` the process was stopped: a look is recorded when it has been understood.
    pub age: Nanos,
    /// Blocks that no name tells of, so that who made them can be looked up; only in exact recordings.
    pub unnamed_blocks: Vec<UnnamedBlock>,
    /// The allocated blocks by address, with what is in each: only in the first snapshot of a recording, so that memory
    /// older than it has owners.
    pub blocks: Vec<OwnedBlock>,
}

/// An allocated block and the storages in it. What no storage takes of it is rounding; without any it is in no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedBlock {
    /// Index of its device in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Indices of owners in [`OwnedOnDevice::held`], with the bytes of each in the block.
    pub shares: Vec<(u32, u64)>,
}

/// Memory that no variable, module or optimizer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnnamedBlock {
    /// Index of its device in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Index of its owner in [`OwnedOnDevice::held`]; `None` for a block in no tensor.
    pub held: Option<u32>,
    /// Its address.
    pub address: u64,
    /// Bytes of it that count to the owner.
    pub bytes: u64,
}
