//! Owners of memory: groups, recorded owners, and changes.

pub(super) mod before_recording;
pub(super) mod growth;
pub(super) mod owner_groups;
pub(super) mod ownership;
pub(super) mod storage_changes;
