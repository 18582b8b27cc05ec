//! What probes cover.

use std::sync::Arc;

use crate::model::ProbeBackend;
use crate::probe::AttachedProbes;

/// The placed probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeCoverage {
    /// How they are placed.
    pub backend: ProbeBackend,
    /// What is probed.
    pub probes: Vec<Arc<str>>,
    /// What could not be probed, one sentence each.
    pub uncovered: Vec<Arc<str>>,
}

impl From<&AttachedProbes> for ProbeCoverage {
    fn from(probes: &AttachedProbes) -> ProbeCoverage {
        ProbeCoverage {
            backend: probes.way(),
            probes: probes.probes().to_vec(),
            uncovered: probes.uncovered().to_vec(),
        }
    }
}
