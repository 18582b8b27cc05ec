//! Exact recordings: what probes deliver becomes events with named sites, checked against the counters.

mod reconcile;
mod recorder;
mod sites;

pub use recorder::{ExactRecorder, ExactWanted};
