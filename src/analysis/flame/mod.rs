//! The memory of a moment folded by stack.

mod allocated;
mod evidence;
mod fold;
mod live_since;
pub(super) mod paths;
mod time_range;

pub use allocated::allocated;
pub(super) use fold::{by_origin, no_gpu};
pub use fold::{exact_resolution, fold, peak_resolution};
pub use live_since::live_since;
pub use time_range::TimeRange;
