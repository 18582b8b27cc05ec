//! The poller's totals in the trailer.

use bincode::{Decode, Encode};

use crate::model;

#[derive(Encode, Decode)]
pub(crate) struct WireFollowTotals {
    polls: u64,
    polling_nanos: u64,
    cpu_nanos: u64,
    slow_poll_nanos: u64,
    changes: u64,
    single_changes: u64,
    steady_changes: u64,
    held_back: u64,
}

impl From<&model::FollowTotals> for WireFollowTotals {
    fn from(totals: &model::FollowTotals) -> Self {
        WireFollowTotals {
            polls: totals.polls,
            polling_nanos: totals.polling_nanos,
            cpu_nanos: totals.cpu_nanos,
            slow_poll_nanos: totals.slow_poll_nanos,
            changes: totals.changes,
            single_changes: totals.single_changes,
            steady_changes: totals.steady_changes,
            held_back: totals.held_back,
        }
    }
}

impl From<WireFollowTotals> for model::FollowTotals {
    fn from(totals: WireFollowTotals) -> Self {
        model::FollowTotals {
            polls: totals.polls,
            polling_nanos: totals.polling_nanos,
            cpu_nanos: totals.cpu_nanos,
            slow_poll_nanos: totals.slow_poll_nanos,
            changes: totals.changes,
            single_changes: totals.single_changes,
            steady_changes: totals.steady_changes,
            held_back: totals.held_back,
        }
    }
}
