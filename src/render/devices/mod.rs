//! `memspy devices`: the GPUs of the machine.

mod csv;
mod json;
mod text;

pub use csv::{devices_csv, devices_csv_head};
pub use json::{
    DeviceMemoryJson, DeviceProcessJson, DevicesJson, GpuJson, JobDeviceJson, JobJson,
    LeftBehindJson, MigDeviceJson, MissedJson, devices_json,
};
pub use text::{DevicesTarget, DevicesView, devices_text};
