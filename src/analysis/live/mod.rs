//! A running job's memory, now and recently.

mod device_breakdown;
mod host_use;
mod live_profile;
mod observed_device;
mod odd_rank;
mod process_snapshot;
mod reserved_growth;
mod segment_takers;
mod sleep_shares;
mod time_to_full;
mod usage_history;

pub use device_breakdown::DeviceBreakdown;
pub use host_use::{HostUse, PageLocked};
pub use live_profile::{
    IsLibrary, LiveCounts, LiveLine, LiveProfile, LiveRows, LiveStack, SharedProfile,
};
pub use observed_device::{FailureCount, ObservedDevice};
pub use odd_rank::{OddRank, RankHolding, odd_rank};
pub use process_snapshot::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
pub use reserved_growth::ReservedGrowth;
pub use sleep_shares::{SleepState, TagShare};
pub use time_to_full::TimeToFull;
pub use usage_history::{PeakUsage, UsageHistory};
