//! `memspy dump`: a process at one moment.

mod json;
mod native;
mod text;

pub use json::{
    BlockJson, ConsistencyJson, CoreJson, DumpDeviceJson, DumpFrameJson, DumpJson, DumpOwnersJson,
    SegmentJson, ThreadJson, dump_json,
};
pub use native::{MixedFrameJson, MixedStackJson, NativeJson, NativeThreadJson};
pub use text::{DumpOptions, OwnersResult, dump_text};
