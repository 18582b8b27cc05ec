//! Attribution: from samples and snapshots to each block's allocation site.

pub(super) mod attributed_snapshot;
pub(super) mod block_attribution;
pub(super) mod counter_intervals;
pub(super) mod evidence;
pub(super) mod host_only;
pub(super) mod losses;
pub(super) mod rules;
pub(super) mod sample_window;
pub(super) mod waiting;
