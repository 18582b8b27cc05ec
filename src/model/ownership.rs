//! Totals of an ownership snapshot by device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::gpu::CudaIndex;
use super::owners::TensorCategory;
use super::record::Nanos;
use super::tensors::{Storage, TensorDevice};

/// Bytes and number of storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnedBytes {
    /// Bytes.
    pub bytes: u64,
    /// Storages.
    pub storages: u64,
}

impl OwnedBytes {
    /// Adds one storage.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.storages += 1;
    }
}

/// The tensors of a device with Python objects, each counted alone: views count again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PythonTensors {
    /// Number of tensors.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Bytes of these elements.
    pub bytes: u64,
    /// Tensors with an unknown (symbolic) size, in neither sum.
    pub unknown: u64,
}

/// A device's memory by owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceOwnership {
    /// Bytes by category; a storage counts once, in its first category.
    pub by_category: BTreeMap<TensorCategory, OwnedBytes>,
    /// Those without a name and not kept by a node.
    pub unnamed: OwnedBytes,
    /// Those held only by garbage: `gc.collect()` would free them.
    pub garbage: OwnedBytes,
    /// Bytes that `torch.cuda.empty_cache()` would return:
    /// [`Segment::releasable`](super::Segment::releasable).
    pub releasable: u64,
    /// Bytes added by the allocator's rounding.
    pub rounding: u64,
    /// Allocated blocks without a known tensor: work spaces, tensors only in C++.
    pub without_tensor: OwnedBytes,
    /// Freed by the program, but another stream may still use them.
    pub pending_free: OwnedBytes,
    /// Storages in private pools outside any used block: memory of a CUDA graph's replay.
    pub in_pools: OwnedBytes,
    /// Storages in no block: memory of other libraries, or shared by another process.
    pub elsewhere: OwnedBytes,
    /// `allocated_bytes` by the blocks; `None`: not PyTorch's native CUDA allocator.
    pub allocated: Option<u64>,
    /// Its tensors as Python counts them.
    pub in_python: PythonTensors,
    /// The text in place of `without_tensor` if the snapshot may lack tensors.
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

/// One storage and its tensors.
#[derive(Debug, Clone)]
pub struct StorageGroup {
    /// The storage.
    pub storage: Storage,
    /// Its device.
    pub device: TensorDevice,
    /// Its category.
    pub category: TensorCategory,
    /// Indices of its tensors in [`OwnershipSnapshot::tensors`](super::OwnershipSnapshot::tensors),
    /// best named first.
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
    /// Their category.
    pub category: TensorCategory,
    /// Their owner: the best name, or the node that keeps them.
    pub owner: Arc<str>,
    /// Their total bytes.
    pub bytes: u64,
    /// Number of storages.
    pub count: u64,
}

/// A device's memory by owner at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedOnDevice {
    /// The device, as the target numbers it.
    pub device: CudaIndex,
    /// `allocated_bytes` by the blocks.
    pub allocated: u64,
    /// Bytes added by the allocator's rounding.
    pub rounding: u64,
    /// Allocated blocks without a known tensor.
    pub without_tensor: u64,
    /// Bytes of other tensors that are outputs of autograd nodes: activations kept only by Python.
    /// `None` in recordings without it.
    pub results: Option<u64>,
    /// The tensors' storages.
    pub held: Vec<OwnedStorages>,
}

/// The recorded part of an ownership snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipBreakdown {
    /// When it was recorded.
    pub time: Nanos,
    /// How long the process was stopped; `None`: it ran.
    pub pause: Option<Nanos>,
    /// Its devices.
    pub devices: Vec<OwnedOnDevice>,
    /// How long before `time` the process was stopped: evaluation comes before recording.
    pub age: Nanos,
    /// Blocks without a name, for looking up their sites; only in exact recordings.
    pub unnamed_blocks: Vec<UnnamedBlock>,
    /// The allocated blocks by address, with their contents: only in a recording's first snapshot,
    /// to give older memory owners.
    pub blocks: Vec<OwnedBlock>,
}

/// An allocated block and its storages. Bytes in no storage are rounding; without storages it is in
/// no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedBlock {
    /// Index of its device in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Indices in [`OwnedOnDevice::held`], with the bytes of each in the block.
    pub shares: Vec<(u32, u64)>,
}

/// Memory that no variable, module or optimizer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnnamedBlock {
    /// Index of its device in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Index of its owner in [`OwnedOnDevice::held`]; `None`: in no tensor.
    pub held: Option<u32>,
    /// Its address.
    pub address: u64,
    /// Bytes of it that belong to the owner.
    pub bytes: u64,
}
