//! One look at a process as text: threads with their stacks, and where the GPU memory is.

use std::io::Write;

use super::RenderError;
use super::escape::EscapeGuard;
use super::fragmentation::fragmentation_text;
use super::label::{FrameLabels, one_line};
use super::owners::{categories, incomplete, pause};
use super::size::{bytes, optional_bytes};
use crate::analysis::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
use crate::model::ownership::breakdown;
use crate::model::{
    AllocatorBackend, CudaIndex, MissReason, OwnershipSnapshot, TargetRuntime, ThreadActivity,
};

/// Who holds the memory, or why that is not known.
pub type OwnersOrReason = Result<OwnershipSnapshot, String>;

/// Writes the look as text; with `gpu`, of the devices only that one of the target.
pub fn dump_text(
    out: &mut dyn Write,
    look: &ProcessSnapshot,
    owners: &OwnersOrReason,
    gpu: Option<CudaIndex>,
    full_filenames: bool,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    if let Some(start) = look.start() {
        writeln!(out, "Process {}: {}", start.pid, one_line(&start.command.join(" ")))?;
    }
    if let Some(runtime) = look.runtime() {
        writeln!(out, "{}", runtime_text(runtime))?;
    }
    let labels = labels(look, full_filenames);
    for thread in look.threads() {
        writeln!(out)?;
        writeln!(out, "{}", thread_text(look, thread))?;
        for frame in look.stacks().frames(thread.stack) {
            writeln!(out, "    {}", labels.frame(frame, true))?;
        }
    }
    if look.threads().is_empty() {
        writeln!(out, "\nNo Python stack could be read.")?;
    }
    let devices = look.devices_of(gpu);
    for device in &devices {
        writeln!(out)?;
        write_device(out, device)?;
        if let Some(index) = device.cuda_index {
            write_owners(out, owners, index)?;
        }
    }
    if devices.is_empty() {
        writeln!(out, "\nNo GPU memory is known.")?;
    }
    for missed in look.missed() {
        let why = match &missed.why {
            MissReason::Torn => "the process changed it during every attempt to read it",
            MissReason::Late => "late",
            MissReason::Failed(why) => why,
        };
        writeln!(out, "\nnot read: {:?}: {}", missed.reader, one_line(why))?;
    }
    Ok(())
}

/// What is allocated on a device by owner, as it was a moment before.
fn write_owners(
    out: &mut dyn Write,
    owners: &OwnersOrReason,
    device: CudaIndex,
) -> std::io::Result<()> {
    let snapshot = match owners {
        Ok(snapshot) => snapshot,
        Err(why) => return writeln!(out, "  who holds it is unknown: {}", one_line(why)),
    };
    let found = breakdown(snapshot)
        .into_iter()
        .find(|(at, _)| at.is_cuda() && at.index.map(u32::from) == Some(device.0));
    let Some((_, sums)) = found else { return Ok(()) };
    let Some(allocated) = sums.allocated else { return Ok(()) };
    writeln!(out, "  of {} allocated, by owner ({}):", bytes(allocated), pause(snapshot))?;
    if let Some(incomplete) = incomplete(snapshot) {
        writeln!(out, "  {incomplete}")?;
    }
    categories(out, &sums)
}

pub(super) fn labels(look: &ProcessSnapshot, full_filenames: bool) -> FrameLabels<'_> {
    FrameLabels {
        stacks: look.stacks(),
        directory: look.start().and_then(|s| s.directory.as_deref()),
        full_filenames,
    }
}

fn runtime_text(runtime: &TargetRuntime) -> String {
    let version = |name: &str, version: &Option<String>| match version {
        Some(version) => format!("{name} {}", one_line(version)),
        None => format!("no {name}"),
    };
    format!(
        "{}, {}, {}",
        version("Python", &runtime.python),
        version("PyTorch", &runtime.torch),
        allocator_text(&runtime.allocator)
    )
}

/// The allocator, in words.
pub fn allocator_text(allocator: &AllocatorBackend) -> String {
    match allocator {
        AllocatorBackend::NotLoaded => "no CUDA allocator".to_owned(),
        AllocatorBackend::NotInitialized => "CUDA not initialised yet".to_owned(),
        AllocatorBackend::Native => "caching allocator".to_owned(),
        AllocatorBackend::CudaMallocAsync => "cudaMallocAsync allocator".to_owned(),
        AllocatorBackend::Pluggable(name) => format!("pluggable allocator {}", one_line(name)),
        AllocatorBackend::Unknown(what) => format!("unknown allocator ({})", one_line(what)),
    }
}

fn thread_text(look: &ProcessSnapshot, thread: &ThreadSnapshot) -> String {
    let known = look.stacks().get_thread(thread.thread);
    let id = known.map_or_else(
        || "unknown".to_owned(),
        |t| t.os_id.map_or_else(|| format!("{:#x}", t.python_id), |id| id.to_string()),
    );
    let name = known.and_then(|t| t.name.as_deref());
    let name = name.map_or_else(String::new, |n| format!(": \"{}\"", one_line(n)));
    let gil = if thread.gil { "+gil" } else { "" };
    format!("Thread {id} ({}{gil}){name}", activity_text(thread.activity))
}

pub(super) fn activity_text(activity: ThreadActivity) -> &'static str {
    match activity {
        ThreadActivity::Active => "active",
        ThreadActivity::Idle => "idle",
        ThreadActivity::Unknown => "activity unknown",
    }
}

fn write_device(out: &mut dyn Write, device: &DeviceSnapshot) -> std::io::Result<()> {
    let index = match (device.cuda_index, device.nvml_index) {
        (Some(cuda), Some(nvml)) if cuda.0 != nvml => {
            format!("GPU {} (nvidia-smi: {nvml})", cuda.0)
        }
        (Some(cuda), _) => format!("GPU {}", cuda.0),
        (None, Some(nvml)) => format!("GPU not seen by the process (nvidia-smi: {nvml})"),
        (None, None) => "GPU".to_owned(),
    };
    let name = device.name.as_deref().unwrap_or("unknown model");
    writeln!(out, "{index}, {}, {}", one_line(name), optional_bytes(device.total))?;
    let mut row = |name: &str, value: String| writeln!(out, "    {name:<35} {value}");
    if device.cuda_index.is_some() {
        row("allocated through PyTorch", optional_bytes(device.allocated))?;
        row("cached free (reserved - allocated)", optional_bytes(device.cached))?;
        if device.fragmentation.is_none() {
            row("  largest free block", optional_bytes(None))?;
        }
        let outside = match &device.outside {
            OutsideTorch::Bytes(size) => bytes(*size),
            OutsideTorch::Unknown(why) => format!("unknown: {}", one_line(why)),
        };
        row("outside PyTorch (context, NCCL, ..)", outside)?;
    }
    row("other processes", optional_bytes(device.others))?;
    row("free on the device", optional_bytes(device.free))?;
    match &device.fragmentation {
        Some(sums) => fragmentation_text(out, sums, "    "),
        None => Ok(()),
    }
}
