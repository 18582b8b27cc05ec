//! A job on one screen.

use std::io::Write;

use super::color::colored;
use super::device_lines;
use super::findings::{FindingText, finding_lines};
use super::host_line::host_line;
use crate::analysis::{
    GpuFacts, GrowthWatch, HostUse, ObservedDevice, OwnerGroup, ProcessSnapshot,
};
use crate::model::{CudaIndex, OwnershipSnapshot, StopTotals, TensorCategory, TensorDevice};
use crate::ownership::breakdown;
use crate::render::owners::{
    COLLECT_NOTE, GroupRow, copied, group_label, group_rows, incomplete, outside_tensors, pause,
    uncertain,
};
use crate::render::shared::{
    OutputError, bytes, count, indented, number, one_line, optional_bytes, percent, suggestion_on,
    tag_rows, visible, wrapped,
};

const MAX_LINES: usize = 40;
const OWNERS: usize = 10;
const LINES: usize = 10;
const GROWN: usize = 3;
const FINDINGS: usize = 2;
/// Bytes a second; slower growth is not reported.
pub(super) const MIN_RATE: f64 = 1024.0;
/// Of fewer it is not known that nothing grew.
const MIN_SNAPSHOTS: usize = 3;
/// vLLM has two tags a device.
const MAX_TAG_ROWS: usize = 3;
/// In cells.
const BAR: usize = 80;
const BESIDE_BAR: usize = 20;
/// Lines need this part of the allocated memory: 1/100.
const MIN_ATTRIBUTED: u64 = 100;

pub(super) const PROVEN: &str = "proven";
pub(super) const SAMPLED: &str =
    "unattributed: a guess from samples; exact as root where that costs little";

/// The evidence for the lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LinesSource {
    /// Not known.
    #[default]
    None,
    /// Every allocation.
    Exact,
    /// Sampled stacks: a guess.
    Sampled {
        /// Why it was not exact.
        why: String,
    },
}

/// Live bytes of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineBytes {
    /// Function, file and line.
    pub line: String,
    /// Bytes.
    pub bytes: u64,
}

/// Live bytes by line and device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObservedLines {
    /// The evidence.
    pub source: LinesSource,
    /// Length of the recording.
    pub seconds: f64,
    /// By device: allocated bytes, and the lines, largest first.
    pub gpus: Vec<(CudaIndex, u64, Vec<LineBytes>)>,
}

/// What a summary shows.
#[derive(Debug)]
pub struct JobSummary<'a> {
    /// The process.
    pub pid: u32,
    /// Its snapshot.
    pub process: &'a ProcessSnapshot,
    /// Its devices.
    pub gpus: &'a [GpuFacts],
    /// The owners over time.
    pub growth: &'a GrowthWatch,
    /// The last snapshot, or why there is none.
    pub snapshot: Result<&'a OwnershipSnapshot, &'a str>,
    /// Stops of the job.
    pub stops: StopTotals,
    /// Live bytes by line.
    pub lines: &'a ObservedLines,
    /// Peaks and failures.
    pub devices: &'a [ObservedDevice],
    /// The findings.
    pub findings: &'a [FindingText],
    /// The host's side.
    pub host: &'a HostUse,
    /// More follows: nothing is said about what is not known yet.
    pub is_partial: bool,
    /// With more time there would be a snapshot.
    pub needs_time: bool,
}

/// How a summary is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct SummaryStyle {
    /// Of the terminal, in columns.
    pub width: Option<usize>,
    /// With colours.
    pub color: bool,
}

/// Writes some 40 lines, 16 for one rank of several.
pub fn job_summary_text(
    out: &mut dyn Write,
    summary: &JobSummary<'_>,
    is_rank: bool,
    SummaryStyle { width, color }: SummaryStyle,
) -> Result<(), OutputError> {
    let (owners, max_lines) = if is_rank { (4, 16) } else { (OWNERS, MAX_LINES) };
    let mut top = head(summary);
    top.extend(summary.snapshot.ok().and_then(copied));
    top.extend(bars(summary.gpus, is_rank, width));
    top.extend(summary.gpus.is_empty().then(|| without_gpus(summary)));
    top.extend(device_lines::peaks(summary));
    top.extend(host_line(summary.host));
    top.extend(asleep(summary.process));
    top.extend(owner_lines(summary, owners));
    top.extend(grown(summary));
    let mut bottom = finding_part(summary, if is_rank { 2 } else { FINDINGS });
    bottom.extend(foot(summary));
    let fitted = |lines: Vec<String>| -> Vec<String> {
        lines.iter().flat_map(|line| wrapped(line, width)).collect()
    };
    let (top, bottom) = (fitted(top), fitted(bottom));
    let room = max_lines.saturating_sub(top.len() + bottom.len());
    let lines = line_lines(summary, room.min(LINES + 1), width);
    for line in top.iter().chain(&lines).chain(&bottom) {
        let line = visible(line);
        writeln!(out, "{}", if color { colored(&line) } else { line.into_owned() })?;
    }
    Ok(())
}

fn head(summary: &JobSummary<'_>) -> Vec<String> {
    let command = summary.process.start().map(|start| start.command.join(" ")).unwrap_or_default();
    vec![format!("Process {}: {}", summary.pid, one_line(&command))]
}

fn without_gpus(summary: &JobSummary<'_>) -> String {
    let tensors = summary.snapshot.map_or(&[][..], |snapshot| &snapshot.tensors);
    // Of JAX, where the driver hides the process.
    match tensors.iter().filter_map(|row| row.tensor.device).any(TensorDevice::is_cuda) {
        true => "what it uses of its GPUs is not known".to_owned(),
        false => "it uses no GPU memory of PyTorch's; what follows is on the CPU".to_owned(),
    }
}

fn bars(gpus: &[GpuFacts], is_short: bool, width: Option<usize>) -> Vec<String> {
    let cells = width.map_or(BAR, |width| width.saturating_sub(BESIDE_BAR).clamp(10, BAR));
    let mut lines = Vec::new();
    for gpu in gpus {
        let private = gpu.cache.map_or(0, |cache| cache.private);
        let cached = gpu.reserved.zip(gpu.allocated);
        let cached = cached.map(|(r, a)| r.saturating_sub(a).saturating_sub(private));
        let parts = [
            ('█', "allocated", gpu.allocated),
            ('▚', "private pools", Some(private).filter(|private| *private > 0)),
            ('▓', "cached", cached),
            ('▒', "outside", gpu.outside),
            ('░', "others", gpu.others),
            ('·', "free", gpu.free),
        ];
        let words = parts
            .iter()
            .filter(|(_, name, size)| size.is_some() || *name != "private pools")
            .map(|(mark, name, size)| format!("{mark} {name} {}", optional_bytes(*size)));
        let words = words.collect::<Vec<_>>().join("  ");
        let title = format!("GPU {}, {}", gpu.gpu, optional_bytes(gpu.total));
        let has_bar = gpus.len() <= 3 && !is_short;
        if !has_bar {
            lines.push(format!("{title}: {words}"));
        }
        // Many GPUs leave no room for bars.
        if let Some(total) = gpu.total.filter(|total| *total > 0 && has_bar) {
            let mut bar = String::new();
            let mut filled = 0.0;
            for (mark, _, size) in parts.iter().take(5) {
                filled += size.unwrap_or(0) as f64 * cells as f64 / total as f64;
                // Shows even the smallest part.
                let until = filled.round() as usize;
                let until = until.max(bar.chars().count() + usize::from(size.unwrap_or(0) > 0));
                let more = until.min(cells).saturating_sub(bar.chars().count());
                bar.extend(std::iter::repeat_n(*mark, more));
            }
            let free = cells - bar.chars().count();
            lines.push(format!("{title:<17} [{bar}{}]", "·".repeat(free)));
        } else if has_bar {
            lines.push(title);
        }
        if has_bar {
            lines.extend(match width {
                Some(width) => indented(&words, width, "  "),
                None => vec![words],
            });
        }
    }
    lines
}

fn asleep(process: &ProcessSnapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for device in process.devices() {
        let Some(gpu) = device.cuda_index else { continue };
        if let Some(unmapped) = device.unmapped.filter(|unmapped| *unmapped > 0) {
            lines.push(format!("GPU {}: unmapped (asleep), at least {}", gpu.0, bytes(unmapped)));
        }
        let tags = tag_rows(&device).into_iter().take(MAX_TAG_ROWS);
        lines.extend(tags.map(|(name, value)| format!("GPU {}: {name}: {value}", gpu.0)));
    }
    lines
}

/// Over all devices, in the last complete snapshot.
fn owner_lines(summary: &JobSummary<'_>, most: usize) -> Vec<String> {
    let snapshot = match summary.snapshot {
        Ok(snapshot) => snapshot,
        Err(_) if summary.is_partial => return Vec::new(),
        Err(why) => {
            let mut lines =
                vec![String::new(), format!("its owners are unknown: {}", one_line(why))];
            if summary.needs_time {
                let command = suggestion_on(summary.pid, "tensors", &["--max-time", "60s"]);
                lines.push(format!("    {command}"));
            }
            return lines;
        }
    };
    let sums = breakdown(snapshot);
    // A job without GPUs has its tensors on the CPU.
    let has_gpu = sums.keys().any(|device| device.is_cuda());
    let on_gpu = |device: &TensorDevice| device.is_cuda() || !has_gpu;
    let all: u64 = sums
        .iter()
        .filter(|(device, _)| on_gpu(device))
        .map(|(_, sums)| sums.allocated.unwrap_or_else(|| sums.in_tensors()))
        .sum();
    // The last complete snapshot already lists them.
    let known = snapshot.has_all_tensors().then(|| summary.growth.last());
    let mut own = Vec::new();
    let groups: &[OwnerGroup] = known.filter(|groups| !groups.is_empty()).unwrap_or_else(|| {
        own = crate::analysis::owner_groups(snapshot);
        &own
    });
    let groups: Vec<_> = groups.iter().filter(|group| on_gpu(&group.device)).collect();
    let mut outside: Vec<(String, u64)> = Vec::new();
    for (_, sums) in sums.iter().filter(|(device, _)| on_gpu(device)) {
        for (name, size) in outside_tensors(sums) {
            match outside.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += size,
                None => outside.push((name, size)),
            }
        }
    }
    let rows = group_rows(&groups, &outside, most);
    let has_frees = rows.iter().any(|row| !row.frees.is_empty());
    let mut lines = vec![
        String::new(),
        format!(
            "{:>11}  {:>7}  {:>8}  {}held by ({})",
            "bytes",
            "share",
            "storages",
            if has_frees { format!("{:>12}  ", "frees") } else { String::new() },
            suggestion_on(summary.pid, "tensors", &[])
        ),
    ];
    lines.extend(rows.iter().map(|row| owner_line(row, all, has_frees)));
    if rows.iter().any(|row| row.frees.ends_with('*')) {
        lines.push(COLLECT_NOTE.to_owned());
    }
    let saved = sums.values().filter_map(|sums| sums.by_category.get(&TensorCategory::Saved));
    let saved: u64 = saved.map(|held| held.bytes).sum();
    if !has_gpu && saved > 0 {
        lines.push(format!(
            "{:>11}  of it only saved for the backward pass ({})",
            bytes(saved),
            suggestion_on(summary.pid, "graph", &[])
        ));
    }
    lines
}

fn owner_line(row: &GroupRow, all: u64, has_frees: bool) -> String {
    let storages = row.size.map_or_else(String::new, |size| count(size.storages));
    let indent = if row.is_part { "    " } else { "" };
    let share = format!("{:.1} %", percent(row.bytes, all));
    let frees = if has_frees { format!("{:>12}  ", row.frees) } else { String::new() };
    format!("{:>11}  {share:>7}  {storages:>8}  {frees}{indent}{}", bytes(row.bytes), row.text)
}

fn grown(summary: &JobSummary<'_>) -> Vec<String> {
    let (snapshots, seconds) = (summary.growth.snapshots(), summary.growth.seconds());
    let mut grown = summary.growth.owners();
    grown.retain(|growth| growth.rise.rate() >= MIN_RATE);
    if snapshots < MIN_SNAPSHOTS && grown.is_empty() {
        let why = "too few snapshots were complete to say what grows";
        let command = suggestion_on(summary.pid, "growth", &[]);
        return match summary.is_partial {
            true => Vec::new(),
            false => vec![String::new(), format!("{why} ({command})")],
        };
    }
    let reserved = device_lines::reserved(summary);
    if grown.is_empty() {
        let nothing = match reserved.is_empty() {
            true => format!("nothing grew in {snapshots} snapshots over {seconds:.1} s"),
            false => format!("no owner grew in {snapshots} snapshots over {seconds:.1} s; but"),
        };
        return [String::new(), nothing].into_iter().chain(reserved).collect();
    }
    let mut lines = vec![
        String::new(),
        format!(
            "grew in each of {snapshots} snapshots over {seconds:.1} s ({})",
            suggestion_on(summary.pid, "growth", &["--for", "60s"])
        ),
    ];
    for growth in grown.iter().take(GROWN) {
        lines.push(format!(
            "{:>11}/s  {}",
            bytes(growth.rise.rate() as u64),
            group_label(&growth.group)
        ));
    }
    if grown.len() > GROWN {
        let rest: f64 = grown[GROWN..].iter().map(|growth| growth.rise.rate()).sum();
        let more = grown.len() - GROWN;
        lines.push(format!("{:>11}/s  [{more} others]", bytes(rest as u64)));
    }
    lines.extend(reserved);
    lines.extend(device_lines::when_full(summary));
    lines
}

/// The largest, in `room` lines of text.
fn line_lines(summary: &JobSummary<'_>, room: usize, width: Option<usize>) -> Vec<String> {
    let how = match &summary.lines.source {
        LinesSource::None if summary.is_partial || room < 2 => return Vec::new(),
        LinesSource::None => {
            let command = suggestion_on(summary.pid, "record", &[]);
            let text = format!("lines: the recording did not begin in time ({command})");
            return std::iter::once(String::new()).chain(wrapped(&text, width)).collect();
        }
        LinesSource::Exact => PROVEN,
        LinesSource::Sampled { .. } => SAMPLED,
    };
    let mut rows: Vec<(u64, String)> = Vec::new();
    let (mut all, several) = (0, summary.lines.gpus.len() > 1);
    for (gpu, allocated, lines) in &summary.lines.gpus {
        all += allocated;
        rows.extend(lines.iter().map(|row| match several {
            true => (row.bytes, format!("{} on GPU {}", row.line, gpu.0)),
            false => (row.bytes, row.line.clone()),
        }));
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let told: u64 = rows.iter().map(|(size, _)| size).sum();
    let seconds = summary.lines.seconds;
    if room < 2 {
        return Vec::new();
    }
    let is_little = told * MIN_ATTRIBUTED < all || rows.is_empty();
    let (told, everything) = (bytes(told.min(all)), bytes(all));
    if is_little {
        let text = format!(
            "lines: only {told} of {everything} was allocated in the {seconds:.1} s of the recording ({how})"
        );
        return std::iter::once(String::new()).chain(wrapped(&text, width)).collect();
    }
    let title = format!(
        "allocated in the last {seconds:.1} s and live, {told} of {everything}, by line ({how})"
    );
    let mut lines: Vec<String> =
        std::iter::once(String::new()).chain(wrapped(&title, width)).collect();
    for (size, line) in rows.iter().take(room.saturating_sub(2)) {
        let row = wrapped(&format!("{:>11}  {}", bytes(*size), one_line(line)), width);
        // A name is shown whole or not at all.
        if lines.len() + row.len() > room {
            break;
        }
        lines.extend(row);
    }
    lines
}

fn finding_part(summary: &JobSummary<'_>, most: usize) -> Vec<String> {
    if summary.is_partial {
        return Vec::new();
    }
    let mut lines = vec![String::new()];
    let has_tensors =
        summary.snapshot.is_ok_and(|look| !look.tensors.is_empty() || look.copied.is_some());
    // The lines above already say why a process has no owners.
    if summary.gpus.iter().all(|gpu| gpu.allocated.is_none())
        && summary.snapshot.is_ok()
        && !has_tensors
    {
        lines.push(
            "* what PyTorch has allocated is not known: the job has not used CUDA yet, or its allocator cannot be read"
                .to_owned(),
        );
        lines.push(format!("    {}", suggestion_on(summary.pid, "doctor", &[])));
    } else if summary.findings.is_empty() {
        // Without owners little can be found.
        let all_known = summary.snapshot.is_ok() || !summary.needs_time;
        lines.extend(all_known.then(|| "no findings".to_owned()));
    }
    let all = suggestion_on(summary.pid, "why", &[]);
    lines.extend(finding_lines(summary.findings, most, all));
    lines
}

fn foot(summary: &JobSummary<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if summary.is_partial {
        return lines;
    }
    lines.extend(summary.snapshot.ok().and_then(incomplete));
    lines.extend(summary.snapshot.ok().and_then(uncertain));
    if let Ok(snapshot) = summary.snapshot
        && snapshot.pause.is_none()
        && summary.stops.count > 0
    {
        lines.push(pause(snapshot));
    }
    if summary.stops.count > 0 {
        lines.push(stops_text(summary.stops));
    }
    lines
}

pub(super) fn stops_text(StopTotals { count: stops, total, longest }: StopTotals) -> String {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    format!(
        "the process was stopped {}, {:.1} ms in all, {:.1} ms at most",
        number(u64::from(stops), "time"),
        ms(total),
        ms(longest)
    )
}
