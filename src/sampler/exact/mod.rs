//! Exact recordings: events get sites and are checked.

mod availability;
mod cost;
mod coverage;
mod keeping;
mod merge;
mod moments;
mod native_stacks;
mod pending_events;
mod reconcile;
mod recorder;
mod sampled;
mod sites;

pub use availability::ExactAvailability;
pub use cost::{CostNews, CostWatch, ExactCost, TrialFailure, check_exact_rights};
pub use coverage::ProbeCoverage;
pub use keeping::{allow_keeper, is_probe_keeper, keep_probes};
pub use merge::{PythonPart, merge};
pub use recorder::{ExactOptions, ExactRecorder};
