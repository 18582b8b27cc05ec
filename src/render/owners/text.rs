//! The owners of memory, as tables.

use std::io::Write;
use std::time::Duration;

use super::groups::{
    DEFAULT_ROWS, group_label, group_rows, outside_tensors, write_changes, write_rows,
};
use crate::analysis::{StorageChange, changes, owner_changes, owner_groups, saved};
use crate::model::{
    CopiedTensors, DeviceOwnership, Frame, IncompleteSnapshot, OwnershipSnapshot, PythonTensors,
    ReachedLimit, StackTable, StopTotals, StorageGroup, TensorCategory, TensorDevice, TensorRow,
    ThreadSample, UncertainSnapshot,
};
use crate::ownership::{breakdown, owner_label, storages};
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, count, in_sentence, number, one_line, short_file, suggestion,
};

/// What changed is told from a 200th of the bytes on, or from so many tensors.
const TOLD_FROM: u64 = 200;
const MANY_LEFT_OUT: u64 = 100;
/// Fits most shapes; longer ones shift their row.
const SHAPE: usize = 24;

/// A requested device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU by the job's number.
    Gpu(u32),
    /// Host memory.
    Cpu,
}

/// Which tensors a table lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TensorsOptions {
    /// Only this device.
    pub device: Option<DeviceChoice>,
    /// CPU tensors too.
    pub all_devices: bool,
    /// Most rows.
    pub most: usize,
    /// Single storages instead of groups.
    pub each: bool,
}

impl TensorsOptions {
    fn takes(self, device: TensorDevice) -> bool {
        match self.device {
            Some(DeviceChoice::Gpu(gpu)) => {
                device.is_cuda() && device.index.map(u32::from) == Some(gpu)
            }
            Some(DeviceChoice::Cpu) => device.is_cpu(),
            None => self.all_devices || device.is_cuda(),
        }
    }

    /// Chooses all devices if no tensor is on a GPU.
    pub fn settled(self, snapshot: &OwnershipSnapshot) -> TensorsOptions {
        let mut devices = snapshot.tensors.iter().filter_map(|row| row.tensor.device);
        let any_cuda = devices.any(TensorDevice::is_cuda);
        TensorsOptions {
            all_devices: self.device.is_none() && (self.all_devices || !any_cuda),
            ..self
        }
    }
}

/// Writes the owners, or `each` storage, largest first.
pub fn tensors_text(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    wanted: TensorsOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if let Some(copied) = copied(snapshot) {
        writeln!(out, "{copied}\n")?;
    }
    let wanted = wanted.settled(snapshot);
    let groups = if wanted.each { Vec::new() } else { owner_groups(snapshot) };
    for (device, sums) in breakdown(snapshot) {
        if !wanted.takes(device) {
            continue;
        }
        if sums.allocated == Some(0) && sums.storages() == 0 {
            writeln!(out, "{device}: nothing of this process")?;
            continue;
        }
        let all = match sums.allocated {
            Some(allocated) => {
                writeln!(out, "{device}: {} allocated", bytes(allocated))?;
                allocated
            }
            None => {
                writeln!(out, "{device}: {} in tensors", bytes(sums.in_tensors()))?;
                sums.in_tensors()
            }
        };
        if !wanted.each {
            let groups: Vec<_> = groups.iter().filter(|group| group.device == device).collect();
            let rows = group_rows(&groups, &outside_tensors(&sums), wanted.most);
            writeln!(out)?;
            write_rows(out, &rows, all)?;
            if groups.len() > wanted.most {
                writeln!(out, "--limit 0 lists all groups, --each single storages")?;
            }
            writeln!(out, "\nby category")?;
        }
        device_sums(out, &sums)?;
    }
    if wanted.each {
        write_storages(out, snapshot, wanted)?;
    }
    footer(out, snapshot)
}

pub(crate) fn write_storages(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    wanted: TensorsOptions,
) -> Result<(), OutputError> {
    let listed: Vec<StorageGroup> =
        storages(snapshot).into_iter().filter(|group| wanted.takes(group.device)).collect();
    writeln!(
        out,
        "{:>11}  {:<18}  {:<SHAPE$}  {:<9}  name",
        "bytes", "category", "shape", "dtype"
    )?;
    for group in listed.iter().take(wanted.most) {
        write_group(out, snapshot, group)?;
    }
    if listed.len() > wanted.most {
        let rest: u64 = listed[wanted.most..].iter().map(StorageGroup::bytes).sum();
        let left = count((listed.len() - wanted.most) as u64);
        writeln!(
            out,
            "{left} smaller storages ({}) are not listed: --limit 0 lists all",
            bytes(rest)
        )?;
    }
    Ok(())
}

fn write_group(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    group: &StorageGroup,
) -> Result<(), OutputError> {
    let size = match group.storage.bytes {
        None => "symbolic".to_owned(),
        Some(_) if group.bytes() == 0 => "none".to_owned(),
        Some(size) => bytes(size),
    };
    let mut tensors = group.tensors.iter().map(|&index| &snapshot.tensors[index]);
    let Some(first) = tensors.next() else { return Ok(()) };
    let name = name(snapshot, first);
    row(out, &size, group.category.name(), first, &name)?;
    // Other names, then tensors that share its memory.
    for other in first.names.iter().skip(1) {
        row(out, "", "", first, &format!("= {}", one_line(other)))?;
    }
    let mut unnamed_blocks = 0;
    for sharing in tensors {
        match sharing.names.first() {
            Some(name) => row(out, "", "shares it", sharing, &one_line(name))?,
            None => unnamed_blocks += 1,
        }
    }
    if unnamed_blocks > 0 {
        writeln!(out, "{:>11}  {:<18}  {unnamed_blocks} more without a name share it", "", "")?;
    }
    Ok(())
}

fn row(
    out: &mut dyn Write,
    size: &str,
    what: &str,
    row: &TensorRow,
    name: &str,
) -> Result<(), OutputError> {
    let shape = match (&row.tensor.shape, &row.tensor.nested) {
        (Some(shape), _) => format!("{shape:?}"),
        (None, Some(nested)) => format!("nested x {}", nested.len()),
        (None, None) => "symbolic".to_owned(),
    };
    let dtype = row.tensor.dtype.to_string();
    writeln!(out, "{size:>11}  {what:<18}  {shape:<SHAPE$}  {dtype:<9}  {name}")?;
    Ok(())
}

pub(super) fn name(snapshot: &OwnershipSnapshot, row: &TensorRow) -> String {
    one_line(&owner_label(snapshot, row))
}

fn device_sums(out: &mut dyn Write, sums: &DeviceOwnership) -> Result<(), OutputError> {
    categories(out, sums)?;
    let PythonTensors { tensors, elements, bytes: size, unknown } = sums.in_python;
    write!(
        out,
        "    {:<35} {} in {} tensors, {} elements",
        "Python's tensors, each view counted",
        bytes(size),
        count(tensors),
        count(elements)
    )?;
    if unknown > 0 {
        write!(out, "; {} of unknown size are not in it", count(unknown))?;
    }
    writeln!(out, "\n")?;
    Ok(())
}

/// Without empty ones.
pub(crate) fn categories(out: &mut dyn Write, sums: &DeviceOwnership) -> std::io::Result<()> {
    let mut line = |name: &str, size: u64, what: String| {
        if size > 0 { writeln!(out, "    {name:<35} {}{what}", bytes(size)) } else { Ok(()) }
    };
    for category in TensorCategory::ALL {
        let held = sums.by_category.get(&category).copied().unwrap_or_default();
        let unnamed = match category {
            TensorCategory::Other if sums.unnamed.bytes > 0 => {
                format!(", {} of it without a name", bytes(sums.unnamed.bytes))
            }
            _ => String::new(),
        };
        let storages = number(held.storages, "storage");
        line(category.name(), held.bytes, format!(" in {storages}{unnamed}"))?;
    }
    let blocks = |held: u64| format!(" in {}", number(held, "block"));
    line("rounding", sums.rounding, String::new())?;
    for (keeper, held) in &sums.in_cpp {
        line(keeper.name(), held.bytes, blocks(held.storages))?;
    }
    let without = sums.without_tensor;
    let name = sums.not_read.as_deref().unwrap_or("in no tensor (work spaces, C++)");
    line(name, without.bytes, blocks(without.storages))?;
    let pending = sums.pending_free;
    line("freed, used by other streams", pending.bytes, blocks(pending.storages))?;
    let in_pools = sums.in_pools;
    let storages = number(in_pools.storages, "storage");
    let what = format!(" in {storages}, free to the allocator's counters");
    line("in pools of CUDA graphs", in_pools.bytes, what)?;
    let elsewhere = sums.elsewhere;
    let storages = number(elsewhere.storages, "storage");
    let what = format!(" in {storages}, not allocated through PyTorch");
    line("elsewhere", elsewhere.bytes, what)?;
    let garbage = sums.garbage;
    let storages = number(garbage.storages, "storage");
    let what = format!(" in {storages}, held by cycles of garbage only");
    line("gc.collect() would free", garbage.bytes, what)?;
    line("empty_cache() would return", sums.releasable, " of what is cached".to_owned())
}

/// Writes what came and went between two snapshots.
pub fn changes_text(
    out: &mut dyn Write,
    before: &OwnershipSnapshot,
    now: &OwnershipSnapshot,
    wanted: TensorsOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for (device, sums) in breakdown(now) {
        if wanted.takes(device) {
            let size = match sums.allocated {
                Some(allocated) => format!("{} allocated", bytes(allocated)),
                None => format!("{} in tensors", bytes(sums.in_tensors())),
            };
            writeln!(out, "{device}: {size}, {}", number(sums.storages(), "storage"))?;
        }
    }
    if !wanted.each {
        let (before, now) = (owner_groups(before), owner_groups(now));
        let mut changes = owner_changes(&before, &now);
        changes.retain(|change| wanted.takes(change.group.device));
        return Ok(write_changes(out, &changes, wanted.most)?);
    }
    let listed: Vec<StorageChange> =
        changes(before, now).into_iter().filter(|change| wanted.takes(change.device)).collect();
    for change in listed.iter().take(wanted.most) {
        let snapshot = if change.came { now } else { before };
        let sign = if change.came { '+' } else { '-' };
        let each = bytes(change.bytes / change.count);
        let what = format!("{sign} {} x {each}", count(change.count));
        let name = name(snapshot, &snapshot.tensors[change.tensor]);
        let name = format!("{}  {name}", change.device);
        row(out, &what, change.category.name(), &snapshot.tensors[change.tensor], &name)?;
    }
    if listed.len() > wanted.most {
        writeln!(out, "{} smaller changes are not listed", listed.len() - wanted.most)?;
    }
    Ok(())
}

/// The main thread's innermost program frame.
pub fn place(stacks: &StackTable, samples: &[ThreadSample]) -> Option<String> {
    let main = samples.iter().find(|s| stacks.get_thread(s.thread).is_some_and(|t| t.main));
    let sample = main?;
    let known = |frame: Frame| {
        let function = stacks.get_function(frame.function)?;
        Some((frame.line, function))
    };
    let frames: Vec<_> = stacks.frames(sample.stack).filter_map(known).collect();
    let own = frames.iter().find(|(_, function)| !function.is_of_library());
    let (line, function) = own.or(frames.first())?;
    let file = one_line(short_file(&function.file, None));
    Some(format!("{file}:{line} in {}", one_line(&function.name)))
}

/// Writes what the autograd graph keeps.
pub fn graph_text(out: &mut dyn Write, snapshot: &OwnershipSnapshot) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if let Some(copied) = copied(snapshot) {
        writeln!(out, "{copied}\n")?;
    }
    let summary = saved(snapshot);
    let nodes = count(snapshot.nodes.len() as u64);
    writeln!(out, "{nodes} autograd nodes keep {} for the backward pass", bytes(summary.all))?;
    for (what, size) in [
        ("activations", summary.activations),
        ("inputs", summary.inputs),
        ("parameters (held anyway)", summary.parameters),
        ("buffers (held anyway)", summary.buffers),
    ] {
        writeln!(out, "    {what:<35} {}", bytes(size))?;
    }
    let groups = owner_groups(snapshot);
    let kept = groups.iter().filter(|group| group.category == TensorCategory::Saved);
    writeln!(out, "\n{:>11}  {:>8}  kept by", "bytes", "storages")?;
    for group in kept.take(DEFAULT_ROWS) {
        let (size, storages) = (bytes(group.size.bytes), count(group.size.storages));
        writeln!(out, "{size:>11}  {storages:>8}  {}", group_label(group))?;
    }
    writeln!(out)?;
    writeln!(out, "{:>11}  {:>8}  {:>6}  node", "bytes", "storages", "nodes")?;
    for (class, held) in &summary.classes {
        let packed = match held.packed {
            0 => String::new(),
            packed => format!("  ({packed} packed by hooks: checkpointed or offloaded)"),
        };
        writeln!(
            out,
            "{:>11}  {:>8}  {:>6}  {}{packed}",
            bytes(held.bytes),
            held.storages,
            held.nodes,
            one_line(class)
        )?;
    }
    graph_footer(out, snapshot)
}

/// The search for garbage and distant names does not affect the graph.
pub(super) fn graph_footer(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), OutputError> {
    write_footer(out, snapshot, snapshot.cut_graph())
}

pub(super) fn footer(out: &mut dyn Write, snapshot: &OwnershipSnapshot) -> Result<(), OutputError> {
    write_footer(out, snapshot, snapshot.incomplete.as_ref())
}

fn write_footer(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    incomplete: Option<&IncompleteSnapshot>,
) -> Result<(), OutputError> {
    writeln!(out)?;
    writeln!(out, "{}", pause(snapshot))?;
    if let Some(incomplete) = incomplete {
        writeln!(out, "{}", incomplete_text(incomplete))?;
    }
    if let Some(uncertain) = uncertain(snapshot) {
        writeln!(out, "{uncertain}")?;
    }
    if snapshot.unreadable > 0 {
        writeln!(
            out,
            "{} objects could not be read: names may be missing",
            count(snapshot.unreadable)
        )?;
    }
    if snapshot.misfits > 0 {
        writeln!(
            out,
            "{} tensors have fields that contradict each other, as in damaged memory: their figures may be wrong",
            count(snapshot.misfits)
        )?;
    }
    Ok(())
}

pub(crate) fn copied(snapshot: &OwnershipSnapshot) -> Option<String> {
    let CopiedTensors { of, storages, bytes: size } = snapshot.copied?;
    let storages = number(storages, "storage");
    Some(match of {
        Some(pid) => format!(
            "This process holds no GPU memory of its own. It was forked from process {pid} after CUDA had begun there: the \
             {} in {storages} that its tensors on GPUs show are a copy of what process {pid} had then. Read that one: {}",
            bytes(size),
            in_sentence(&suggestion(["-p", &pid.to_string()]))
        ),
        None => format!(
            "This process holds no GPU memory of its own. It was forked from a process that had begun to use CUDA and has ended \
             since: the {} in {storages} that its tensors on GPUs show are a copy of what that had then. Device files that it \
             still has open (/dev/nvidia*) may keep the memory of the ended process from being given back",
            bytes(size)
        ),
    })
}

/// What is missing and why; `None` if complete.
pub fn incomplete(snapshot: &OwnershipSnapshot) -> Option<String> {
    snapshot.incomplete.as_ref().map(incomplete_text)
}

/// What changed while it was read; `None` if next to nothing did.
pub fn uncertain(snapshot: &OwnershipSnapshot) -> Option<String> {
    let UncertainSnapshot { bytes: changed, of, parts, left_out } = snapshot.uncertain.as_ref()?;
    if changed.saturating_mul(TOLD_FROM) < *of && *left_out < MANY_LEFT_OUT {
        return None;
    }
    let parts = match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join(", ")),
    };
    let left_out = match left_out {
        0 => String::new(),
        tensors => format!("left out: {}; ", number(*tensors, "torn tensor")),
    };
    Some(format!(
        "changed while it was read: {} of {}; {left_out}rows there may be torn{parts}",
        bytes(*changed),
        bytes(*of)
    ))
}

fn incomplete_text(incomplete: &IncompleteSnapshot) -> String {
    let (IncompleteSnapshot { limit, missing }, not_read) = (incomplete, incomplete.not_read());
    let advice = match limit {
        ReachedLimit::Pause(_) => "; --max-stop allows more, --no-stop never stops it",
        ReachedLimit::Time(_) | ReachedLimit::Finding { .. } | ReachedLimit::Repeating(_) => {
            "; --max-time allows more"
        }
        ReachedLimit::Memory(_) | ReachedLimit::Copies(_) | ReachedLimit::Counts => "",
    };
    format!(
        "INCOMPLETE: {limit}; missing or partial: {}{}{advice}",
        missing.join(", "),
        match incomplete.lacks_tensors() {
            true => format!(". Missing memory is shown as [{not_read}]"),
            false => String::new(),
        }
    )
}

/// How long the process was stopped.
pub fn pause(snapshot: &OwnershipSnapshot) -> String {
    let objects = count(snapshot.objects);
    match snapshot.pause {
        Some(pause) => {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let StopTotals { count, total, longest } = snapshot.stops;
            let all = match count {
                0 | 1 => String::new(),
                _ => format!(" at the longest ({count} stops, {:.1} ms in all)", ms(total)),
            };
            format!(
                "the process was stopped for {:.1} ms{all} while {objects} objects were read",
                ms(pause.max(longest))
            )
        }
        None => format!(
            "the process ran on while {objects} objects were read: what changed meanwhile may be inconsistent"
        ),
    }
}
