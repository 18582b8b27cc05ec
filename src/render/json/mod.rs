//! The structs that `--json` prints, defined beside their commands' text. They make `docs/json.md`.

#![expect(
    clippy::module_name_repetitions,
    reason = "docs/schema prints these names, and their ends tell them from what they print"
)]

#[cfg(test)]
mod schema_tests;

pub use super::checkpoint::{CheckpointJson, MovedDeviceJson};
pub use super::devices::{
    DeviceMemoryJson, DeviceProcessJson, DevicesJson, GpuJson, JobDeviceJson, JobJson,
    LeftBehindJson, MigDeviceJson, MissedJson,
};
pub use super::doctor::{DoctorJson, FindingJson, FindingStatus};
pub use super::dry_run::{
    DryRunJson, FittedJson, RunHolderJson, RunLineJson, RunMarginJson, RunMomentJson, RunPeaksJson,
    RunProcessJson,
};
pub use super::dump::{
    BlockJson, ConsistencyJson, CoreJson, DumpDeviceJson, DumpFrameJson, DumpJson, DumpOwnersJson,
    MixedFrameJson, MixedStackJson, NativeJson, NativeThreadJson, SegmentJson, ThreadJson,
};
pub use super::export::{ExportFrameJson, ExportJson, ExportMomentJson, ExportStackJson};
pub use super::iterations::{IterationJson, IterationsJson, ParameterJson};
pub use super::lines::{
    BoundedJson, ByteBalanceJson, ExactRecordingJson, FunctionLinesJson, HighWaterJson,
    LineCellJson, LineJson, LinesJson, LiveMomentJson, OtherMemoryJson, RankFunctionJson, RankJson,
    RankLineJson, RankLinesJson, RankValueJson, RankValuesJson, RankedLineJson, RefusalsJson,
};
pub use super::owners::{
    BackwardMemoryJson, CopiedTensorsJson, DeviceOwnersJson, FreesJson, GarbageCycleJson,
    GraphNodeJson, IncompleteJson, KeptWayJson, LossMemoryJson, ModelSizeJson, ModelsizeJson,
    NodeClassJson, OwnedPoolJson, OwnerGroupJson, OwnerPatternJson, OwnershipJson,
    PythonTensorsJson, ReferrerJson, SavedByJson, SavedJson, StopsJson, TensorJson,
    TensorReferrersJson, TrumpyJson, UncertainJson, WayStepJson,
};
pub use super::shared::{
    AttributionJson, FragmentationJson, JsonDocument, JsonFormat, PrivatePoolJson, SegmentSumJson,
    SizeClassJson, SleepTagJson,
};
pub use super::summary::{
    FindingsJson, GpuLinesJson, GrowthJson, KeeperJson, LineBytesJson, LineGrowthJson,
    ObservedGrowthJson, ObservedLinesJson, OwnerGrowthJson, SummaryFindingJson, SummaryGpuJson,
    SummaryJson,
};
pub use super::what_if::{ReplayedSettingJson, WhatIfJson};
