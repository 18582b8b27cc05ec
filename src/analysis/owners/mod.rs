//! Owners of memory and their changes.

mod before_recording;
mod growth;
mod owner_groups;
mod ownership;
mod storage_changes;

pub(crate) use before_recording::{
    BlockOwners, OwnedBlocks, PendingOwners, owners_of_blocks, split,
};
pub use growth::{GrowthRise, GrowthWatch, LineGrowth, OwnerGrowth};
#[cfg(test)]
pub(crate) use owner_groups::tests::groups;
pub use owner_groups::{
    GroupSize, NO_TENSOR, OwnerChange, OwnerFrees, OwnerGroup, OwnerKind, OwnerPattern, cpp_label,
    in_no_tensor, owner_changes, owner_groups, raw_group_label, recorded_owner_groups,
};
pub(crate) use ownership::OwnershipHistory;
pub use ownership::{OwnerPart, OwnerStacks};
pub use storage_changes::{StorageChange, changes};
