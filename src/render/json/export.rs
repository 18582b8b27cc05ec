//! The JSON of `memspy export --format json`.

use serde::{Deserialize, Serialize};

use super::{AttributionJson, JsonFormat};

/// `memspy export --format json`: what was live at a moment, by stack. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportJson {
    /// A moment for each device of each trace.
    pub moments: Vec<ExportMomentJson>,
}

impl JsonFormat for ExportJson {
    const FORMAT: &'static str = "memspy-export";
    const VERSION: u32 = 1;
}

/// The memory of one device of one process at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportMomentJson {
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// The process.
    pub pid: u32,
    /// The GPU, as the job numbers it.
    pub device: u32,
    /// Which moment: `peak` or `end`.
    pub moment: String,
    /// When it was, in seconds since the recording began.
    pub seconds: f64,
    /// Whether the recording is exact, and not sampled.
    pub exact: bool,
    /// Whether the bytes of stacks are estimated from a sample of the allocations.
    pub estimated: bool,
    /// How the stacks of the bytes allocated while recording are known.
    pub attribution: AttributionJson,
    /// Live bytes: the sum of those of the stacks.
    pub live_bytes: u64,
    /// The true peak of allocated bytes; `null` where no counters were recorded.
    pub peak_bytes: Option<u64>,
    /// The stacks, the one with most live bytes first.
    pub stacks: Vec<ExportStackJson>,
    /// What the figures suffer from.
    pub warnings: Vec<String>,
}

/// One stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportStackJson {
    /// Bytes that it allocated and that were live at the moment.
    pub live_bytes: u64,
    /// All that it allocated while recording; `null` where the allocator was only sampled (`-r`).
    pub allocated_bytes: Option<u64>,
    /// How often it allocated; `null` where that is not known.
    pub allocations: Option<u64>,
    /// Its frames, from the outermost to the innermost.
    pub frames: Vec<ExportFrameJson>,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportFrameJson {
    /// The function, or a text in brackets that says why there is none.
    pub name: String,
    /// The path of its file.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
}
