//! An ownership snapshot's totals by device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cpp_memory::CppKeeper;
use super::gpu::CudaIndex;
use super::owners::TensorCategory;
use super::record::Nanos;
use super::retained::RetainedReference;
use super::tensors::{Storage, TensorDevice};

/// Bytes and storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct OwnedBytes {
    pub bytes: u64,
    pub storages: u64,
}

impl OwnedBytes {
    /// Adds one storage.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.storages += 1;
    }
}

/// A device's tensors with Python objects; views count again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PythonTensors {
    /// Number of tensors.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Bytes of these elements.
    pub bytes: u64,
    /// Of symbolic size, in neither sum.
    pub unknown: u64,
}

/// A device's memory by owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceOwnership {
    /// Each storage once, in its first category.
    pub by_category: BTreeMap<TensorCategory, OwnedBytes>,
    /// Without a name, not saved by a node.
    pub unnamed: OwnedBytes,
    /// What `gc.collect()` would free.
    pub garbage: OwnedBytes,
    /// Sum of [`Segment::releasable`](super::Segment::releasable).
    pub releasable: u64,
    /// Bytes of the allocator's rounding.
    pub rounding: u64,
    /// Allocated blocks without a known tensor, and without a known keeper.
    pub without_tensor: OwnedBytes,
    /// Allocated blocks without a known tensor that a structure of C++ keeps.
    pub in_cpp: BTreeMap<CppKeeper, OwnedBytes>,
    /// Freed, but perhaps used by another stream.
    pub pending_free: OwnedBytes,
    /// In private pools, but in no used block: memory of a CUDA graph's replay.
    pub in_pools: OwnedBytes,
    /// Outside all blocks: other libraries', or another process's.
    pub elsewhere: OwnedBytes,
    /// `allocated_bytes`, by the blocks; `None`: not the native CUDA allocator.
    pub allocated: Option<u64>,
    /// As Python counts them.
    pub in_python: PythonTensors,
    /// Text for `without_tensor` if tensors may be missing.
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

/// A storage and its tensors.
#[derive(Debug, Clone)]
pub struct StorageGroup {
    /// The storage.
    pub storage: Storage,
    /// Its device.
    pub device: TensorDevice,
    /// Its category.
    pub category: TensorCategory,
    /// Indices in [`OwnershipSnapshot::tensors`](super::OwnershipSnapshot::tensors), best named
    /// first.
    pub tensors: Vec<usize>,
}

impl StorageGroup {
    /// [`Storage::memory`].
    pub fn bytes(&self) -> u64 {
        self.storage.memory()
    }
}

/// Storages with one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedStorages {
    /// Their category.
    pub category: TensorCategory,
    /// Best name, or the node that saved them.
    pub owner: Arc<str>,
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
    pub count: u64,
}

/// A device's memory by owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOwners {
    /// Number in the target.
    pub device: CudaIndex,
    /// `allocated_bytes`, by the blocks.
    pub allocated: u64,
    /// Bytes of the allocator's rounding.
    pub rounding: u64,
    /// Bytes of allocated blocks without a known tensor.
    pub without_tensor: u64,
    /// Other tensors that are autograd outputs: activations kept only by Python; `None`: not
    /// recorded.
    pub results: Option<u64>,
    /// Storages of tensors.
    pub held: Vec<OwnedStorages>,
}

/// The recorded part of an ownership snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipBreakdown {
    /// When it was recorded.
    pub time: Nanos,
    /// How long the process was stopped; `None`: it ran, or changed what was read.
    pub pause: Option<Nanos>,
    /// Its devices.
    pub devices: Vec<DeviceOwners>,
    /// How long before `time` the memory was read; evaluating the snapshot takes that long.
    pub age: Nanos,
    /// Unnamed blocks, to find their sites; only in exact recordings.
    pub unnamed_blocks: Vec<UnnamedBlock>,
    /// Allocated blocks by address, only in the first snapshot: owners for older memory.
    pub blocks: Vec<OwnedBlock>,
    /// What references would free, those of the most memory; empty if unknown.
    pub retained: Vec<RetainedReference>,
}

/// An allocated block. Bytes in no storage are rounding; without storages, there is no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedBlock {
    /// Index in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// Indices in [`DeviceOwners::held`], and their bytes in the block.
    pub shares: Vec<(u32, u64)>,
}

/// Memory that no variable, module or optimizer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnnamedBlock {
    /// Index in [`OwnershipBreakdown::devices`].
    pub device: u32,
    /// Index in [`DeviceOwners::held`]; `None`: no tensor.
    pub held: Option<u32>,
    /// Its address.
    pub address: u64,
    /// The owner's bytes in it.
    pub bytes: u64,
}
