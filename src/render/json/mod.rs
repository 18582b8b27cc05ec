//! What `--json` prints: a struct for every document, with its name and version. `docs/json.md` is
//! generated from these files.

mod attribution;
mod checkpoint;
mod devices;
mod doctor;
mod dump;
mod export;
mod fragmentation;
mod graph;
mod iterations;
mod lines;
mod mixed_stacks;
mod owner_groups;
mod owners;
mod rank_lines;
#[cfg(test)]
mod schema_tests;
mod sleep_tags;
mod summary;

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::RenderError;
use super::interchange::{json_line, pretty_json};

pub use attribution::AttributionJson;
pub use checkpoint::{CheckpointJson, MovedDeviceJson};
pub use devices::{
    DeviceMemoryJson, DeviceProcessJson, DevicesJson, GpuJson, JobDeviceJson, JobJson,
    LeftBehindJson, MigDeviceJson, MissedJson,
};
pub use doctor::{DoctorJson, FindingJson, FindingStatus};
pub use dump::{
    BlockJson, ConsistencyJson, CoreJson, DumpDeviceJson, DumpFrameJson, DumpJson, DumpOwnersJson,
    SegmentJson, ThreadJson,
};
pub use export::{ExportFrameJson, ExportJson, ExportMomentJson, ExportStackJson};
pub use fragmentation::{FragmentationJson, PrivatePoolJson, SegmentSumJson, SizeClassJson};
pub use graph::{BackwardMemoryJson, LossMemoryJson, ModelSizeJson, ModelsizeJson, TrumpyJson};
pub use iterations::{IterationJson, IterationsJson, ParameterJson};
pub use lines::{
    BoundedJson, ByteBalanceJson, ExactRecordingJson, FunctionLinesJson, HighWaterJson,
    LineCellJson, LineJson, LinesJson, LiveMomentJson, OtherMemoryJson, RankedLineJson,
    RefusalsJson,
};
pub use mixed_stacks::{MixedFrameJson, MixedStackJson, NativeJson, NativeThreadJson};
pub use owner_groups::{OwnerGroupJson, OwnerPatternJson};
pub use owners::{
    CopiedTensorsJson, DeviceOwnersJson, GarbageCycleJson, GraphNodeJson, IncompleteJson,
    NodeClassJson, OwnedPoolJson, OwnershipJson, PythonTensorsJson, ReferrerJson, SavedByJson,
    SavedJson, StopsJson, TensorJson, TensorReferrersJson,
};
pub use rank_lines::{
    RankFunctionJson, RankJson, RankLineJson, RankLinesJson, RankValueJson, RankValuesJson,
};
pub use sleep_tags::SleepTagJson;
pub use summary::{
    GpuLinesJson, GrowthJson, KeeperJson, LineBytesJson, LineGrowthJson, ObservedGrowthJson,
    ObservedLinesJson, OwnerGrowthJson, SummaryFindingJson, SummaryGpuJson, SummaryJson,
};

/// A document that a command prints.
pub trait JsonFormat {
    /// Its name, `memspy-…`; never another document's.
    const FORMAT: &'static str;
    /// Raised when a field goes or changes its meaning; a new field does not raise it.
    const VERSION: u32;
}

/// A whole document: what it is, and its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JsonDocument<T> {
    /// Which document it is.
    pub format: String,
    /// The version of that document.
    pub version: u32,
    /// Its fields, beside the two above.
    #[serde(flatten)]
    pub content: T,
}

impl<T: JsonFormat + Serialize> JsonDocument<T> {
    /// Wraps this content as a document.
    pub fn new(content: T) -> JsonDocument<T> {
        JsonDocument { format: T::FORMAT.to_owned(), version: T::VERSION, content }
    }

    /// Writes it in many lines if `pretty`, else in one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, out: &mut dyn Write, pretty: bool) -> Result<(), RenderError> {
        if pretty { pretty_json(out, self) } else { json_line(out, self) }
    }
}
