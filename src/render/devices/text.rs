//! The GPUs and their processes, as text.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use crate::analysis::{DeviceBreakdown, DeviceSnapshot, OutsideTorch, ProcessSnapshot};
use crate::model::{
    DeviceMemory, DeviceProcess, DeviceProcesses, DeviceStatus, LeftBehind, MissReason,
};
use crate::render::shared::{
    EscapeGuard, OutputError, allocator_text, fragmentation_text, one_line, optional_bytes,
    tag_rows,
};

/// The GPUs at one moment.
pub struct DevicesView<'a> {
    /// Local time, as nvidia-smi writes it.
    pub timestamp: &'a str,
    /// All GPUs.
    pub devices: &'a [DeviceStatus],
    /// The processes asked for.
    pub targets: &'a [DevicesTarget],
    /// Hold a GPU after their launcher ended.
    pub left_behind: &'a [LeftBehind],
}

/// A process asked for.
pub struct DevicesTarget {
    /// Its pid.
    pub pid: u32,
    /// Whether memspy paused it, and for how long, if known.
    pub paused: Option<Option<Duration>>,
    /// Its snapshot.
    pub process: ProcessSnapshot,
}

impl DevicesView<'_> {
    /// The devices that a process uses.
    pub(super) fn used(
        &self,
        target: &DevicesTarget,
    ) -> Vec<(Option<&DeviceStatus>, DeviceSnapshot, DeviceBreakdown)> {
        let (pid, paused) = (target.pid, target.paused.is_some());
        let unknown: DeviceProcesses = Err("its GPU is not known".to_owned());
        let mut used = Vec::new();
        for device in target.process.devices() {
            let status = self.devices.iter().find(|status| {
                device.nvml_index.is_some() && status.device.nvml_index == device.nvml_index
            });
            let listed = status.map_or(&unknown, |status| &status.processes);
            if status.is_none() && device.reserved == Some(0) {
                continue;
            }
            if is_used(pid, listed, &device) {
                let shares = DeviceBreakdown::new(&device, listed, pid, paused);
                used.push((status, device, shares));
            }
        }
        used
    }
}

/// Assumes use where NVML cannot tell.
fn is_used(pid: u32, listed: &DeviceProcesses, device: &DeviceSnapshot) -> bool {
    let sure = |listed: &Vec<DeviceProcess>| {
        listed.iter().all(|p| p.pid.is_some()) && !listed.iter().any(|p| p.pid == Some(pid))
    };
    device.reserved.unwrap_or(0) > 0 || !listed.as_ref().is_ok_and(sure)
}

/// Writes the GPUs as text.
pub fn devices_text(out: &mut dyn Write, view: &DevicesView<'_>) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let driver = view.devices.iter().find_map(|d| d.driver_version.as_deref());
    let driver = one_line(driver.unwrap_or("unknown"));
    writeln!(out, "{}  driver {driver}", view.timestamp)?;
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for status in view.devices {
        rows.push(row(status));
    }
    write_table(out, &rows, &[1, 2])?;
    if view.devices.is_empty() {
        writeln!(out, "The driver lists no GPU.")?;
    }
    write_mig(out, view.devices)?;
    write_processes(out, view.devices)?;
    for process in view.left_behind {
        let (pid, command) = (process.pid, process.command.as_deref().unwrap_or("unknown"));
        match &process.files[..] {
            [] => writeln!(
                out,
                "Orphan: {pid} ({}) holds a GPU, and its launcher has ended{}.",
                short(command),
                orphan_text(process)
            )?,
            files => writeln!(
                out,
                "Not listed by the driver: {pid} ({}) has {} open.",
                short(command),
                files.join(", ")
            )?,
        }
    }
    for target in view.targets {
        write_target(out, view, target)?;
    }
    Ok(())
}

/// Its launcher and start. The kernel forgets a launcher that has ended.
fn orphan_text(process: &LeftBehind) -> String {
    let launcher = process.launcher.map_or_else(String::new, |launcher| {
        let evidence = process.evidence.as_deref().map_or_else(String::new, one_line);
        format!(": process {launcher} ({evidence})")
    });
    let started = process.started.map_or_else(String::new, |started| {
        let seconds = started.elapsed().unwrap_or_default().as_secs();
        let age = match seconds {
            0..120 => format!("{seconds} s"),
            120..7200 => format!("{} min", seconds / 60),
            _ => format!("{} h", seconds / 3600),
        };
        format!("; running since {} ({age})", local_time(started))
    });
    launcher + &started
}

pub(super) fn local_time(time: SystemTime) -> String {
    chrono::DateTime::<chrono::Local>::from(time).format("%Y/%m/%d %H:%M:%S").to_string()
}

const HEAD: [&str; 11] =
    ["GPU", "name", "bus id", "state", "PCIe", "temp", "util", "mem util", "total", "used", "free"];

fn row(status: &DeviceStatus) -> Vec<String> {
    let text =
        |value: &Option<String>| value.as_deref().map_or_else(|| "unknown".to_owned(), one_line);
    let number = |value: Option<u32>, unit: &str| {
        value.map_or_else(|| "unknown".to_owned(), |value| format!("{value}{unit}"))
    };
    let memory = status.memory.as_ref();
    vec![
        number(status.device.nvml_index, ""),
        text(&status.device.name),
        text(&status.device.pci_bus_id),
        status.performance_state.map_or_else(|| "unknown".to_owned(), |state| format!("P{state}")),
        format!("{} of {}", number(status.pcie_gen_current, ""), number(status.pcie_gen_max, "")),
        number(status.temperature, " °C"),
        number(status.utilization_gpu, " %"),
        number(status.utilization_memory, " %"),
        optional_bytes(memory.map(|m| m.total)),
        optional_bytes(memory.map(|m| m.used)),
        optional_bytes(memory.map(|m| m.free)),
    ]
}

/// Columns in `left` are flush left.
fn write_table(out: &mut dyn Write, rows: &[Vec<String>], left: &[usize]) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match left.contains(&column) {
                true => format!("{cell:<width$}  "),
                false => format!("{cell:>width$}  "),
            };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn write_mig(out: &mut dyn Write, devices: &[DeviceStatus]) -> io::Result<()> {
    let all = devices.iter().flat_map(|status| status.mig.iter().map(move |mig| (status, mig)));
    let head = ["GPU", "MIG", "name", "uuid", "total", "used", "free"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (status, mig) in all {
        let text = |value: &Option<String>| {
            value.as_deref().map_or_else(|| "unknown".to_owned(), one_line)
        };
        let size = |of: fn(&DeviceMemory) -> u64| optional_bytes(mig.memory.as_ref().map(of));
        rows.push(vec![
            status.device.nvml_index.map_or_else(|| "unknown".to_owned(), |n| n.to_string()),
            mig.index.to_string(),
            text(&mig.name),
            text(&mig.uuid),
            size(|m| m.total),
            size(|m| m.used),
            size(|m| m.free),
        ]);
    }
    if rows.len() > 1 {
        writeln!(out)?;
        write_table(out, &rows, &[2, 3])?;
    }
    Ok(())
}

fn write_processes(out: &mut dyn Write, devices: &[DeviceStatus]) -> io::Result<()> {
    let head = ["GPU", "pid", "type", "memory", "command"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut unknown = Vec::new();
    for status in devices {
        let gpu = status.device.nvml_index.map_or_else(|| "?".to_owned(), |n| n.to_string());
        match &status.processes {
            Ok(listed) => rows.extend(listed.iter().map(|p| process_row(&gpu, p))),
            Err(why) => unknown.push(format!("GPU {gpu}: {}", one_line(why))),
        }
    }
    writeln!(out)?;
    if rows.len() > 1 {
        write_table(out, &rows, &[4])?;
    } else if unknown.is_empty() {
        writeln!(out, "The driver lists no process.")?;
    }
    for why in unknown {
        writeln!(out, "Who uses it is unknown. {why}")?;
    }
    let hidden = |status: &DeviceStatus| {
        status.processes.as_ref().is_ok_and(|listed| listed.iter().any(|p| p.pid.is_none()))
    };
    if devices.iter().any(hidden) {
        writeln!(
            out,
            "Pids in brackets are the host's: this pid namespace hides these processes, or they have ended. Run \
             memspy on the host, or in a container with its pids (docker run --pid=host)."
        )?;
    }
    Ok(())
}

fn process_row(gpu: &str, process: &DeviceProcess) -> Vec<String> {
    let pid = process.pid.map_or_else(|| format!("[{}]", process.listed), |pid| pid.to_string());
    let kind = match (process.compute, process.graphics) {
        (true, true) => "C+G",
        (false, true) => "G",
        _ => "C",
    };
    let mut command = process.command.as_deref().map_or_else(|| "unknown".to_owned(), short);
    if let Some(inside) = process.pid_inside {
        command += &format!(" (pid {inside} in its container)");
    }
    vec![gpu.to_owned(), pid, kind.to_owned(), optional_bytes(process.bytes), command]
}

fn short(command: &str) -> String {
    const MAX_COMMAND_LEN: usize = 100;
    let line = one_line(command);
    match line.char_indices().nth(MAX_COMMAND_LEN) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

fn write_target(
    out: &mut dyn Write,
    view: &DevicesView<'_>,
    target: &DevicesTarget,
) -> io::Result<()> {
    let (pid, process) = (target.pid, &target.process);
    let command = process.start().map(|s| s.command.join(" ")).unwrap_or_default();
    let torch = process.runtime().map(|runtime| {
        let version = runtime.torch.as_deref();
        let version =
            version.map_or_else(|| "no PyTorch".to_owned(), |v| format!("PyTorch {}", one_line(v)));
        format!(" ({version}, {})", allocator_text(&runtime.allocator))
    });
    writeln!(out, "\nProcess {pid}: {}{}", short(&command), torch.unwrap_or_default())?;
    if let Some(age) = target.paused {
        let age = age.map_or_else(String::new, |age| format!(" for {} s", age.as_secs()));
        writeln!(out, "  paused{age}: its GPU memory is on the host; memspy resume -p {pid}")?;
    }
    let used = view.used(target);
    if used.is_empty() {
        writeln!(out, "  has no memory on any GPU")?;
    }
    for (_, device, shares) in &used {
        write_shares(out, device, shares)?;
    }
    for missed in process.missed() {
        if let MissReason::Failed(why) = &missed.why {
            writeln!(out, "  not read: {:?}: {}", missed.reader, one_line(why))?;
        }
    }
    Ok(())
}

fn write_shares(
    out: &mut dyn Write,
    device: &DeviceSnapshot,
    shares: &DeviceBreakdown,
) -> io::Result<()> {
    let number = |index: Option<u32>| index.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    let cuda = number(device.cuda_index.map(|c| c.0));
    writeln!(out, "  GPU {cuda} of the process, {} of nvidia-smi", number(device.nvml_index))?;
    let mut row = |name: &str, value: String| writeln!(out, "    {name:<44} {value:>12}");
    row("t  total", optional_bytes(device.total))?;
    // Without PyTorch, nothing here is unknown.
    if device.reserved.is_some() || shares.torch.is_none() {
        row("c  reserved by PyTorch", optional_bytes(device.reserved))?;
        row("a  allocated", optional_bytes(device.allocated))?;
        row("f  = c - a, free in PyTorch's cache", optional_bytes(device.cached))?;
        if let Some(unmapped) = device.unmapped.filter(|unmapped| *unmapped > 0) {
            row("of c unmapped (asleep), at least", optional_bytes(Some(unmapped)))?;
        }
        for (name, value) in tag_rows(device) {
            row(&format!("   {name}"), value)?;
        }
    }
    row("in use on the device (nvidia-smi: used)", optional_bytes(device.used))?;
    row("  this process", optional_bytes(shares.process))?;
    row("    reserved by PyTorch", optional_bytes(shares.torch))?;
    row("    outside PyTorch (context, NCCL, ..)", optional_bytes(shares.outside))?;
    let others = match shares.other_processes {
        Some(1) => "  1 other process".to_owned(),
        Some(n) => format!("  {n} other processes"),
        None => "  other processes".to_owned(),
    };
    row(&others, optional_bytes(shares.others))?;
    row("  of no process that the driver lists", optional_bytes(shares.unlisted))?;
    row("kept by the driver (not counted as used)", optional_bytes(device.driver_reserved))?;
    row("free on the device", optional_bytes(device.free))?;
    if let (OutsideTorch::Unknown(why), None) = (&device.outside, shares.outside) {
        writeln!(out, "    what it uses outside PyTorch is unknown: {}", one_line(why))?;
    }
    match &device.fragmentation {
        Some(sums) => fragmentation_text(out, sums, "    ", true, &|_| String::new()),
        None => Ok(()),
    }
}
