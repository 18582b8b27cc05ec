//! All GPUs of the machine, like nvidia-smi.

use nvml_wrapper::Device as NvmlDevice;
use nvml_wrapper::enum_wrappers::device::{PerformanceState, TemperatureSensor};

use crate::model::{DeviceMemory, DeviceStatus, DeviceUsage, GpuDevice, MigDevice, Nanos};
use crate::target::HostPids;

use super::nvml::{BoundedNvml, DriverError, query};
use super::processes;

/// Reads the whole machine through NVML.
pub struct MachineReader {
    nvml: BoundedNvml,
    pids: HostPids,
}

impl MachineReader {
    /// Loads NVML; creates no CUDA context.
    pub fn open() -> Result<MachineReader, DriverError> {
        Ok(MachineReader { nvml: BoundedNvml::load()?, pids: HostPids::read() })
    }

    /// In NVML's order. An inaccessible device is an error, a missing figure `None`.
    pub fn read(&self) -> Result<Vec<DeviceStatus>, DriverError> {
        let pids = self.pids;
        self.nvml.ask_of_all(move |nvml| {
            let count = nvml.device_count().map_err(query("count the devices"))?;
            let driver_version = nvml.sys_driver_version().ok();
            let mut all = Vec::new();
            for index in 0..count {
                let device = nvml.device_by_index(index).map_err(query("open a device"))?;
                all.push(status(index, &device, driver_version.clone(), pids));
            }
            Ok(all)
        })
    }

    /// A process's use of the device; `None`: unknown memory.
    pub fn usage(&self, status: &DeviceStatus, pid: u32, time: Nanos) -> Option<DeviceUsage> {
        let memory = status.memory?;
        Some(DeviceUsage {
            time,
            nvml_index: status.device.nvml_index?,
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: Some(memory.reserved),
            process: processes::usage_of(pid, &status.processes, self.pids),
        })
    }
}

fn status(
    index: u32,
    device: &NvmlDevice<'_>,
    driver_version: Option<String>,
    pids: HostPids,
) -> DeviceStatus {
    let memory = memory(device);
    let utilization = device.utilization_rates().ok();
    DeviceStatus {
        device: GpuDevice {
            cuda_index: None,
            nvml_index: Some(index),
            uuid: device.uuid().ok(),
            pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
            name: device.name().ok(),
            total: memory.map(|m| m.total),
        },
        driver_version,
        performance_state: device.performance_state().ok().and_then(number_of),
        pcie_gen_max: device.max_pcie_link_gen().ok(),
        pcie_gen_current: device.current_pcie_link_gen().ok(),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        utilization_gpu: utilization.as_ref().map(|u| u.gpu),
        utilization_memory: utilization.as_ref().map(|u| u.memory),
        memory,
        processes: processes::on(device, pids),
        mig: mig(device, pids),
    }
}

fn mig(device: &NvmlDevice<'_>, pids: HostPids) -> Vec<MigDevice> {
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Vec::new();
    }
    // The maximum; places may be empty.
    (0..device.mig_device_count().unwrap_or(0))
        .filter_map(|index| {
            let mig = device.mig_device_by_index(index).ok()?;
            Some(MigDevice {
                index,
                uuid: mig.uuid().ok(),
                name: mig.name().ok(),
                memory: memory(&mig),
                processes: processes::on(&mig, pids),
            })
        })
        .collect()
}

fn memory(device: &NvmlDevice<'_>) -> Option<DeviceMemory> {
    let memory = device.memory_info().ok()?;
    Some(DeviceMemory {
        total: memory.total,
        free: memory.free,
        used: memory.used,
        reserved: memory.reserved,
    })
}

fn number_of(state: PerformanceState) -> Option<u32> {
    (state != PerformanceState::Unknown).then(|| state.as_c())
}
