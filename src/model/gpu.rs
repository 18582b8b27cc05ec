//! The devices and what the driver says of their memory.

use super::record::Nanos;

/// A device's number as the target's CUDA runtime counts it (after `CUDA_VISIBLE_DEVICES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaIndex(pub u32);

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDevice {
    /// Its number in the target; `None` when the target cannot see it or the mapping is unknown.
    pub cuda_index: Option<CudaIndex>,
    /// Its number in NVML and nvidia-smi; `None` when NVML is not available.
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
    /// Puts it into a list of devices, in the place of what was known of the same one before.
    pub fn keep_in(&self, devices: &mut Vec<GpuDevice>) {
        let same = |d: &&mut GpuDevice| d.nvml_index.is_some() && d.nvml_index == self.nvml_index;
        match devices.iter_mut().find(same) {
            Some(known) => *known = self.clone(),
            None => devices.push(self.clone()),
        }
    }
}

/// Bytes of a device used by the target process, as the driver accounts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessUsage {
    /// Bytes, all of the process: context, module code, PyTorch, everything.
    Bytes(u64),
    /// Not known, and why (a pid namespace hides it, the driver does not account it, no NVML).
    Unknown(String),
}

impl ProcessUsage {
    /// Why it is unknown of a process that the driver, which lists all, does not list: it has nothing there, or nothing yet.
    pub const NOT_LISTED: &str = "the driver does not list this process";
}

/// One look at a device through NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUsage {
    /// When.
    pub time: Nanos,
    /// Which device, by its number in NVML.
    pub nvml_index: u32,
    /// Memory in bytes.
    pub total: u64,
    /// Bytes in use, of all processes (`nvmlDeviceGetMemoryInfo_v2`: without `reserved`, as nvidia-smi prints).
    pub used: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes kept by driver and firmware; `None` where only the first version of the call exists.
    pub reserved: Option<u64>,
    /// What the target itself uses.
    pub process: ProcessUsage,
}
