//! Attribution: each block's allocation site, from samples and snapshots.

mod attributed_snapshot;
mod block_attribution;
mod counter_intervals;
mod evidence;
mod host_only;
mod losses;
mod rules;
mod sample_window;
mod waiting;

pub use attributed_snapshot::{AttributedSnapshot, Moment};
pub(crate) use block_attribution::{AllocationOrigin, BlockAttribution};
pub(crate) use counter_intervals::{
    CounterInterval, CounterIntervals, FEW_ALLOCATIONS, PerPool, per_pool, was_reset,
};
pub use evidence::Evidence;
pub(crate) use host_only::HostStacks;
pub use losses::{Loss, LossCounts};
pub(crate) use rules::{BlockGroup, SnapshotInterval, attribute_allocations, hidden_frees};
pub use sample_window::ThreadChoice;
pub(crate) use sample_window::{SampleWindow, StackFacts, allocating_between};
pub(in crate::analysis) use waiting::CANDIDATES_WITHIN;
pub(crate) use waiting::{WaitFacts, WaitingPlaces};
