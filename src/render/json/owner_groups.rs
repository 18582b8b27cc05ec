//! Owners in groups, as a part of other documents.

use serde::{Deserialize, Serialize};

/// Storages whose owners belong together: one model, one optimizer, one variable, one autograd
/// graph. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerGroupJson {
    /// The device: `cuda:0`.
    pub device: String,
    /// What they are for: `parameters`, `buffers`, `gradients`, `optimizer state`, `saved for
    /// backward` or `other tensors`.
    pub category: String,
    /// What the owner is: `variable`, `model`, `optimizer`, `graph`, `unknown graph` (no variable
    /// leads to it) or `garbage`.
    pub kind: String,
    /// The owner's name.
    pub owner: String,
    /// The group as the text shows it.
    pub label: String,
    /// Bytes of all its storages.
    pub bytes: u64,
    /// How many storages.
    pub storages: u64,
    /// The smallest storage; `null` in recordings, which do not have it.
    pub smallest: Option<u64>,
    /// The largest storage; `null` in recordings, which do not have it.
    pub largest: Option<u64>,
    /// The name of the largest storage.
    pub largest_name: String,
    /// How many graphs, models or optimizers with like names this is; else 0 or 1.
    pub members: u64,
    /// Its storages by name pattern, the largest first.
    pub patterns: Vec<OwnerPatternJson>,
}

/// Storages whose names differ only in an index, a key or a number. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerPatternJson {
    /// The name, with `*` for what differs: `cache[*].keys`; for what only the graph keeps the
    /// class of the node.
    pub pattern: String,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub storages: u64,
    /// The smallest; `null` in recordings, which do not have it.
    pub smallest: Option<u64>,
    /// The largest; `null` in recordings, which do not have it.
    pub largest: Option<u64>,
}
