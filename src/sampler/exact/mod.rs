//! Exact recordings: what probes deliver becomes events with named sites, checked against the counters.

mod moments;
mod outlook;
mod reconcile;
mod recorder;
mod sampled;
mod sites;
mod waiting;

pub use outlook::ExactOutlook;
pub use recorder::{ExactRecorder, ExactWanted};
