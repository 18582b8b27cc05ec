//! A machine's GPUs and processes, by the driver.

use std::time::SystemTime;

use super::gpu::GpuDevice;

/// A device's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Without `reserved` (`nvmlDeviceGetMemoryInfo_v2`), as in nvidia-smi.
    pub used: u64,
    /// Kept by driver and firmware.
    pub reserved: u64,
}

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProcess {
    /// The driver's pid.
    pub listed: u32,
    /// In memspy's namespace, unless hidden.
    pub pid: Option<u32>,
    /// In its innermost namespace (a container), if another.
    pub pid_inside: Option<u32>,
    /// Command line, else name, if readable.
    pub command: Option<String>,
    /// It uses CUDA.
    pub compute: bool,
    /// It draws.
    pub graphics: bool,
    /// Its bytes, if the driver accounts them.
    pub bytes: Option<u64>,
}

/// A device's processes, or why they are unknown.
pub type DeviceProcesses = Result<Vec<DeviceProcess>, String>;

/// What is known of another process on the job's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighbourRole {
    /// A worker of the job that waits for work, with a context and no tensor.
    IdleWorker,
    /// Its launcher has ended.
    Orphan {
        /// The launcher's pid.
        launcher: u32,
        /// It is the job itself.
        is_job: bool,
    },
}

/// A process on the job's GPUs that perhaps nobody needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNeighbour {
    /// Its pid.
    pub pid: u32,
    /// Its command, if readable.
    pub command: Option<String>,
    /// The GPUs, as numbered in the job.
    pub gpus: Vec<u32>,
    /// Its bytes on them, if the driver accounts them.
    pub bytes: Option<u64>,
    /// What it is.
    pub role: NeighbourRole,
}

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigDevice {
    /// Its number on the GPU.
    pub index: u32,
    /// `MIG-…` UUID.
    pub uuid: Option<String>,
    /// Name and profile.
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
    /// `580.159.04`.
    pub driver_version: Option<String>,
    /// From 0 (fastest) to 15.
    pub performance_state: Option<u32>,
    /// Newest generation of GPU and machine.
    pub pcie_gen_max: Option<u32>,
    /// Lowered by the driver when idle.
    pub pcie_gen_current: Option<u32>,
    /// Of the chip, in °C.
    pub temperature: Option<u32>,
    /// Percentage of the last period with a running kernel.
    pub utilization_gpu: Option<u32>,
    /// Percentage of it with memory accesses.
    pub utilization_memory: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Its processes.
    pub processes: DeviceProcesses,
    /// Empty: MIG is off or unknown.
    pub mig: Vec<MigDevice>,
}

/// A perhaps forgotten process that holds a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    /// Its pid.
    pub pid: u32,
    /// Its command.
    pub command: Option<String>,
    /// Open device files, unlisted by the driver; empty for a listed orphan.
    pub files: Vec<String>,
    /// Its launcher, if known.
    pub launcher: Option<u32>,
    /// Evidence for the launcher.
    pub evidence: Option<String>,
    /// When it started.
    pub started: Option<SystemTime>,
}
