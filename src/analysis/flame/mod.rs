//! The memory of a moment folded by stack.

mod allocated;
pub(super) mod fold;
mod live_since;
pub(super) mod time_range;
