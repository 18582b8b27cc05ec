//! Devices and their memory, by the driver.

use super::record::Nanos;

/// A device's number in the target (`CUDA_VISIBLE_DEVICES` renumbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaIndex(pub u32);

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDevice {
    /// Its number in the target, if visible and known.
    pub cuda_index: Option<CudaIndex>,
    /// Its number in NVML and nvidia-smi, if NVML is there.
    pub nvml_index: Option<u32>,
    /// `GPU-…` or `MIG-…` UUID.
    pub uuid: Option<String>,
    /// PCI bus id, `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Memory bytes.
    pub total: Option<u64>,
}

impl GpuDevice {
    /// Adds it to `devices`, or replaces an older entry.
    pub fn merge_into(&self, devices: &mut Vec<GpuDevice>) {
        let same = |d: &&mut GpuDevice| d.nvml_index.is_some() && d.nvml_index == self.nvml_index;
        match devices.iter_mut().find(same) {
            Some(known) => *known = self.clone(),
            None => devices.push(self.clone()),
        }
    }
}

/// The target's bytes on a device, by the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessUsage {
    /// All: context, module code, PyTorch and the rest.
    Bytes(u64),
    /// Why they are unknown (hidden pid, no accounting, no NVML).
    Unknown(String),
}

impl ProcessUsage {
    /// The reason if the driver lists other processes only: this one has nothing there, or not yet.
    pub const NOT_LISTED: &str = "the driver does not list this process";
}

/// A device's memory, by NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUsage {
    /// When.
    pub time: Nanos,
    /// Number in NVML.
    pub nvml_index: u32,
    /// Bytes.
    pub total: u64,
    /// Bytes used by all processes, without `reserved` (`nvmlDeviceGetMemoryInfo_v2`), as in
    /// nvidia-smi.
    pub used: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes kept by driver and firmware; `None`: only the call's first version exists.
    pub reserved: Option<u64>,
    /// The target's bytes.
    pub process: ProcessUsage,
}
