//! Devices, and the driver's figures of their memory.

use super::record::Nanos;

/// A device's number in the target's CUDA runtime (after `CUDA_VISIBLE_DEVICES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaIndex(pub u32);

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDevice {
    /// Its number in the target; `None`: invisible there, or unknown.
    pub cuda_index: Option<CudaIndex>,
    /// Its number in NVML and nvidia-smi; `None`: no NVML.
    pub nvml_index: Option<u32>,
    /// `GPU-…` or `MIG-…` UUID.
    pub uuid: Option<String>,
    /// PCI bus id, `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Memory in bytes.
    pub total: Option<u64>,
}

impl GpuDevice {
    /// Adds it to a list of devices, replacing an older entry of the same one.
    pub fn merge_into(&self, devices: &mut Vec<GpuDevice>) {
        let same = |d: &&mut GpuDevice| d.nvml_index.is_some() && d.nvml_index == self.nvml_index;
        match devices.iter_mut().find(same) {
            Some(known) => *known = self.clone(),
            None => devices.push(self.clone()),
        }
    }
}

/// The target's bytes on a device by the driver's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessUsage {
    /// All of the process: context, module code, PyTorch, everything.
    Bytes(u64),
    /// Why it is unknown (a pid namespace hides it, the driver does not account it, no NVML).
    Unknown(String),
}

impl ProcessUsage {
    /// The reason if the driver lists all processes but this one: it has nothing there, or nothing
    /// yet.
    pub const NOT_LISTED: &str = "the driver does not list this process";
}

/// A device's memory, read through NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUsage {
    /// When.
    pub time: Nanos,
    /// The device's number in NVML.
    pub nvml_index: u32,
    /// Memory in bytes.
    pub total: u64,
    /// Bytes used by all processes (`nvmlDeviceGetMemoryInfo_v2`: without `reserved`, as nvidia-smi
    /// prints).
    pub used: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes kept by driver and firmware; `None`: only the first version of the call exists.
    pub reserved: Option<u64>,
    /// The target's own use.
    pub process: ProcessUsage,
}
