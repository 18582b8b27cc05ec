//! How it is known which line allocated the bytes of a moment, in JSON.

use serde::{Deserialize, Serialize};

use crate::analysis::TimeResolution;

/// The bytes of a moment that were allocated while recording, by how their line is known: each is
/// proven, probable or unattributed. Those allocated before the recording are none of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AttributionJson {
    /// Bytes whose line is proven.
    pub proven: u64,
    /// Bytes whose line is probable.
    pub probable: u64,
    /// All other bytes: the sum of the three below.
    pub unattributed: u64,
    /// Bytes for whose line only samples speak.
    pub unattributed_sampled: u64,
    /// Bytes that several lines may have allocated.
    pub unattributed_shared: u64,
    /// Bytes of which no line was seen that may have allocated them.
    pub unattributed_not_seen: u64,
}

impl From<TimeResolution> for AttributionJson {
    fn from(resolution: TimeResolution) -> AttributionJson {
        AttributionJson {
            proven: resolution.proven(),
            probable: resolution.probable,
            unattributed: resolution.unattributed(),
            unattributed_sampled: resolution.sampled,
            unattributed_shared: resolution.shared(),
            unattributed_not_seen: resolution.not_seen,
        }
    }
}
