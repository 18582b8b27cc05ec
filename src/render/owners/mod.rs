//! `memspy tensors`, `graph` and `why`.

mod frees;
mod groups;
#[cfg(test)]
mod incomplete_tests;
mod json;
mod like;
mod referrers;
mod tensors_json;
mod text;
mod why;

pub(crate) use frees::{COLLECT_NOTE, frees_text};
pub use frees::{FreesJson, KeptWayJson, WayStepJson};
pub use groups::{DEFAULT_ROWS, OwnerGroupJson, OwnerPatternJson, group_label, pattern_name};
pub(crate) use groups::{
    GroupRow, group_rows, outside_recorded, outside_tensors, pool_users, write_rows,
};
pub use json::{
    CopiedTensorsJson, DeviceOwnersJson, GarbageCycleJson, IncompleteJson, OwnedPoolJson,
    OwnershipJson, PythonTensorsJson, ReferrerJson, StopsJson, TensorReferrersJson, UncertainJson,
    ownership_json, ownership_json_line,
};
pub(crate) use json::{copied_json, incomplete_json, owners_by_device, uncertain_json};
pub use like::{
    BackwardMemoryJson, LossMemoryJson, ModelSizeJson, ModelsizeJson, TrumpyJson,
    like_modelsize_json, like_modelsize_text, like_trumpy_json, like_trumpy_text,
};
pub use referrers::why_text;
pub use tensors_json::{GraphNodeJson, NodeClassJson, SavedByJson, SavedJson, TensorJson};
pub use text::{
    DeviceChoice, TensorsOptions, changes_text, graph_text, incomplete, pause, place, tensors_text,
    uncertain,
};
pub(crate) use text::{categories, copied, write_storages};
