//! The memory of a moment folded by stack.

mod allocated;
pub(super) mod fold;
pub(super) mod fold_limit;
mod live_since;
pub(super) mod time_range;
pub(super) mod time_resolution;
