//! Exact recordings: what probes deliver becomes events with named sites, checked against the counters.

mod moments;
mod availability;
mod reconcile;
mod recorder;
mod sampled;
mod sites;
mod pending_events;

pub use availability::ExactAvailability;
pub use recorder::{ExactRecorder, ExactOptions};
