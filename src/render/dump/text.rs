//! `memspy dump` as text: memory, owners, threads.

use std::io::Write;
use std::time::Duration;

use super::native::{write_frames, write_rest};
use crate::analysis::{
    DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot, owner_groups,
};
use crate::model::{
    CoreOrigin, CudaIndex, MissReason, OwnershipSnapshot, PoolId, PoolUser, ReaderKind,
    TargetRuntime, ThreadActivity,
};
use crate::ownership::breakdown;
use crate::render::owners::{
    DeviceChoice, TensorsOptions, categories, copied, group_rows, incomplete, outside_tensors,
    pause, pool_users, uncertain, write_rows, write_storages,
};
use crate::render::shared::allocator_text;
use crate::render::shared::{
    EscapeGuard, FrameLabels, OutputError, bytes, fragmentation_text, free_by_size_text,
    in_sentence, one_line, optional_bytes, suggestion_on, tag_rows,
};

/// The owners, or why they are unknown.
pub type OwnersResult = Result<OwnershipSnapshot, String>;

/// What is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct DumpOptions {
    /// Only this device.
    pub gpu: Option<CudaIndex>,
    /// Whole file names.
    pub full_filenames: bool,
    /// Whole stacks of idle threads.
    pub idle: bool,
    /// Cached free blocks by size.
    pub cache: bool,
    /// Single storages instead of groups.
    pub each: bool,
    /// How long before the driver's figures the owners were read.
    pub owners_age: Option<Duration>,
}

const MAX_OWNERS: usize = 10;
const MAX_IDLE: usize = 8;

/// Writes the process: memory, owners, stacks.
pub fn dump_text(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    owners: &OwnersResult,
    options: &DumpOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if let Some(start) = process.start() {
        let core = process.core().map_or_else(String::new, core_text);
        writeln!(out, "{core}Process {}: {}", start.pid, one_line(&start.command.join(" ")))?;
    }
    if let Some(runtime) = process.runtime() {
        writeln!(out, "{}", runtime_text(runtime))?;
    }
    if let Some(copied) = owners.as_ref().ok().and_then(copied) {
        writeln!(out, "{copied}")?;
    }
    let devices = process.devices_of(options.gpu);
    for device in &devices {
        writeln!(out)?;
        if write_unused_device(out, device)? {
            continue;
        }
        write_device(out, device, owners)?;
        if let Some(index) = device.cuda_index {
            write_owners(out, owners, device, index, options)?;
        }
        if options.cache
            && let Some(sums) = &device.fragmentation
        {
            writeln!(out, "  cached free blocks by size:")?;
            free_by_size_text(out, sums, "  ")?;
        }
    }
    if devices.is_empty() {
        writeln!(out, "\nNo GPU memory is known.")?;
    }
    if devices.iter().all(DeviceSnapshot::is_unused) {
        write_on_cpu(out, process, owners)?;
    }
    if let Ok(snapshot) = owners {
        let how = match process.core() {
            Some(_) => format!("{} objects were read from the core file", snapshot.objects),
            None => pause(snapshot),
        };
        writeln!(out, "\n{how}")?;
    }
    write_threads(out, process, options)?;
    write_missed(out, process, !devices.is_empty())
}

fn write_missed(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    has_devices: bool,
) -> Result<(), OutputError> {
    for missed in process.missed() {
        if process.core().is_some() && missed.reader == ReaderKind::Gpu && has_devices {
            continue; // It was told of each device.
        }
        let why = match &missed.why {
            MissReason::Torn => "the process changed it during every attempt to read it",
            MissReason::Late => "late",
            MissReason::Failed(why) => why,
        };
        writeln!(out, "\nnot read: {:?}: {}", missed.reader, one_line(why))?;
    }
    for missing in process.core().iter().flat_map(|core| &core.missing) {
        writeln!(out, "\nnot read: {}", one_line(missing))?;
    }
    Ok(())
}

fn core_text(core: &CoreOrigin) -> String {
    let signal = core.signal.as_ref();
    let signal = signal.map_or_else(String::new, |signal| format!(", written on {signal}"));
    format!("Core file {}{signal}\n", one_line(&core.file))
}

fn signal_of<'a>(process: &'a ProcessSnapshot, thread: &ThreadSnapshot) -> Option<&'a str> {
    let core = process.core()?;
    let id = process.stacks().get_thread(thread.thread)?.os_id;
    core.signal.as_deref().filter(|_| id.is_some() && id == core.thread.map(u64::from))
}

fn write_threads(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    options: &DumpOptions,
) -> std::io::Result<()> {
    let labels = labels(process, options.full_filenames);
    let mixed_labels = mixed_labels(process, options.full_filenames);
    let is_folded = |thread: &&ThreadSnapshot| {
        let waits = thread.activity == ThreadActivity::Idle || thread.asleep;
        let is_main = process.stacks().get_thread(thread.thread).is_some_and(|known| known.main);
        waits && !is_main && !options.idle && signal_of(process, thread).is_none()
    };
    for thread in process.threads().iter().filter(|thread| !is_folded(thread)) {
        writeln!(out)?;
        writeln!(out, "{}", thread_text(process, thread))?;
        match process.mixed_stack(thread.thread) {
            Some(stack) => write_frames(out, stack, &mixed_labels)?,
            None => {
                for frame in process.stacks().frames(thread.stack) {
                    writeln!(out, "    {}", labels.frame(frame, true))?;
                }
            }
        }
    }
    if process.threads().is_empty() {
        writeln!(out, "\nNo Python stack could be read.")?;
    }
    let idle: Vec<&ThreadSnapshot> = process.threads().iter().filter(is_folded).collect();
    if !idle.is_empty() {
        write_idle(out, process, &idle, &labels)?;
    }
    write_rest(out, process, &mixed_labels, options.idle)
}

fn write_idle(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    idle: &[&ThreadSnapshot],
    labels: &FrameLabels<'_>,
) -> std::io::Result<()> {
    writeln!(out)?;
    for thread in idle.iter().take(MAX_IDLE) {
        let place = process.stacks().frames(thread.stack).next();
        let place =
            place.map_or_else(String::new, |frame| format!(", in {}", labels.frame(frame, true)));
        writeln!(out, "{}{place}", thread_text(process, thread))?;
    }
    let more = match idle.len().saturating_sub(MAX_IDLE) {
        0 => String::new(),
        more => format!("{more} more idle threads; "),
    };
    writeln!(out, "({more}--idle shows the stacks of idle threads)")
}

fn write_on_cpu(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    owners: &OwnersResult,
) -> Result<(), OutputError> {
    let Ok(snapshot) = owners else { return Ok(()) };
    for (device, sums) in breakdown(snapshot) {
        if sums.storages() == 0 {
            continue;
        }
        let all = sums.in_tensors();
        writeln!(out, "\n{device}: {} in tensors, by owner{}:", bytes(all), whole_lists(process))?;
        let groups = owner_groups(snapshot);
        let groups: Vec<_> = groups.iter().filter(|group| group.device == device).collect();
        write_rows(out, &group_rows(&groups, &outside_tensors(&sums), MAX_OWNERS), all)?;
    }
    Ok(())
}

/// None for a core file.
fn whole_lists(process: &ProcessSnapshot) -> String {
    match process.start().filter(|_| process.core().is_none()) {
        Some(start) => {
            let command = |name: &str| in_sentence(&suggestion_on(start.pid, name, &[]));
            format!(" ({} lists all, {} what is saved)", command("tensors"), command("graph"))
        }
        None => String::new(),
    }
}

fn write_owners(
    out: &mut dyn Write,
    owners: &OwnersResult,
    device: &DeviceSnapshot,
    index: CudaIndex,
    options: &DumpOptions,
) -> Result<(), OutputError> {
    let snapshot = match owners {
        Ok(snapshot) => snapshot,
        Err(why) => {
            return Ok(writeln!(out, "  its owners are unknown: {}", one_line(why))?);
        }
    };
    let found = breakdown(snapshot)
        .into_iter()
        .find(|(at, _)| at.is_cuda() && at.index.map(u32::from) == Some(index.0));
    let Some((at, sums)) = found else { return Ok(()) };
    let Some(allocated) = sums.allocated else { return Ok(()) };
    let earlier = match options.owners_age {
        Some(age) if device.allocated != Some(allocated) => {
            format!(" {:.2} s earlier", age.as_secs_f64())
        }
        _ => String::new(),
    };
    writeln!(out, "  of {} allocated{earlier}, by owner:", bytes(allocated))?;
    for note in [incomplete(snapshot), uncertain(snapshot)].into_iter().flatten() {
        writeln!(out, "  {note}")?;
    }
    if options.each {
        let most = usize::MAX;
        let wanted = TensorsOptions {
            device: Some(DeviceChoice::Gpu(index.0)),
            all_devices: false,
            most,
            each: true,
        };
        write_storages(out, snapshot, wanted)?;
    } else {
        let groups = owner_groups(snapshot);
        let groups: Vec<_> = groups.iter().filter(|group| group.device == at).collect();
        write_rows(out, &group_rows(&groups, &outside_tensors(&sums), MAX_OWNERS), allocated)?;
        if groups.len() > MAX_OWNERS {
            writeln!(out, "(--each shows every storage)")?;
        }
    }
    writeln!(out, "  by category:")?;
    Ok(categories(out, &sums)?)
}

pub(super) fn labels(process: &ProcessSnapshot, full_filenames: bool) -> FrameLabels<'_> {
    FrameLabels {
        stacks: process.stacks(),
        directory: process.start().and_then(|s| s.directory.as_deref()),
        full_filenames,
    }
}

/// Stacks with native frames have a table of their own.
pub(super) fn mixed_labels(process: &ProcessSnapshot, full_filenames: bool) -> FrameLabels<'_> {
    let own = process.mixed_stacks().and_then(Result::ok).map(|it| &it.table);
    FrameLabels { stacks: own.unwrap_or(process.stacks()), ..labels(process, full_filenames) }
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

fn thread_text(process: &ProcessSnapshot, thread: &ThreadSnapshot) -> String {
    let known = process.stacks().get_thread(thread.thread);
    let id = known.map_or_else(
        || "unknown".to_owned(),
        |t| t.os_id.map_or_else(|| format!("{:#x}", t.python_id), |id| id.to_string()),
    );
    let name = known.and_then(|t| t.name.as_deref());
    let name = name.map_or_else(String::new, |n| format!(": \"{}\"", one_line(n)));
    let gil = if thread.gil { "+gil" } else { "" };
    let activity = match process.core() {
        // No thread of a core file is active.
        Some(_) => signal_of(process, thread).unwrap_or("no signal"),
        None => activity_text(thread.activity, thread.asleep),
    };
    format!("Thread {id} ({activity}{gil}){name}")
}

pub(super) fn activity_text(activity: ThreadActivity, asleep: bool) -> &'static str {
    match activity {
        _ if asleep => "asleep",
        ThreadActivity::Active => "active",
        ThreadActivity::Idle => "idle",
        ThreadActivity::Unknown => "activity unknown",
    }
}

fn write_unused_device(out: &mut dyn Write, device: &DeviceSnapshot) -> std::io::Result<bool> {
    if !device.is_unused() {
        return Ok(false);
    }
    write!(out, "{}: nothing of this process", device_name(device))?;
    for (size, of) in [(device.others, "of other processes"), (device.free, "free")] {
        if let Some(size) = size {
            write!(out, "; {} {of}", bytes(size))?;
        }
    }
    writeln!(out)?;
    Ok(true)
}

fn device_name(device: &DeviceSnapshot) -> String {
    let index = match (device.cuda_index, device.nvml_index) {
        (Some(cuda), Some(nvml)) if cuda.0 != nvml => {
            format!("GPU {} (nvidia-smi: {nvml})", cuda.0)
        }
        (Some(cuda), _) => format!("GPU {}", cuda.0),
        (None, Some(nvml)) => format!("GPU not seen by the process (nvidia-smi: {nvml})"),
        (None, None) => "GPU".to_owned(),
    };
    let name = device.name.as_deref().unwrap_or("unknown model");
    format!("{index}, {}, {}", one_line(name), optional_bytes(device.total))
}

/// What a private pool belongs to: ` of runners[64].graph`.
fn users(owners: &OwnersResult, pool: PoolId) -> String {
    let Ok(snapshot) = owners else { return String::new() };
    let users: Vec<PoolUser> =
        snapshot.pool_users.iter().filter(|user| user.pool == pool).cloned().collect();
    match users.is_empty() {
        true => String::new(),
        false => format!(" of {}", pool_users(&users)),
    }
}

fn write_device(
    out: &mut dyn Write,
    device: &DeviceSnapshot,
    owners: &OwnersResult,
) -> std::io::Result<()> {
    writeln!(out, "{}", device_name(device))?;
    let mut row = |name: &str, value: String| writeln!(out, "    {name:<35} {value}");
    if device.cuda_index.is_some() {
        row("allocated through PyTorch", optional_bytes(device.allocated))?;
        row("cached free (reserved - allocated)", optional_bytes(device.cached))?;
        let private = device.fragmentation.as_ref().map_or(0, |f| f.all.free - f.general.bytes);
        if private > 0 {
            row("  of it only for private pools", format!("{} (CUDA graphs)", bytes(private)))?;
        }
        if device.fragmentation.is_none() {
            row("  largest free block", optional_bytes(None))?;
        }
        if let Some(unmapped) = device.unmapped.filter(|unmapped| *unmapped > 0) {
            row("unmapped (asleep), at least", bytes(unmapped))?;
        }
        for (name, value) in tag_rows(device) {
            row(&format!("  {name}"), value)?;
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
        Some(sums) => fragmentation_text(out, sums, "    ", false, &|pool| users(owners, pool)),
        None => Ok(()),
    }
}
