//! Exact recordings: what probes deliver becomes events with named sites, checked against the counters.

mod availability;
mod moments;
mod pending_events;
mod reconcile;
mod recorder;
mod sampled;
mod sites;

pub use availability::ExactAvailability;
pub use recorder::{ExactOptions, ExactRecorder};
