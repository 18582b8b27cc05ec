//! Reading NVML: the devices, their memory, and the target's share.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::model::{DeviceUsage, GpuDevice, Nanos};
use crate::target::{HostPids, Process};

use super::processes;
use super::visible::CudaVisibility;

/// Why the driver could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no NVML on this machine, or it finds no driver.
    #[error("NVML (libnvidia-ml.so.1) is not available: {0}")]
    NoNvml(NvmlError),
    /// NVML is there, but a query failed.
    #[error("NVML cannot {action}: {source}")]
    Query {
        /// What was asked for.
        action: &'static str,
        /// Its answer.
        source: NvmlError,
    },
}

/// NVML, asked about one target.
pub struct GpuReader {
    nvml: Nvml,
    pid: u32,
    pids: HostPids,
}

impl GpuReader {
    /// Loads NVML. Creates no CUDA context and changes nothing.
    pub fn open(process: &Process) -> Result<Self, GpuError> {
        Ok(GpuReader { nvml: load()?, pid: process.pid(), pids: HostPids::read() })
    }

    /// The driver's version, `580.159.04`.
    pub fn driver_version(&self) -> Result<String, GpuError> {
        self.nvml.sys_driver_version().map_err(query("read the driver's version"))
    }

    /// All devices of the machine, in NVML's order, with the numbers the target gives them.
    pub fn devices(&self, visibility: &CudaVisibility) -> Result<Vec<GpuDevice>, GpuError> {
        let count = self.nvml.device_count().map_err(query("count the devices"))?;
        let mut devices = Vec::new();
        for index in 0..count {
            let device = self.nvml.device_by_index(index).map_err(query("open a device"))?;
            devices.push(GpuDevice {
                cuda_index: None,
                nvml_index: Some(index),
                uuid: device.uuid().ok(),
                pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
                name: device.name().ok(),
                total: device.memory_info().ok().map(|m| m.total),
            });
        }
        visibility.number(&mut devices);
        Ok(devices)
    }

    /// One look at device `nvml_index`. The list of processes costs milliseconds and holds a lock of the
    /// driver, so this is for a few calls a second, never for the sampling rate.
    pub fn usage(&self, nvml_index: u32, time: Nanos) -> Result<DeviceUsage, GpuError> {
        let device = self.nvml.device_by_index(nvml_index).map_err(query("open a device"))?;
        let memory = device.memory_info().map_err(query("read a device's memory"))?;
        Ok(DeviceUsage {
            time,
            nvml_index,
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: Some(memory.reserved),
            process: processes::usage_of(
                self.pid,
                &processes::computing_on(&device, self.pids),
                self.pids,
            ),
        })
    }
}

/// Loads NVML.
pub(super) fn load() -> Result<Nvml, GpuError> {
    // The name with its version first: the bare one comes with development packages only.
    Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .or_else(|_| Nvml::init())
        .map_err(GpuError::NoNvml)
}

pub(super) fn query(action: &'static str) -> impl FnOnce(NvmlError) -> GpuError {
    move |source| GpuError::Query { action, source }
}
