//! Exact recordings: what probes deliver becomes events with named sites, checked against the counters.

mod outlook;
mod reconcile;
mod recorder;
mod sampled;
mod sites;

pub use outlook::ExactOutlook;
pub use recorder::{ExactRecorder, ExactWanted};
