//! A job on one screen.

use std::io::Write;

use super::bars::bars;
use super::color::{HeadlineTone, colored};
use super::device_lines;
use super::findings::{FindingText, finding_lines, no_findings, unchecked};
use super::headline::{grown as growing_owners, tone};
use super::host_line::host_line;
use super::owner_table::{SummaryOwners, owner_lines};
use super::screen::{SummaryScreen, screen};
use crate::analysis::{GpuFacts, GrowthWatch, HostUse, ObservedDevice, ProcessSnapshot};
use crate::model::{CudaIndex, OwnershipSnapshot, StopTotals, TensorDevice};
use crate::render::owners::{copied, group_label, incomplete, pause, uncertain};
use crate::render::shared::{
    OutputError, bytes, number, one_line, suggestion_on, tag_rows, visible, wrapped,
};

const MAX_LINES: usize = 40;
const OWNERS: usize = 10;
const LINES: usize = 10;
const GROWN: usize = 3;
const FINDINGS: usize = 2;
/// Bytes a second; slower growth is not reported.
pub(super) const MIN_RATE: f64 = 1024.0;
/// Of fewer it is not known that nothing grew.
pub(super) const MIN_SNAPSHOTS: usize = 3;
/// vLLM has two tags a device.
const MAX_TAG_ROWS: usize = 3;
/// Lines need this part of the allocated memory: 1/100.
const MIN_ATTRIBUTED: u64 = 100;

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
        /// memspy may not place probes: as root it could be.
        lacks_rights: bool,
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
    /// Columns of the terminal.
    pub width: Option<usize>,
    /// Its rows, to fit in.
    pub height: Option<usize>,
    /// With colours.
    pub color: bool,
}

/// Writes what fits the terminal; without one some 40 lines, 16 for one rank of several.
pub fn job_summary_text(
    out: &mut dyn Write,
    summary: &JobSummary<'_>,
    is_rank: bool,
    style: SummaryStyle,
) -> Result<(), OutputError> {
    let SummaryScreen { lines, headline } = match style.width.zip(style.height) {
        Some(size) if !is_rank => screen(summary, size),
        _ => whole(summary, is_rank, style.width),
    };
    for (at, line) in lines.iter().enumerate() {
        let line = visible(line);
        let tone = if headline.contains(&at) { tone(summary) } else { HeadlineTone::None };
        writeln!(out, "{}", if style.color { colored(&line, tone) } else { line.into_owned() })?;
    }
    Ok(())
}

fn whole(summary: &JobSummary<'_>, is_rank: bool, width: Option<usize>) -> SummaryScreen {
    let (owners, max_lines) = if is_rank { (4, 16) } else { (OWNERS, MAX_LINES) };
    let fitted = |lines: Vec<String>| -> Vec<String> {
        lines.iter().flat_map(|line| wrapped(line, width)).collect()
    };
    let mut top = vec![head(summary)];
    top.extend(summary.snapshot.ok().and_then(copied));
    top.extend(bars(summary.gpus, is_rank, width));
    top.extend(summary.gpus.is_empty().then(|| without_gpus(summary)));
    top.extend(device_lines::peaks(summary, false));
    top.extend(host_line(summary.host));
    top.extend(asleep(summary.process));
    top.extend(owner_lines(summary, SummaryOwners::of(summary).as_ref(), owners, None));
    top.extend(grown(summary));
    let mut lines = fitted(top);
    let mut bottom = finding_part(summary, FINDINGS, None);
    bottom.extend(foot(summary));
    let bottom = fitted(bottom);
    let room = max_lines.saturating_sub(lines.len() + bottom.len());
    lines.extend(line_lines(summary, room.min(LINES + 1), width));
    lines.extend(bottom);
    SummaryScreen { lines, headline: 0..0 }
}

pub(super) fn head(summary: &JobSummary<'_>) -> String {
    let command = summary.process.start().map(|start| start.command.join(" ")).unwrap_or_default();
    format!("Process {}: {}", summary.pid, one_line(&command))
}

pub(super) fn without_gpus(summary: &JobSummary<'_>) -> String {
    let tensors = summary.snapshot.map_or(&[][..], |snapshot| &snapshot.tensors);
    // Of JAX, where the driver hides the process.
    match tensors.iter().filter_map(|row| row.tensor.device).any(TensorDevice::is_cuda) {
        true => "what it uses of its GPUs is not known".to_owned(),
        false => "it uses no GPU memory of PyTorch's; what follows is on the CPU".to_owned(),
    }
}

pub(super) fn asleep(process: &ProcessSnapshot) -> Vec<String> {
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

pub(super) fn grown(summary: &JobSummary<'_>) -> Vec<String> {
    let (snapshots, seconds) = (summary.growth.snapshots(), summary.growth.seconds());
    let grown = growing_owners(summary);
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

/// The lines that allocated live memory, or why none are shown.
pub(super) struct LinePart {
    pub(super) title: String,
    pub(super) rows: Vec<String>,
}

/// `None`: it is not known yet.
pub(super) fn line_part(summary: &JobSummary<'_>, is_short: bool) -> Option<LinePart> {
    let alone = |title| Some(LinePart { title, rows: Vec::new() });
    match &summary.lines.source {
        LinesSource::Exact => {}
        LinesSource::Sampled { .. } if summary.lines.gpus.is_empty() => return None,
        LinesSource::Sampled { lacks_rights, .. } => {
            return alone(sampled_lines(summary.pid, *lacks_rights));
        }
        LinesSource::None if summary.is_partial => return None,
        LinesSource::None => {
            let command = suggestion_on(summary.pid, "record", &[]);
            return alone(format!("lines: the recording did not begin in time ({command})"));
        }
    }
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
    let is_little = told * MIN_ATTRIBUTED < all || rows.is_empty();
    let (told, everything) = (bytes(told.min(all)), bytes(all));
    if is_little {
        return alone(format!(
            "lines: only {told} of {everything} was allocated in the {seconds:.1} s of the recording (proven)"
        ));
    }
    let title = match is_short {
        true => format!("lines of the last {seconds:.1} s, {told} of {everything} (proven)"),
        false => format!(
            "allocated in the last {seconds:.1} s and live, {told} of {everything}, by line (proven)"
        ),
    };
    let row = |(size, line): &(u64, String)| format!("{:>11}  {}", bytes(*size), one_line(line));
    Some(LinePart { title, rows: rows.iter().map(row).collect() })
}

/// The largest, in `room` lines of text.
fn line_lines(summary: &JobSummary<'_>, room: usize, width: Option<usize>) -> Vec<String> {
    let Some(part) = line_part(summary, false).filter(|_| room >= 2) else { return Vec::new() };
    let mut lines = vec![String::new()];
    lines.extend(wrapped(&part.title, width));
    for row in part.rows.iter().take(room.saturating_sub(2)) {
        let row = wrapped(row, width);
        // A name is shown whole or not at all.
        if lines.len() + row.len() > room {
            break;
        }
        lines.extend(row);
    }
    lines
}

/// Samples see so few allocations that the lines that they give are mostly wrong.
pub(super) fn sampled_lines(pid: u32, lacks_rights: bool) -> String {
    let exact = match lacks_rights {
        true => "root gets exact ones".to_owned(),
        false => suggestion_on(pid, "record", &["--exact"]),
    };
    format!("lines: unknown, as samples see too few allocations ({exact})")
}

/// `room`: of each sentence, in characters.
pub(super) fn finding_part(
    summary: &JobSummary<'_>,
    most: usize,
    room: Option<usize>,
) -> Vec<String> {
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
        lines.push(no_findings(&unchecked(summary.snapshot.ok(), summary.growth)));
    }
    let all = suggestion_on(summary.pid, "why", &[]);
    lines.extend(finding_lines(summary.findings, (most, room), all));
    lines
}

pub(super) fn foot(summary: &JobSummary<'_>) -> Vec<String> {
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
