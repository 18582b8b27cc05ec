//! Owners in groups: storages whose names differ only in an index, a key or a number are one row.
//!
//! A group is what a person would name: a variable, a model, an optimizer, the variable that keeps a graph alive. Below it stand the patterns of
//! the names in it.

mod change;
mod items;
mod tree;

use crate::model::{
    DeviceOwnership, OwnedBytes, OwnedOnDevice, OwnershipSnapshot, TensorCategory, TensorDevice,
};
use crate::ownership::breakdown;

pub use change::{OwnerChange, owner_changes};

/// How memory is called that is in no tensor.
pub const NO_TENSOR: &str = "[in no tensor: work spaces, C++]";

/// What a group is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// A variable of the program, and what it leads to; or, without a name, what is known instead.
    Variable,
    /// A module, by the variable that leads to it or by its class; empty where a recording does not tell.
    Model,
    /// An optimizer, by variable and class.
    Optimizer,
    /// A variable that keeps an autograd graph.
    Graph,
    /// A graph that no named tensor leads to: of a pass that runs, or of a tensor without a name.
    UnknownGraph,
    /// Only cycles of garbage.
    Garbage,
    /// Nothing that is known: blocks in which no tensor lies.
    NoTensor,
}

/// Storages with one owner and one pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerPattern {
    /// Pattern of the whole names: `server: sessions[*].layers[*].keys`; of saved tensors module and class of the node.
    pub pattern: String,
    /// The same behind the owner's name: `[*].layers[*].keys`.
    pub tail: String,
    /// Sums and sizes.
    pub size: GroupSize,
    /// Of a recorded look: which of [`OwnedOnDevice::held`] these are.
    pub held: Vec<usize>,
}

/// How much a group holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    /// Bytes.
    pub bytes: u64,
    /// Storages.
    pub storages: u64,
    /// Bytes of the smallest and of the largest storage; `None` where only sums are known.
    pub range: Option<(u64, u64)>,
}

/// Storages of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerGroup {
    /// Where they lie.
    pub device: TensorDevice,
    /// What they are for.
    pub category: TensorCategory,
    /// What the owner is.
    pub kind: OwnerKind,
    /// Its name.
    pub owner: String,
    /// Sums and sizes.
    pub size: GroupSize,
    /// How many graphs, models or optimizers this is, where their names differ only in an index or a key; else 0 or 1.
    pub members: u64,
    /// Name of the largest storage.
    pub largest: String,
    /// Where its storages lie; empty in recordings, which do not tell.
    pub addresses: Vec<u64>,
    /// A tensor of it that `memspy referrers` can be asked about: the largest, or one that keeps a graph.
    pub example: Option<String>,
    /// Shape and type of the largest storage's tensor, where known.
    pub largest_shape: Option<String>,
    /// The patterns in it, the largest first.
    pub patterns: Vec<OwnerPattern>,
}

/// The owners of a look in groups, the largest first.
pub fn owner_groups(snapshot: &OwnershipSnapshot) -> Vec<OwnerGroup> {
    tree::group(items::of_snapshot(snapshot))
}

/// What is in use and in no tensor, by GPU: a group like others, so that it can be watched like them.
pub fn in_no_tensor(snapshot: &OwnershipSnapshot) -> Vec<OwnerGroup> {
    let of = |(device, sums): (TensorDevice, DeviceOwnership)| {
        let OwnedBytes { bytes, storages } = sums.without_tensor;
        let size = GroupSize { bytes, storages, range: None };
        OwnerGroup {
            device,
            category: TensorCategory::Other,
            kind: OwnerKind::NoTensor,
            owner: NO_TENSOR.to_owned(),
            size,
            members: 0,
            largest: String::new(),
            addresses: Vec::new(),
            example: None,
            largest_shape: None,
            patterns: vec![OwnerPattern {
                pattern: NO_TENSOR.to_owned(),
                tail: String::new(),
                size,
                held: Vec::new(),
            }],
        }
    };
    breakdown(snapshot).into_iter().filter(|(device, _)| device.is_cuda()).map(of).collect()
}

/// The owners of a recorded look in groups, the largest first.
pub fn recorded_owner_groups(device: &OwnedOnDevice) -> Vec<OwnerGroup> {
    tree::group(items::of_recording(device))
}

#[cfg(test)]
pub(crate) mod tests;
