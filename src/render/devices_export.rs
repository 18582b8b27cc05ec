//! The machine's GPUs as CSV with nvidia-smi's names, and as JSON. Sizes in bytes; unknown is empty
//! or `null`.

use std::io::Write;

use super::RenderError;
use super::devices::{DevicesTarget, DevicesView, local_time};
use super::interchange::CsvSheet;
use super::json::{
    DeviceMemoryJson, DeviceProcessJson, DevicesJson, FragmentationJson, GpuJson, JobDeviceJson,
    JobJson, JsonDocument, LeftBehindJson, MigDeviceJson, MissedJson, SleepTagJson,
};
use crate::analysis::{DeviceBreakdown, DeviceSnapshot, OutsideTorch};
use crate::model::{DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus};

/// Columns of every row: query keys of nvidia-smi.
const KEYS: [&str; 13] = [
    "timestamp",
    "name",
    "pci.bus_id",
    "driver_version",
    "pstate",
    "pcie.link.gen.max",
    "pcie.link.gen.current",
    "temperature.gpu",
    "utilization.gpu",
    "utilization.memory",
    "memory.total",
    "memory.free",
    "memory.used",
];
/// Further columns when processes were asked for; `index` is nvidia-smi's too.
const PROCESS_KEYS: [&str; 17] = [
    "index",
    "pid",
    "cuda_index",
    "reserved",
    "allocated",
    "cached_free",
    "process",
    "outside_pytorch",
    "other_processes",
    "no_process",
    "driver_reserved",
    "largest_free_block",
    "free_blocks",
    "wholly_free_segments",
    "wholly_free_bytes",
    "expandable_bytes",
    "releasable_bytes",
];

/// Writes the CSV header; `processes` adds the columns for processes.
pub fn devices_csv_head(out: &mut dyn Write, processes: bool) -> Result<(), RenderError> {
    let mut csv = CsvSheet::new(out);
    let more: &[&str] = if processes { &PROCESS_KEYS } else { &[] };
    csv.write_record(KEYS.iter().chain(more))?;
    csv.flush()?;
    Ok(())
}

/// Writes one row per GPU; with `processes`, one for each GPU of each process asked for.
pub fn devices_csv(
    out: &mut dyn Write,
    view: &DevicesView<'_>,
    processes: bool,
) -> Result<(), RenderError> {
    let mut csv = CsvSheet::new(out);
    if !processes {
        for status in view.devices {
            csv.write_record(cells(view.timestamp, status))?;
        }
    }
    for target in view.targets {
        for (status, device, shares) in view.used(target) {
            let mut row = match status {
                Some(status) => cells(view.timestamp, status),
                None => {
                    let time = [view.timestamp.to_owned()];
                    time.into_iter().chain((1..KEYS.len()).map(|_| String::new())).collect()
                }
            };
            row.extend(process_cells(target.pid, &device, &shares));
            csv.write_record(row)?;
        }
    }
    csv.flush()?;
    Ok(())
}

fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn cells(timestamp: &str, status: &DeviceStatus) -> Vec<String> {
    let memory = status.memory.as_ref();
    vec![
        timestamp.to_owned(),
        cell(status.device.name.as_ref()),
        cell(status.device.pci_bus_id.as_ref()),
        cell(status.driver_version.as_ref()),
        cell(status.performance_state.map(|state| format!("P{state}"))),
        cell(status.pcie_gen_max),
        cell(status.pcie_gen_current),
        cell(status.temperature),
        cell(status.utilization_gpu),
        cell(status.utilization_memory),
        cell(memory.map(|m| m.total)),
        cell(memory.map(|m| m.free)),
        cell(memory.map(|m| m.used)),
    ]
}

fn process_cells(pid: u32, device: &DeviceSnapshot, shares: &DeviceBreakdown) -> [String; 17] {
    let cut = device.fragmentation.as_ref();
    [
        cell(device.nvml_index),
        pid.to_string(),
        cell(device.cuda_index.map(|c| c.0)),
        cell(device.reserved),
        cell(device.allocated),
        cell(device.cached),
        cell(shares.process),
        cell(shares.outside),
        cell(shares.others),
        cell(shares.unlisted),
        cell(device.driver_reserved),
        cell(cut.map(|f| f.largest_free)),
        cell(cut.map(|f| f.free_blocks)),
        cell(cut.map(|f| f.wholly_free.segments)),
        cell(cut.map(|f| f.wholly_free.bytes)),
        cell(cut.map(|f| f.expandable.bytes)),
        cell(cut.map(|f| f.releasable)),
    ]
}

/// Writes the GPUs as JSON.
///
/// In many lines if `pretty`, else in one.
pub fn devices_json(
    out: &mut dyn Write,
    view: &DevicesView<'_>,
    pretty: bool,
) -> Result<(), RenderError> {
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
    let look = &target.look;
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
    let not_read = look.missed().iter().map(MissedJson::from);
    JobJson {
        pid: target.pid,
        paused: target.paused.is_some(),
        paused_seconds: target.paused.flatten().map(|age| age.as_secs()),
        command: look.start().map(|start| start.command.clone()),
        devices: devices.collect(),
        not_read: not_read.collect(),
    }
}
