//! Reads NVML for one target.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::model::{DeviceProcesses, DeviceUsage, GpuDevice, Nanos};
use crate::target::{BoundedWorker, HostPids, Process, WorkerError};

use super::processes;
use super::visible::CudaVisibility;

/// Loading NVML wakes every idle device.
const LOADING: Duration = Duration::from_secs(30);
const LISTING: Duration = Duration::from_secs(10);
/// A driver that has lost its device may never answer.
const READING: Duration = Duration::from_secs(5);

/// Why the driver could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DriverError {
    #[error("NVML (libnvidia-ml.so.1) is not available: {0}")]
    NoNvml(NvmlError),
    #[error("NVML cannot {action}: {source}")]
    Query { action: &'static str, source: NvmlError },
    #[error(
        "NVML did not answer within {seconds} s: the driver may have lost a device ('nvidia-smi' shows whether it answers)"
    )]
    NoAnswer { seconds: u64 },
    #[error("a core file does not hold the driver's figures")]
    CoreFile,
    #[error("NVML cannot be queried: {0}")]
    NoThread(std::io::Error),
}

impl From<WorkerError> for DriverError {
    fn from(error: WorkerError) -> DriverError {
        match error {
            WorkerError::NoAnswer { seconds } => DriverError::NoAnswer { seconds },
            WorkerError::Io(error) => DriverError::NoThread(error),
        }
    }
}

/// After a hang, no other query is tried.
pub(super) struct BoundedNvml {
    nvml: Arc<Nvml>,
    worker: BoundedWorker,
}

impl BoundedNvml {
    pub(super) fn load() -> Result<BoundedNvml, DriverError> {
        let worker = BoundedWorker::default();
        let nvml = worker.run_within(LOADING, load)?;
        Ok(BoundedNvml { nvml: Arc::new(nvml), worker })
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Nvml) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let nvml = self.nvml.clone();
        self.worker.run_within(READING, move || question(&nvml))
    }

    pub(super) fn ask_of_all<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Nvml) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let nvml = self.nvml.clone();
        self.worker.run_within(LISTING, move || question(&nvml))
    }
}

/// Reads NVML for one target.
pub struct NvmlReader {
    nvml: BoundedNvml,
    pid: u32,
    pids: HostPids,
}

impl NvmlReader {
    /// Loads NVML; creates no CUDA context.
    pub fn open(process: &Process) -> Result<Self, DriverError> {
        if process.is_core() {
            return Err(DriverError::CoreFile);
        }
        Ok(NvmlReader { nvml: BoundedNvml::load()?, pid: process.pid(), pids: HostPids::read() })
    }

    /// `580.159.04`.
    pub fn driver_version(&self) -> Result<String, DriverError> {
        let action = "read the driver's version";
        self.nvml.ask(move |nvml| nvml.sys_driver_version().map_err(query(action)))
    }

    /// In NVML's order, with CUDA numbers.
    pub fn devices(&self, visibility: &CudaVisibility) -> Result<Vec<GpuDevice>, DriverError> {
        let mut devices = self.nvml.ask_of_all(|nvml| {
            let count = nvml.device_count().map_err(query("count the devices"))?;
            (0..count)
                .map(|index| {
                    let device = nvml.device_by_index(index).map_err(query("open a device"))?;
                    Ok(GpuDevice {
                        cuda_index: None,
                        nvml_index: Some(index),
                        uuid: device.uuid().ok(),
                        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
                        name: device.name().ok(),
                        total: device.memory_info().ok().map(|m| m.total),
                    })
                })
                .collect::<Result<Vec<_>, DriverError>>()
        })?;
        visibility.number(&mut devices);
        Ok(devices)
    }

    /// Those that use CUDA there.
    pub fn processes(&self, nvml_index: u32) -> Result<DeviceProcesses, DriverError> {
        let pids = self.pids;
        self.nvml.ask(move |nvml| {
            let device = nvml.device_by_index(nvml_index).map_err(query("open a device"))?;
            Ok(processes::computing_on(&device, pids))
        })
    }

    /// Takes milliseconds and a driver lock: call it a few times a second.
    pub fn usage(&self, nvml_index: u32, time: Nanos) -> Result<DeviceUsage, DriverError> {
        let pids = self.pids;
        let (memory, processes) = self.nvml.ask(move |nvml| {
            let device = nvml.device_by_index(nvml_index).map_err(query("open a device"))?;
            let memory = device.memory_info().map_err(query("read a device's memory"))?;
            Ok((memory, processes::computing_on(&device, pids)))
        })?;
        Ok(DeviceUsage {
            time,
            nvml_index,
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: Some(memory.reserved),
            process: processes::usage_of(self.pid, &processes, self.pids),
        })
    }
}

fn load() -> Result<Nvml, DriverError> {
    // Only development packages have the bare name.
    Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .or_else(|_| Nvml::init())
        .map_err(DriverError::NoNvml)
}

pub(super) fn query(action: &'static str) -> impl FnOnce(NvmlError) -> DriverError {
    move |source| DriverError::Query { action, source }
}
