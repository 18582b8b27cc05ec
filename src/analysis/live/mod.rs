//! The current and recent memory of a running job.

pub(super) mod device_breakdown;
pub(super) mod live_profile;
pub(super) mod observed_device;
pub(super) mod odd_rank;
pub(super) mod process_snapshot;
pub(super) mod reserved_growth;
mod segment_takers;
pub(super) mod sleep_shares;
pub(super) mod usage_history;
