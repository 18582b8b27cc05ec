//! `memspy devices --json`. Bytes; unknown is `null`.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::text::{DevicesTarget, DevicesView, local_time};
use crate::analysis::OutsideTorch;
use crate::model::{
    DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, MissReason, MissedObservation,
};
use crate::render::shared::{
    FragmentationJson, JsonDocument, JsonFormat, OutputError, SleepTagJson,
};

/// `memspy devices --json`: the GPUs of the machine, and what some jobs have on them. Sizes in
/// bytes; with `--every` one line per snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DevicesJson {
    /// When, in local time, as nvidia-smi writes it.
    pub timestamp: String,
    /// The GPUs.
    pub devices: Vec<GpuJson>,
    /// The jobs that were asked for.
    pub processes: Vec<JobJson>,
    /// Left-behind processes that hold a GPU.
    pub left_behind: Vec<LeftBehindJson>,
}

/// A process that holds a GPU though what started it is gone, or has a GPU's file open though the
/// driver does not list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeftBehindJson {
    /// Its pid.
    pub pid: u32,
    /// What it runs.
    pub command: Option<String>,
    /// Whether the driver lists it.
    pub listed: bool,
    /// The device files that it has open, where the driver does not list it.
    pub device_files: Vec<String>,
    /// The process that started it and has ended; `null` where nothing names it.
    pub launcher: Option<u32>,
    /// What names that process.
    pub launcher_told_by: Option<String>,
    /// When it started, in local time.
    pub started: Option<String>,
}

impl JsonFormat for DevicesJson {
    const FORMAT: &'static str = "memspy-devices";
    const VERSION: u32 = 1;
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GpuJson {
    /// Its number in nvidia-smi.
    pub index: Option<u32>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its model.
    pub name: Option<String>,
    /// Its PCI bus id.
    #[serde(rename = "pci.bus_id")]
    pub pci_bus_id: Option<String>,
    /// The driver's version.
    pub driver_version: Option<String>,
    /// Its performance state: `P0` to `P15`.
    pub pstate: Option<String>,
    /// The greatest PCIe generation that it and the slot have.
    #[serde(rename = "pcie.link.gen.max")]
    pub pcie_gen_max: Option<u32>,
    /// The PCIe generation in use.
    #[serde(rename = "pcie.link.gen.current")]
    pub pcie_gen_current: Option<u32>,
    /// Degrees Celsius.
    #[serde(rename = "temperature.gpu")]
    pub temperature: Option<u32>,
    /// Per cent of the time in which a kernel ran.
    #[serde(rename = "utilization.gpu")]
    pub utilization_gpu: Option<u32>,
    /// Per cent of the time in which memory was read or written.
    #[serde(rename = "utilization.memory")]
    pub utilization_memory: Option<u32>,
    /// Its memory.
    pub memory: Option<DeviceMemoryJson>,
    /// The processes on it; `null` where the driver does not say.
    pub processes: Option<Vec<DeviceProcessJson>>,
    /// Why the driver does not say.
    pub processes_unknown_because: Option<String>,
    /// Its MIG devices.
    pub mig: Vec<MigDeviceJson>,
}

/// The memory of a GPU or of a MIG device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceMemoryJson {
    /// All of it.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// In use.
    pub used: u64,
    /// Kept by the driver.
    pub reserved: u64,
}

/// A process that the driver lists on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceProcessJson {
    /// The pid as the driver lists it.
    pub listed_pid: u32,
    /// The pid as memspy sees it, where it can be found.
    pub pid: Option<u32>,
    /// The pid inside its container.
    pub pid_inside: Option<u32>,
    /// Its command.
    pub command: Option<String>,
    /// Whether it computes.
    pub compute: bool,
    /// Whether it draws.
    pub graphics: bool,
    /// The memory it uses; `null` where the driver does not say.
    pub bytes: Option<u64>,
}

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MigDeviceJson {
    /// Its number on the GPU.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its profile.
    pub name: Option<String>,
    /// Its memory.
    pub memory: Option<DeviceMemoryJson>,
    /// The processes on it; `null` where the driver does not say.
    pub processes: Option<Vec<DeviceProcessJson>>,
    /// Why the driver does not say.
    pub processes_unknown_because: Option<String>,
}

/// A job that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobJson {
    /// Its pid.
    pub pid: u32,
    /// Whether `memspy pause` moved its memory to the host.
    pub paused: bool,
    /// For how many seconds; `null` where that is not known.
    pub paused_seconds: Option<u64>,
    /// Its command line.
    pub command: Option<Vec<String>>,
    /// Where its memory is.
    pub devices: Vec<JobDeviceJson>,
    /// What could not be read.
    pub not_read: Vec<MissedJson>,
}

/// What a job has on one GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobDeviceJson {
    /// The GPU's number in nvidia-smi.
    pub index: Option<u32>,
    /// The GPU's number in the job.
    pub cuda_index: Option<u32>,
    /// All memory of the GPU.
    pub total: Option<u64>,
    /// In use by all processes.
    pub used: Option<u64>,
    /// Free.
    pub free: Option<u64>,
    /// Kept by the driver.
    pub driver_reserved: Option<u64>,
    /// Reserved by PyTorch's allocator.
    pub reserved: Option<u64>,
    /// Of that on the GPU now: nothing while the job is paused.
    pub reserved_on_device: Option<u64>,
    /// Allocated in PyTorch.
    pub allocated: Option<u64>,
    /// Reserved and free.
    pub cached_free: Option<u64>,
    /// All that the job uses, by the driver.
    pub process: Option<u64>,
    /// Of the reserved bytes at least this many have no memory behind them: it was unmapped below
    /// the allocator.
    pub unmapped_at_least: Option<u64>,
    /// The memory that vLLM's allocator can put asleep, by tag; empty without vLLM, `null` where it
    /// could not be read.
    pub vllm_tags: Option<Vec<SleepTagJson>>,
    /// Why it could not; `null` where it could.
    pub vllm_tags_unknown_because: Option<String>,
    /// The part outside PyTorch: CUDA context, libraries, other allocators.
    pub outside_pytorch: Option<u64>,
    /// Why that is not known.
    pub outside_pytorch_unknown_because: Option<String>,
    /// What other processes use.
    pub other_processes: Option<u64>,
    /// What is in use by no process that the driver lists.
    pub no_process: Option<u64>,
    /// How the allocator's cache is cut up.
    pub fragmentation: Option<FragmentationJson>,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissedJson {
    /// What reads it: `Stacks`, `Counters`, `Snapshots`, `Gpu`, `Events` or `Owners`.
    pub reader: String,
    /// Why it could not, in words.
    pub why: String,
}

impl From<&MissedObservation> for MissedJson {
    fn from(missed: &MissedObservation) -> MissedJson {
        let why = match &missed.why {
            MissReason::Torn => "the process changed it during every attempt to read it",
            MissReason::Late => "memspy did not read it in time",
            MissReason::Failed(why) => why,
        };
        MissedJson { reader: format!("{:?}", missed.reader), why: why.to_owned() }
    }
}

/// Writes the GPUs as JSON, in many lines if `pretty`.
pub fn devices_json(
    out: &mut dyn Write,
    view: &DevicesView<'_>,
    pretty: bool,
) -> Result<(), OutputError> {
    let content = DevicesJson {
        timestamp: view.timestamp.to_owned(),
        devices: view.devices.iter().map(gpu).collect(),
        processes: view.targets.iter().map(|target| job(view, target)).collect(),
        left_behind: view
            .left_behind
            .iter()
            .map(|process| LeftBehindJson {
                pid: process.pid,
                command: process.command.clone(),
                listed: process.files.is_empty(),
                device_files: process.files.clone(),
                launcher: process.launcher,
                launcher_told_by: process.evidence.clone(),
                started: process.started.map(local_time),
            })
            .collect(),
    };
    JsonDocument::new(content).write(out, pretty)
}

fn memory(memory: Option<&DeviceMemory>) -> Option<DeviceMemoryJson> {
    memory.map(|&DeviceMemory { total, free, used, reserved }| DeviceMemoryJson {
        total,
        free,
        used,
        reserved,
    })
}

fn listed(processes: &DeviceProcesses) -> Option<Vec<DeviceProcessJson>> {
    let process = |p: &DeviceProcess| DeviceProcessJson {
        listed_pid: p.listed,
        pid: p.pid,
        pid_inside: p.pid_inside,
        command: p.command.clone(),
        compute: p.compute,
        graphics: p.graphics,
        bytes: p.bytes,
    };
    processes.as_ref().ok().map(|all| all.iter().map(process).collect())
}

fn gpu(status: &DeviceStatus) -> GpuJson {
    let mig = status.mig.iter().map(|mig| MigDeviceJson {
        index: mig.index,
        uuid: mig.uuid.clone(),
        name: mig.name.clone(),
        memory: memory(mig.memory.as_ref()),
        processes: listed(&mig.processes),
        processes_unknown_because: mig.processes.as_ref().err().cloned(),
    });
    let device = status.device.clone();
    GpuJson {
        index: device.nvml_index,
        uuid: device.uuid,
        name: device.name,
        pci_bus_id: device.pci_bus_id,
        driver_version: status.driver_version.clone(),
        pstate: status.performance_state.map(|state| format!("P{state}")),
        pcie_gen_max: status.pcie_gen_max,
        pcie_gen_current: status.pcie_gen_current,
        temperature: status.temperature,
        utilization_gpu: status.utilization_gpu,
        utilization_memory: status.utilization_memory,
        memory: memory(status.memory.as_ref()),
        processes: listed(&status.processes),
        processes_unknown_because: status.processes.as_ref().err().cloned(),
        mig: mig.collect(),
    }
}

fn job(view: &DevicesView<'_>, target: &DevicesTarget) -> JobJson {
    let process = &target.process;
    let used = view.used(target);
    let devices = used.iter().map(|(_, device, shares)| {
        let (vllm_tags, vllm_tags_unknown_because) = SleepTagJson::list(&device.tags);
        JobDeviceJson {
            index: device.nvml_index,
            cuda_index: device.cuda_index.map(|c| c.0),
            total: device.total,
            used: device.used,
            free: device.free,
            driver_reserved: device.driver_reserved,
            reserved: device.reserved,
            reserved_on_device: shares.torch,
            allocated: device.allocated,
            cached_free: device.cached,
            process: shares.process,
            unmapped_at_least: device.unmapped,
            vllm_tags,
            vllm_tags_unknown_because,
            outside_pytorch: shares.outside,
            outside_pytorch_unknown_because: match &device.outside {
                OutsideTorch::Bytes(_) => None,
                OutsideTorch::Unknown(why) => Some(why.to_string()),
            },
            other_processes: shares.others,
            no_process: shares.unlisted,
            fragmentation: device.fragmentation.as_ref().map(FragmentationJson::from),
        }
    });
    let not_read = process.missed().iter().map(MissedJson::from);
    JobJson {
        pid: target.pid,
        paused: target.paused.is_some(),
        paused_seconds: target.paused.flatten().map(|age| age.as_secs()),
        command: process.start().map(|start| start.command.clone()),
        devices: devices.collect(),
        not_read: not_read.collect(),
    }
}
