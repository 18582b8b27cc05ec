//! The JSON of `memspy lines --merge`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BoundedJson, HighWaterJson, JsonFormat};

/// `memspy lines --merge --json`: the memory of each line in several ranks. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankLinesJson {
    /// The ranks.
    pub ranks: Vec<RankJson>,
    /// The statistics that were asked for: keys of `torch.cuda.memory_stats`.
    pub columns: Vec<String>,
    /// All functions with their lines, the one with the greatest `peak` first.
    pub functions: Vec<RankFunctionJson>,
}

impl JsonFormat for RankLinesJson {
    const FORMAT: &'static str = "memspy-lines-merged";
    const VERSION: u32 = 1;
}

/// A rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankJson {
    /// What it is called in this document: `rank 3`.
    pub label: String,
    /// Its number; `null` where the job does not say.
    pub rank: Option<u32>,
    /// Its process.
    pub pid: Option<u32>,
    /// The host that it ran on.
    pub host: Option<String>,
    /// The GPU, as the rank numbers it.
    pub device: u32,
    /// The peak of allocated bytes by the allocator's counter: exact.
    pub peak_allocated: HighWaterJson,
    /// The peak of reserved bytes by the allocator's counter: exact; `null` where it was not
    /// recorded.
    pub peak_reserved: Option<HighWaterJson>,
    /// How often the threads' stacks were sampled.
    pub samples: u64,
    /// Whether the recording is exact, and not sampled.
    pub exact: bool,
    /// How long the recording is, in seconds.
    pub seconds: f64,
    /// What makes the figures less certain.
    pub warnings: Vec<String>,
}

/// A function in all ranks: that of one name in one file at one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankFunctionJson {
    /// Its name.
    pub function: String,
    /// The path of its file.
    pub file: String,
    /// The line that it begins at.
    pub first_line: u32,
    /// The greatest value of the first column in any rank.
    pub peak: i64,
    /// The lines that were seen, in order.
    pub lines: Vec<RankLineJson>,
}

/// A line in all ranks that have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankLineJson {
    /// Its number; 0 when unknown.
    pub line: u32,
    /// Its text; `null` where the recording does not have it.
    pub source: Option<String>,
    /// In how many ranks it was seen.
    pub ranks: u64,
    /// The statistics of `columns` by their keys; `null` where no rank knows one.
    pub columns: BTreeMap<String, Option<RankValuesJson>>,
    /// Bytes live at each rank's peak that were allocated while it was on the stack; exact only in
    /// exact recordings.
    pub live_at_peak: RankValuesJson,
}

/// A value in several ranks, in each at a time of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankValuesJson {
    /// The greatest.
    pub greatest: RankValueJson,
    /// The least.
    pub least: RankValueJson,
    /// The sum; a rank that does not know the value adds nothing, and then the sum is not exact.
    pub sum: BoundedJson,
}

/// The value of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankValueJson {
    /// The value; where it is not exact, the true one is at least this.
    pub value: i64,
    /// Whether it is the true one.
    pub exact: bool,
    /// The true one is at most this; `null` where nothing limits it.
    pub upper: Option<i64>,
    /// The rank's `label`.
    pub rank: Option<String>,
}
