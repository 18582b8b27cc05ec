//! The processes that NVML lists on a device.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::model::{DeviceProcess, DeviceProcesses, ProcessUsage};
use crate::target::HostPids;

pub(super) fn on(device: &Device<'_>, pids: HostPids) -> DeviceProcesses {
    let mut all = computing(device)?;
    let graphics =
        or_older(device.running_graphics_processes(), || device.running_graphics_processes_v2())
            .unwrap_or_default();
    for listed in graphics {
        match all.iter_mut().find(|p| p.listed == listed.pid && p.compute) {
            Some(known) => known.graphics = true,
            None => add(&mut all, &listed, false),
        }
    }
    Ok(identified(all, pids))
}

/// Each list holds a driver lock.
pub(super) fn computing_on(device: &Device<'_>, pids: HostPids) -> DeviceProcesses {
    Ok(identified(computing(device)?, pids))
}

fn computing(device: &Device<'_>) -> DeviceProcesses {
    let listed =
        or_older(device.running_compute_processes(), || device.running_compute_processes_v2())
            .map_err(|e| format!("NVML does not list processes: {e}"))?;
    let mut all = Vec::new();
    for listed in listed {
        add(&mut all, &listed, true);
    }
    Ok(all)
}

fn identified(mut all: Vec<DeviceProcess>, pids: HostPids) -> Vec<DeviceProcess> {
    let numbers: Vec<u32> = all.iter().map(|p| p.listed).collect();
    for (process, found) in all.iter_mut().zip(pids.find(&numbers)) {
        let Some(found) = found else { continue };
        process.pid = Some(found.pid);
        process.pid_inside = found.pid_inside;
        process.command = found.command;
    }
    all
}

pub(super) fn usage_of(pid: u32, listed: &DeviceProcesses, pids: HostPids) -> ProcessUsage {
    let unknown = |why: &str| ProcessUsage::Unknown(why.to_owned());
    let listed = match listed {
        Ok(listed) => listed,
        Err(why) => return unknown(why),
    };
    match listed.iter().find(|process| process.pid == Some(pid)) {
        Some(process) => match process.bytes {
            Some(bytes) => ProcessUsage::Bytes(bytes),
            None => unknown("the driver does not account it"),
        },
        None if pids.is_on_host() => unknown(ProcessUsage::NOT_LISTED),
        None if listed.iter().any(|process| process.pid.is_none()) => {
            unknown("the driver lists host pids, which this pid namespace hides")
        }
        None => unknown("the driver does not list this process in this pid namespace"),
    }
}

fn or_older(
    answer: Result<Vec<ProcessInfo>, NvmlError>,
    older: impl FnOnce() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    match answer {
        Err(NvmlError::FailedToLoadSymbol(_)) => older(),
        other => other,
    }
}

/// A process on several MIG devices has several entries.
fn add(all: &mut Vec<DeviceProcess>, listed: &ProcessInfo, compute: bool) {
    let bytes = match listed.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    match all.iter_mut().find(|p| p.listed == listed.pid) {
        Some(known) => known.bytes = known.bytes.zip(bytes).map(|(known, more)| known + more),
        None => all.push(DeviceProcess {
            listed: listed.pid,
            pid: None,
            pid_inside: None,
            command: None,
            compute,
            graphics: !compute,
            bytes,
        }),
    }
}
