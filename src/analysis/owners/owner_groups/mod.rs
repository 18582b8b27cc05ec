//! Owner groups: storages whose names differ only in an index, key or number.
//!
//! A group is a variable, a model, an optimizer, or the variable that keeps a graph alive.

mod change;
mod frees;
mod items;
mod label;
mod limit;
mod tree;

use crate::model::{
    CppKeeper, DeviceOwners, OwnedBytes, OwnershipSnapshot, TensorCategory, TensorDevice,
};
use crate::ownership::breakdown;

pub use change::{OwnerChange, owner_changes};
pub use frees::OwnerFrees;
pub use label::raw_group_label;

/// Name of memory in no tensor.
pub const NO_TENSOR: &str = "[in no tensor: work spaces, C++]";

/// What owns a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// A variable of the program; if nameless, what else is known.
    Variable,
    /// A module, by variable or class; may be empty in recordings.
    Model,
    /// An optimizer, by variable and class.
    Optimizer,
    /// A variable that keeps an autograd graph.
    Graph,
    /// The graph of a running pass or of an unnamed tensor.
    UnknownGraph,
    /// Only cycles of garbage.
    Garbage,
    /// No known owner: blocks in no tensor.
    NoTensor,
}

/// Storages with one owner and one name pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerPattern {
    /// Of whole names: `server: sessions[*].layers[*].keys`; for saved tensors, module and node
    /// class.
    pub pattern: String,
    /// The same after the owner's name: `[*].layers[*].keys`.
    pub tail: String,
    /// Sums and sizes.
    pub size: GroupSize,
    /// Indices in [`DeviceOwners::held`], in recordings.
    pub held: Vec<usize>,
}

/// The size of a group in bytes; `range` is the smallest and largest storage, if known.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub bytes: u64,
    pub storages: u64,
    pub range: Option<(u64, u64)>,
}

/// Storages of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerGroup {
    /// Their device.
    pub device: TensorDevice,
    /// Their category.
    pub category: TensorCategory,
    /// The kind of owner.
    pub kind: OwnerKind,
    /// Its name.
    pub owner: String,
    /// Sums and sizes.
    pub size: GroupSize,
    /// Graphs, models or optimizers joined; else 0 or 1.
    pub members: u64,
    /// Name of the largest storage.
    pub largest: String,
    /// Addresses of the storages' bytes; empty when read from a recording.
    pub addresses: Vec<u64>,
    /// A tensor for `memspy referrers`.
    pub example: Option<String>,
    /// Of the largest storage, if known.
    pub largest_shape: Option<String>,
    /// Its patterns, the largest first.
    pub patterns: Vec<OwnerPattern>,
    /// What its one reference would free; `None`: not known.
    pub frees: Option<OwnerFrees>,
    /// Bytes that it will hold when the deque with a `maxlen` that has nearly all of it is full.
    pub full_at: Option<u64>,
}

/// Groups of a snapshot, the largest first.
pub fn owner_groups(snapshot: &OwnershipSnapshot) -> Vec<OwnerGroup> {
    let mut groups = tree::group(items::of_snapshot(snapshot));
    for group in &mut groups {
        group.frees = OwnerFrees::of(snapshot, group);
        group.full_at = limit::full_at(snapshot, group);
    }
    groups
}

/// `[work spaces of cuBLAS]`.
pub fn cpp_label(keeper: CppKeeper) -> String {
    format!("[{}]", keeper.name())
}

/// Memory in no tensor, per GPU.
pub fn in_no_tensor(snapshot: &OwnershipSnapshot) -> Vec<OwnerGroup> {
    let of = |device: TensorDevice, name: &str, held: OwnedBytes| {
        let OwnedBytes { bytes, storages } = held;
        let size = GroupSize { bytes, storages, range: None };
        OwnerGroup {
            device,
            category: TensorCategory::Other,
            kind: OwnerKind::NoTensor,
            owner: name.to_owned(),
            size,
            members: 0,
            largest: String::new(),
            addresses: Vec::new(),
            example: None,
            largest_shape: None,
            patterns: vec![OwnerPattern {
                pattern: name.to_owned(),
                tail: String::new(),
                size,
                held: Vec::new(),
            }],
            frees: None,
            full_at: None,
        }
    };
    let mut groups = Vec::new();
    for (device, sums) in breakdown(snapshot).iter().filter(|(device, _)| device.is_cuda()) {
        groups.push(of(*device, NO_TENSOR, sums.without_tensor));
        let of_cpp = sums.in_cpp.iter();
        groups.extend(of_cpp.map(|(keeper, held)| of(*device, &cpp_label(*keeper), *held)));
    }
    groups
}

/// The same for a recorded snapshot.
pub fn recorded_owner_groups(device: &DeviceOwners) -> Vec<OwnerGroup> {
    tree::group(items::of_recording(device))
}

#[cfg(test)]
pub(crate) mod tests;
