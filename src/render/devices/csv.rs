//! The GPUs as CSV with nvidia-smi's names. Bytes; unknown is empty.

use std::io::Write;

use super::text::DevicesView;
use crate::analysis::{DeviceBreakdown, DeviceSnapshot};
use crate::model::DeviceStatus;
use crate::render::shared::{CsvSheet, OutputError};

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

/// Of processes; `index` is nvidia-smi's too.
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

/// Writes the CSV header, perhaps with the processes' columns.
pub fn devices_csv_head(out: &mut dyn Write, processes: bool) -> Result<(), OutputError> {
    let mut csv = CsvSheet::new(out);
    let more: &[&str] = if processes { &PROCESS_KEYS } else { &[] };
    csv.write_record(KEYS.iter().chain(more))?;
    csv.flush()?;
    Ok(())
}

/// Writes a row per GPU; with `processes`, a row per GPU of each process.
pub fn devices_csv(
    out: &mut dyn Write,
    view: &DevicesView<'_>,
    processes: bool,
) -> Result<(), OutputError> {
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
