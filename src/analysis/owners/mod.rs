//! Owners of memory and their changes.

pub(super) mod before_recording;
pub(super) mod growth;
pub(super) mod owner_groups;
pub(super) mod ownership;
pub(super) mod storage_changes;
