//! What some seconds of observation tell of one device besides who holds its memory: its peak,
//! failures, growth of what is reserved.

use crate::analysis::live::reserved_growth::ReservedGrowth;
use crate::analysis::profile::high_water::HighWater;
use crate::model::Nanos;

/// How often something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureCount {
    /// Since the job began, or since it reset its counters.
    pub all: u64,
    /// Of these, while it was observed.
    pub meanwhile: u64,
}

impl FailureCount {
    /// Of a counter at the begin and at the end of an observation.
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
    /// When the observation ended, on the clock of the peak.
    pub until: Nanos,
    /// Out-of-memory errors; the job that is observed caught them.
    pub ooms: FailureCount,
    /// How often the allocator had to free its cache and ask again (`num_alloc_retries`).
    pub retries: FailureCount,
    /// Growth of what is reserved that what is allocated does not account for.
    pub reserved: Option<ReservedGrowth>,
    /// For how long it was observed, in seconds.
    pub seconds: f64,
    /// The lines of the program at which memory was taken from the driver meanwhile, those that
    /// took most first; empty where that is not known exactly.
    pub taken_by: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_since_the_begin_also_where_the_job_resets_them() {
        let count = |all, meanwhile| FailureCount { all, meanwhile };
        assert_eq!(FailureCount::between(3, 5), count(5, 2));
        assert_eq!(FailureCount::between(3, 1), count(1, 1));
        assert_eq!(FailureCount::between(3, 3), count(3, 0));
    }
}
