//! The driver's view: memory of each device and of the target on it, and which device is which.
//!
//! Turns NVML into [`DeviceUsage`](crate::model::DeviceUsage) and [`DeviceStatus`](crate::model::DeviceStatus) values.
//! May import `model`, `target`, and alone knows nvml-wrapper.
//! Never creates a CUDA context, never changes a device's settings, never guesses a number the driver does not give.
//! Start reading at [`GpuReader`].

mod machine;
mod nvml;
mod processes;
mod visible;

pub use machine::MachineReader;
pub use nvml::{GpuError, GpuReader};
pub use visible::{CudaVisibility, DeviceOrder};
