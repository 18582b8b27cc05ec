//! Reading NVML: the devices, their memory, and the target's share.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::model::{Device, DeviceUsage, Nanos, ProcessUsage};
use crate::target::Process;

use super::visible::CudaVisibility;

/// Inode of the first pid namespace (include/linux/proc_ns.h, `PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

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
    sees_host_pids: bool,
}

impl GpuReader {
    /// Loads NVML. Creates no CUDA context and changes nothing.
    pub fn open(process: &Process) -> Result<Self, GpuError> {
        // The name with its version first: the bare one comes with development packages only.
        let nvml = Nvml::builder()
            .lib_path("libnvidia-ml.so.1".as_ref())
            .init()
            .or_else(|_| Nvml::init())
            .map_err(GpuError::NoNvml)?;
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        let sees_host_pids = namespace.is_ok_and(|n| n.as_os_str() == INITIAL_PID_NAMESPACE);
        Ok(GpuReader { nvml, pid: process.pid(), sees_host_pids })
    }

    /// The driver's version, `580.159.04`.
    pub fn driver_version(&self) -> Result<String, GpuError> {
        self.nvml.sys_driver_version().map_err(query("read the driver's version"))
    }

    /// All devices of the machine, in NVML's order, with the numbers the target gives them.
    pub fn devices(&self, visibility: &CudaVisibility) -> Result<Vec<Device>, GpuError> {
        let count = self.nvml.device_count().map_err(query("count the devices"))?;
        let mut devices = Vec::new();
        for index in 0..count {
            let device = self.nvml.device_by_index(index).map_err(query("open a device"))?;
            devices.push(Device {
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
    /// driver (field.md: 4.5 ms), so this is for a few calls a second, never for the sampling rate.
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
            process: self.process_usage(&device),
        })
    }

    fn process_usage(&self, device: &nvml_wrapper::Device<'_>) -> ProcessUsage {
        let unknown = |why: &str| ProcessUsage::Unknown(why.to_owned());
        let listed = match device.running_compute_processes() {
            Err(NvmlError::FailedToLoadSymbol(_)) => device.running_compute_processes_v2(),
            other => other,
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(e) => return ProcessUsage::Unknown(format!("NVML does not list processes: {e}")),
        };
        // The driver knows processes by their pid on the host. Seen from inside a container such a
        // number may by chance be another process's, so it counts only if all numbers are ours.
        if !self.sees_host_pids {
            let ours = |pid: u32| std::fs::exists(format!("/proc/{pid}")).unwrap_or(false);
            if !listed.iter().all(|p| ours(p.pid)) {
                return unknown("the driver lists host pids, which this pid namespace hides");
            }
        }
        let mut bytes = None;
        for process in listed.iter().filter(|p| p.pid == self.pid) {
            match process.used_gpu_memory {
                UsedGpuMemory::Used(used) => bytes = Some(bytes.unwrap_or(0) + used),
                UsedGpuMemory::Unavailable => return unknown("the driver does not account it"),
            }
        }
        match bytes {
            Some(bytes) => ProcessUsage::Bytes(bytes),
            None if self.sees_host_pids => unknown("the driver does not list this process"),
            None => unknown("the driver does not list this process in this pid namespace"),
        }
    }
}

fn query(action: &'static str) -> impl FnOnce(NvmlError) -> GpuError {
    move |source| GpuError::Query { action, source }
}
