//! Who holds the memory: groups of owners, what recordings keep of them, and how they change.

pub(super) mod before_recording;
pub(super) mod growth;
pub(super) mod owner_groups;
pub(super) mod ownership;
pub(super) mod storage_changes;
