//! Reads NVML for one target.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::model::{DeviceUsage, GpuDevice, Nanos};
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
pub enum GpuError {
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

impl From<WorkerError> for GpuError {
    fn from(error: WorkerError) -> GpuError {
        match error {
            WorkerError::NoAnswer { seconds } => GpuError::NoAnswer { seconds },
            WorkerError::Io(error) => GpuError::NoThread(error),
        }
    }
}

/// After a hang, no other query is tried.
pub(super) struct BoundedNvml {
    nvml: Arc<Nvml>,
    worker: BoundedWorker,
}

impl BoundedNvml {
    pub(super) fn load() -> Result<BoundedNvml, GpuError> {
        let worker = BoundedWorker::default();
        let nvml = worker.run_within(LOADING, load)?;
        Ok(BoundedNvml { nvml: Arc::new(nvml), worker })
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Nvml) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let nvml = self.nvml.clone();
        self.worker.run_within(READING, move || question(&nvml))
    }

    pub(super) fn ask_of_all<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Nvml) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let nvml = self.nvml.clone();
        self.worker.run_within(LISTING, move || question(&nvml))
    }
}

/// Reads NVML for one target.
pub struct GpuReader {
    nvml: BoundedNvml,
    pid: u32,
    pids: HostPids,
}

impl GpuReader {
    /// Loads NVML; creates no CUDA context.
    pub fn open(process: &Process) -> Result<Self, GpuError> {
        if process.is_core() {
            return Err(GpuError::CoreFile);
        }
        Ok(GpuReader { nvml: BoundedNvml::load()?, pid: process.pid(), pids: HostPids::read() })
    }

    /// `580.159.04`.
    pub fn driver_version(&self) -> Result<String, GpuError> {
        let action = "read the driver's version";
        self.nvml.ask(move |nvml| nvml.sys_driver_version().map_err(query(action)))
    }

    /// In NVML's order, with CUDA numbers.
    pub fn devices(&self, visibility: &CudaVisibility) -> Result<Vec<GpuDevice>, GpuError> {
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
                .collect::<Result<Vec<_>, GpuError>>()
        })?;
        visibility.number(&mut devices);
        Ok(devices)
    }

    /// Takes milliseconds and a driver lock: call it a few times a second.
    pub fn usage(&self, nvml_index: u32, time: Nanos) -> Result<DeviceUsage, GpuError> {
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

fn load() -> Result<Nvml, GpuError> {
    // Only development packages have the bare name.
    Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .or_else(|_| Nvml::init())
        .map_err(GpuError::NoNvml)
}

pub(super) fn query(action: &'static str) -> impl FnOnce(NvmlError) -> GpuError {
    move |source| GpuError::Query { action, source }
}
