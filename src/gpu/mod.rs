//! The driver's view: memory of each device and of the target on it, which device is which; and its checkpoints.
//!
//! Turns NVML into [`DeviceUsage`](crate::model::DeviceUsage) and [`DeviceStatus`](crate::model::DeviceStatus) values.
//! May import `model`, `target`, and alone knows nvml-wrapper, cudarc and libloading.
//! Never creates a CUDA context, never changes a device's settings, never guesses a number the driver does not give;
//! changes a target only by the calls of [`CheckpointApi`].
//! Start reading at [`GpuReader`].

mod checkpoint;
mod machine;
mod nvml;
mod processes;
mod visible;

pub use checkpoint::{CheckpointApi, CheckpointError, CudaState};
pub use machine::MachineReader;
pub use nvml::{GpuError, GpuReader};
pub use visible::{CudaVisibility, DeviceOrder};
