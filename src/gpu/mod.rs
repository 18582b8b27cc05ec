//! The driver's figures for devices and processes.
//!
//! Turns NVML's answers into [`DeviceUsage`](crate::model::DeviceUsage) and
//! [`DeviceStatus`](crate::model::DeviceStatus). May import `model`, `target`; only this room uses
//! nvml-wrapper. Never creates a CUDA context, changes a setting, or guesses. Start reading at
//! [`NvmlReader`].

mod machine;
mod nvml;
mod processes;
mod visible;

pub use machine::MachineReader;
pub use nvml::{DriverError, NvmlReader};
pub use visible::{CudaVisibility, DeviceOrder};
