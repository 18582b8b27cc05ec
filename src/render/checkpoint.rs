//! What a pause or a resume did.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{DeviceUsage, GpuDevice, ProcessUsage};
use crate::render::shared::{
    EscapeGuard, JsonDocument, JsonFormat, OutputError, bytes, one_line, optional_bytes,
    signed_bytes,
};

/// `memspy pause --json` and `memspy resume --json`: what moved, in one line. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckpointJson {
    /// The job.
    pub pid: u32,
    /// What it is now: `paused` or `running`.
    pub state: String,
    /// The GPUs that it uses.
    pub devices: Vec<MovedDeviceJson>,
    /// Host memory of the job before.
    pub process_host_before: Option<u64>,
    /// Host memory of the job after.
    pub process_host_after: Option<u64>,
    /// Host memory that the job may still take, before.
    pub host_available_before: Option<u64>,
    /// Host memory that the job may still take, after.
    pub host_available_after: Option<u64>,
    /// Seconds that each step took: `lock`, `transfer`, `unlock`.
    pub seconds: BTreeMap<String, f64>,
}

impl JsonFormat for CheckpointJson {
    const FORMAT: &'static str = "memspy-pause";
    const VERSION: u32 = 1;
}

/// A GPU before and after its memory moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MovedDeviceJson {
    /// Its number in nvidia-smi.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its model.
    pub name: Option<String>,
    /// In use by all processes before.
    pub used_before: u64,
    /// In use by all processes after.
    pub used_after: u64,
    /// In use by the job before; `null` where the driver does not say.
    pub process_before: Option<u64>,
    /// In use by the job after; `null` where the driver does not say.
    pub process_after: Option<u64>,
}

/// A move of GPU memory to the host or back. Bytes before and after; `None` is unknown.
pub struct CheckpointFigures<'a> {
    /// The job.
    pub pid: u32,
    /// The devices.
    pub devices: &'a [(GpuDevice, DeviceUsage, DeviceUsage)],
    /// Host memory of the process.
    pub process_host: (Option<u64>, Option<u64>),
    /// Host memory available to it.
    pub host_available: (Option<u64>, Option<u64>),
    /// The steps, in order.
    pub steps: &'a [(&'a str, Duration)],
}

/// Writes what changed.
pub fn move_text(out: &mut dyn Write, report: &CheckpointFigures<'_>) -> io::Result<()> {
    let out = &mut EscapeGuard::text(out);
    for (device, before, after) in report.devices {
        let name = one_line(device.name.as_deref().unwrap_or("unknown model"));
        writeln!(
            out,
            "  GPU {}, {name}: in use {} -> {} ({}); this process {} -> {}",
            before.nvml_index,
            bytes(before.used),
            bytes(after.used),
            change(Some(before.used), Some(after.used)),
            usage(&before.process),
            usage(&after.process),
        )?;
    }
    let host = |(before, after): (Option<u64>, Option<u64>)| {
        format!(
            "{} -> {} ({})",
            optional_bytes(before),
            optional_bytes(after),
            change(before, after)
        )
    };
    writeln!(out, "  host memory of the process {}", host(report.process_host))?;
    writeln!(out, "  host memory available to it {}", host(report.host_available))?;
    let steps: Vec<String> =
        report.steps.iter().map(|(what, took)| format!("{what} {}", time(*took))).collect();
    writeln!(out, "  {}", steps.join(", "))
}

/// Writes one line of JSON: bytes and seconds.
pub fn move_json(
    out: &mut dyn Write,
    report: &CheckpointFigures<'_>,
    state: &str,
) -> Result<(), OutputError> {
    let process = |usage: &ProcessUsage| match usage {
        ProcessUsage::Bytes(bytes) => Some(*bytes),
        ProcessUsage::Unknown(_) => None,
    };
    let device =
        |(device, before, after): &(GpuDevice, DeviceUsage, DeviceUsage)| MovedDeviceJson {
            index: before.nvml_index,
            uuid: device.uuid.clone(),
            name: device.name.clone(),
            used_before: before.used,
            used_after: after.used,
            process_before: process(&before.process),
            process_after: process(&after.process),
        };
    let steps = report.steps.iter();
    let content = CheckpointJson {
        pid: report.pid,
        state: state.to_owned(),
        devices: report.devices.iter().map(device).collect(),
        process_host_before: report.process_host.0,
        process_host_after: report.process_host.1,
        host_available_before: report.host_available.0,
        host_available_after: report.host_available.1,
        seconds: steps.map(|(what, took)| ((*what).to_owned(), took.as_secs_f64())).collect(),
    };
    JsonDocument::new(content).write(out, false)
}

fn change(before: Option<u64>, after: Option<u64>) -> String {
    let both = before.zip(after);
    both.map_or_else(
        || "change unknown".to_owned(),
        |(before, after)| {
            let change = after as i64 - before as i64;
            format!("{}{}", if change > 0 { "+" } else { "" }, signed_bytes(change))
        },
    )
}

fn usage(usage: &ProcessUsage) -> String {
    match usage {
        ProcessUsage::Bytes(known) => bytes(*known),
        ProcessUsage::Unknown(why) => format!("unknown ({})", one_line(why)),
    }
}

fn time(took: Duration) -> String {
    match took.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_unknown_stays_unknown() {
        assert_eq!(change(Some(2048), Some(1024)), "-1.00 KiB");
        assert_eq!(change(Some(1024), Some(3072)), "+2.00 KiB");
        assert_eq!(change(Some(1), Some(1)), "0 B");
        assert_eq!(change(None, Some(1)), "change unknown");
        assert_eq!(time(Duration::from_micros(600)), "0.6 ms");
        assert_eq!(time(Duration::from_millis(1500)), "1.50 s");
    }
}
