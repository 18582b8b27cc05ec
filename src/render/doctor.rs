//! The JSON of `memspy doctor`.

use serde::{Deserialize, Serialize};

use crate::render::shared::JsonFormat;

/// `memspy doctor --json`: what memspy can and cannot do with a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoctorJson {
    /// The process.
    pub pid: u32,
    /// Whether it can be recorded at all.
    pub recordable: bool,
    /// What was found, in the order of the text.
    pub findings: Vec<FindingJson>,
}

impl JsonFormat for DoctorJson {
    const FORMAT: &'static str = "memspy-doctor";
    const VERSION: u32 = 1;
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FindingJson {
    /// What it is about: `memory`, `stacks`, `allocator`, ...
    pub about: String,
    /// Whether that works.
    pub status: FindingStatus,
    /// The finding.
    pub text: String,
}

/// Whether something works: `works`, `fails`, `warning` for what is not so at this moment and no
/// obstacle, or `fact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FindingStatus {
    /// It works.
    Works,
    /// It does not.
    Fails,
    /// Not so at this moment, and no obstacle.
    Warning,
    /// Merely a fact.
    Fact,
}
