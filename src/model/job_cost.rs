//! What a recording costs the recorded job.

/// The share of its time that a job lost to a recording. Shares are in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobCost {
    /// The number of events or counter deltas times the time of one.
    pub calculated: Option<u32>,
    /// By the job's own pace.
    pub measured: Option<MeasuredCost>,
    /// What the recording was allowed to cost; `None`: any amount.
    pub budget: Option<u32>,
    /// The share of the job's time that polls followed; `None` for exact stacks.
    pub followed: Option<u32>,
}

/// A job's pace while it was followed, beside its pace in rests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeasuredCost {
    /// The estimate.
    pub share: u32,
    /// Nine times of ten the cost is at least this...
    pub least: u32,
    /// ... and at most this.
    pub most: u32,
    /// How much the pace varies from slice to slice (standard deviation).
    pub variation: u32,
}
