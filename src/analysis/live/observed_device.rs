//! What an observation shows of a device.

use crate::analysis::live::reserved_growth::ReservedGrowth;
use crate::analysis::live::time_to_full::TimeToFull;
use crate::analysis::profile::HighWater;
use crate::model::Nanos;

/// How often something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureCount {
    /// Since the job's start or the last reset.
    pub all: u64,
    /// During the observation.
    pub meanwhile: u64,
}

impl FailureCount {
    pub(crate) fn between(first: i64, last: i64) -> FailureCount {
        let count = |value: i64| value.max(0) as u64;
        // A counter that fell was reset.
        let meanwhile = if last < first { last } else { last - first };
        FailureCount { all: count(last), meanwhile: count(meanwhile) }
    }
}

/// One device.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedDevice {
    /// Its number in the process.
    pub gpu: u32,
    /// The peak of allocated bytes.
    pub peak: Option<HighWater>,
    /// The least allocated bytes while observed.
    pub least: Option<u64>,
    /// End of the observation, on the peak's clock.
    pub until: Nanos,
    /// Out-of-memory errors that the job caught.
    pub ooms: FailureCount,
    /// After freeing the cache (`num_alloc_retries`).
    pub retries: FailureCount,
    /// Growth that allocated bytes do not explain.
    pub reserved: Option<ReservedGrowth>,
    /// When it will be full.
    pub full: Option<TimeToFull>,
    /// Seconds of observation.
    pub seconds: f64,
    /// Lines that took memory from the driver, most first; empty unless known exactly.
    pub taken_by: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_across_a_reset() {
        let count = |all, meanwhile| FailureCount { all, meanwhile };
        assert_eq!(FailureCount::between(3, 5), count(5, 2));
        assert_eq!(FailureCount::between(3, 1), count(1, 1));
        assert_eq!(FailureCount::between(3, 3), count(3, 0));
    }
}
