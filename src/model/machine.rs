//! A machine's GPUs and their processes at one moment, by the driver's account.

use std::time::SystemTime;

use super::gpu::GpuDevice;

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Used by processes (`nvmlDeviceGetMemoryInfo_v2`: without `reserved`, as nvidia-smi prints).
    pub used: u64,
    /// Kept by driver and firmware.
    pub reserved: u64,
}

/// A process that the driver lists on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProcess {
    /// The driver's pid.
    pub listed: u32,
    /// Its pid in memspy's pid namespace; `None`: hidden there.
    pub pid: Option<u32>,
    /// Its pid in its innermost namespace, if different (a container).
    pub pid_inside: Option<u32>,
    /// Its command line, else its name; `None`: hidden or ended.
    pub command: Option<String>,
    /// Whether it computes (CUDA).
    pub compute: bool,
    /// Whether it draws.
    pub graphics: bool,
    /// Bytes it uses; `None`: the driver does not account them.
    pub bytes: Option<u64>,
}

/// The processes of a device, or why they are unknown.
pub type DeviceProcesses = Result<Vec<DeviceProcess>, String>;

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigDevice {
    /// Its number on its GPU.
    pub index: u32,
    /// `MIG-…` UUID.
    pub uuid: Option<String>,
    /// Name with profile.
    pub name: Option<String>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Its processes.
    pub processes: DeviceProcesses,
}

/// A GPU at one moment; `None`: the driver does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// The GPU.
    pub device: GpuDevice,
    /// The driver's version, `580.159.04`.
    pub driver_version: Option<String>,
    /// Performance state: 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// The newest PCIe generation that both GPU and machine support.
    pub pcie_gen_max: Option<u32>,
    /// The current PCIe generation; the driver lowers it at rest.
    pub pcie_gen_current: Option<u32>,
    /// Temperature of the chip in °C.
    pub temperature: Option<u32>,
    /// Percentage of the last sampling period in which a kernel ran.
    pub utilization_gpu: Option<u32>,
    /// Percentage of it in which device memory was read or written.
    pub utilization_memory: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Its processes.
    pub processes: DeviceProcesses,
    /// Its MIG devices; empty: MIG is off or unknown.
    pub mig: Vec<MigDevice>,
}

/// A process that holds a GPU and may be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    /// Its pid.
    pub pid: u32,
    /// What it runs.
    pub command: Option<String>,
    /// The device files that it has open without being listed by the driver; empty for a listed
    /// orphan.
    pub files: Vec<String>,
    /// Its launcher, if known.
    pub launcher: Option<u32>,
    /// The evidence for the launcher.
    pub evidence: Option<String>,
    /// When the process itself started.
    pub started: Option<SystemTime>,
}
