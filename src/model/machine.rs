//! What the driver says of a machine's GPUs at one moment, and of the processes on them.

use std::time::SystemTime;

use super::gpu::GpuDevice;

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// In use by processes (`nvmlDeviceGetMemoryInfo_v2`: without `reserved`, as nvidia-smi prints).
    pub used: u64,
    /// Kept by driver and firmware.
    pub reserved: u64,
}

/// A process that the driver lists on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Its pid as the driver gives it.
    pub listed: u32,
    /// Its pid in memspy's pid namespace; `None` when that hides it.
    pub pid: Option<u32>,
    /// Its pid in the innermost namespace it lives in, where that is another number (a container).
    pub pid_inside: Option<u32>,
    /// Its command line, else its name; `None` when it is hidden or has ended.
    pub command: Option<String>,
    /// Whether it computes (CUDA).
    pub compute: bool,
    /// Whether it draws.
    pub graphics: bool,
    /// Bytes it uses; `None` where the driver does not account them.
    pub bytes: Option<u64>,
}

/// The processes of a device, or why they are not known.
pub type DeviceProcesses = Result<Vec<DeviceProcess>, String>;

/// A part of a GPU that MIG has cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigDevice {
    /// Its number on its GPU.
    pub index: u32,
    /// `MIG-…` UUID.
    pub uuid: Option<String>,
    /// Name with its profile.
    pub name: Option<String>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Who uses it.
    pub processes: DeviceProcesses,
}

/// A GPU of the machine at one moment; `None` is what its driver does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Which one.
    pub device: GpuDevice,
    /// The driver's version, `580.159.04`.
    pub driver_version: Option<String>,
    /// Performance state: 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// The newest PCIe generation that GPU and machine can use.
    pub pcie_gen_max: Option<u32>,
    /// The PCIe generation in use now; the driver lowers it at rest.
    pub pcie_gen_current: Option<u32>,
    /// Temperature of the chip in °C.
    pub temperature: Option<u32>,
    /// Part of the last sampling period in which a kernel ran, in per cent.
    pub utilization_gpu: Option<u32>,
    /// Part of it in which device memory was read or written, in per cent.
    pub utilization_memory: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Who uses it.
    pub processes: DeviceProcesses,
    /// Its MIG devices; empty when MIG is off or not known.
    pub mig: Vec<MigDevice>,
}

/// A process that holds a GPU and that nobody may be waiting for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    /// Its pid.
    pub pid: u32,
    /// What it runs.
    pub command: Option<String>,
    /// The device files that it has open, though the driver does not list it; empty for a listed one whose starter is gone.
    pub files: Vec<String>,
    /// Who started it, where that is known.
    pub launcher: Option<u32>,
    /// What names that process.
    pub evidence: Option<String>,
    /// When the process left behind started.
    pub started: Option<SystemTime>,
}
