//! A picture's data, taken at once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::time::Duration;

use rustc_hash::FxBuildHasher;

use crate::analysis::{
    DeviceSnapshot, LiveCounts, LiveLine, LiveProfile, LiveRows, LiveStack, MemoryGroup,
    OutsideTorch, PeakUsage, StackLabel, UsageHistory, peak, recorded_owner_groups,
};
use crate::model::{
    AllocatorBackend, CudaIndex, DeviceOwners, Frame, Nanos, OwnershipBreakdown, StopTotals,
    TargetRuntime, TensorCategory,
};
use crate::render::{self, FrameLabels};

use super::state::{DetailWindow, ListView, ViewState};
use super::table::{RowName, TableCell, TableColumn, TableRow, ViewTable};

const MAX_CALLERS: usize = 16;

const MIN_NAME_WIDTH: u16 = 28;

const OWN: TableColumn = TableColumn { name: "OWN", width: 11 };
const TOTAL: TableColumn = TableColumn { name: "TOTAL", width: 11 };
const AT_PEAK: TableColumn = TableColumn { name: "AT PEAK", width: 11 };
const LINE_PEAK: TableColumn = TableColumn { name: "LINE PEAK", width: 12 };
const NOW: TableColumn = TableColumn { name: "NOW", width: 11 };
const SHARE: TableColumn = TableColumn { name: "SHARE", width: 9 };
const BYTES: TableColumn = TableColumn { name: "BYTES", width: 11 };
const STORAGES: TableColumn = TableColumn { name: "STORAGES", width: 10 };

#[derive(Debug, Clone)]
pub(super) struct ViewHeader {
    /// `None` before the first record.
    pub(super) pid: Option<u32>,
    pub(super) command: String,
    pub(super) runtime: String,
    /// Samples per second; 0 in an exact recording.
    pub(super) rate: u32,
    pub(super) elapsed: Nanos,
    pub(super) counts: LiveCounts,
    /// Why the picture is incomplete.
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct GpuFigures {
    pub(super) recent: UsageHistory,
    pub(super) marks: Option<PeakUsage>,
    tables: BTreeMap<(usize, bool), Result<ViewTable, String>>,
}

/// A job at one moment.
#[derive(Debug, Clone)]
pub struct ViewModel {
    pub(super) head: ViewHeader,
    pub(super) devices: Vec<DeviceSnapshot>,
    gpus: BTreeMap<CudaIndex, GpuFigures>,
    /// How recording ended, if it did.
    pub(super) ended: Option<String>,
}

/// What is known of owners.
#[derive(Debug, Clone, Default)]
pub struct OwnersView {
    /// A snapshot is under way.
    pub looking: bool,
    /// The last snapshot, or why it failed; `None`: never requested.
    pub last: Option<Result<LastOwners, String>>,
}

/// An ownership snapshot, its age and its stops.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct LastOwners {
    pub snapshot: OwnershipBreakdown,
    pub age: Duration,
    pub stops: StopTotals,
}

impl ViewModel {
    /// `whole`: all that `state` may ask for later.
    pub fn new(
        live: &LiveProfile,
        state: &mut ViewState,
        full_filenames: bool,
        whole: bool,
    ) -> ViewModel {
        let profile = live.profile();
        let labels = FrameLabels::new(profile, full_filenames);
        // Only for a window that is open or may open.
        let details = whole || state.detail != DetailWindow::Closed;
        let devices = live.devices();
        state.gpus = live.gpus();
        state.shown = state
            .gpu
            .or(state.shown)
            .or_else(|| peak::main_gpu(profile))
            .or(state.gpus.first().copied());
        let mut gpus = BTreeMap::new();
        for &gpu in &state.gpus {
            let is_shown = state.shown == Some(gpu);
            let mut tables = BTreeMap::new();
            for view in [ListView::Lines, ListView::Stacks] {
                for all in [false, true] {
                    let all_wanted = all == state.all_lines || view == ListView::Stacks;
                    if whole || is_shown && view == state.view && all_wanted {
                        let table = match view {
                            ListView::Lines => lines(live, gpu, labels, all, details),
                            _ => stacks(live, gpu, labels, details),
                        };
                        tables.insert((view as usize, all), table);
                    }
                }
            }
            let recent = live.recent(gpu).cloned().unwrap_or_default();
            gpus.insert(gpu, GpuFigures { recent, marks: live.marks(gpu), tables });
        }
        ViewModel { head: head(live, &devices), devices, gpus, ended: None }
    }

    /// Sets how recording ended.
    pub fn end(&mut self, how: String) {
        self.ended = Some(how);
    }

    pub(super) fn gpu(&self, gpu: Option<CudaIndex>) -> Option<&GpuFigures> {
        self.gpus.get(&gpu?)
    }

    pub(super) fn table(
        &self,
        state: &ViewState,
        owners: &OwnersView,
    ) -> Result<Cow<'_, ViewTable>, String> {
        if state.view == ListView::Owners {
            return match (&owners.last, &self.ended) {
                (Some(Ok(seen)), _) => {
                    owners_table(seen, owners.looking, state.shown).map(Cow::Owned)
                }
                _ if owners.looking => Err("reading the owners ...".to_owned()),
                (Some(Err(why)), _) => {
                    Err(render::one_line(&format!("cannot read the owners: {why}")))
                }
                (None, Some(_)) => Err("the owners were not read".to_owned()),
                (None, None) => Err("press h to read the owners".to_owned()),
            };
        }
        let Some(gpu) = self.gpu(state.shown) else {
            let Some(first) = state.gpus.first() else {
                return Err("nothing is known of PyTorch's memory on a GPU yet".to_owned());
            };
            let asked = state.shown.map_or(0, |gpu| gpu.0);
            return Err(format!(
                "nothing is known of PyTorch's memory on GPU {asked}; g goes to GPU {}",
                first.0
            ));
        };
        let all = state.all_lines && state.view == ListView::Lines;
        match gpu.tables.get(&(state.view as usize, all)) {
            Some(Ok(table)) => Ok(Cow::Borrowed(table)),
            Some(Err(why)) => Err(why.clone()),
            None => Err("not in this picture yet".to_owned()),
        }
    }
}

fn head(live: &LiveProfile, devices: &[DeviceSnapshot]) -> ViewHeader {
    let profile = live.profile();
    let (start, runtime) = (profile.start(), profile.runtime());
    let mut notes = Vec::new();
    let has_events = live.counts().events.is_some_and(|events| events > 0);
    match runtime.map(|r| &r.allocator) {
        // Exact events need no PyTorch.
        Some(AllocatorBackend::NotLoaded) if has_events => {}
        Some(AllocatorBackend::NotLoaded) => {
            notes.push("PyTorch's CUDA part is not loaded in it; waiting for it".to_owned());
        }
        Some(AllocatorBackend::NotInitialized) => {
            notes.push("PyTorch has not used CUDA in it yet; waiting for it".to_owned());
        }
        Some(AllocatorBackend::Native) | None => {}
        Some(other) => {
            let what = render::allocator_text(other);
            notes.push(format!("{what}: it keeps no counters and blocks that could be read"));
        }
    }
    for gpu in devices.iter().filter_map(|device| device.cuda_index) {
        let full = live.time_to_full(gpu);
        notes.extend(full.map(|full| format!("GPU {} is {}", gpu.0, render::full_in(&full))));
    }
    let unknown = devices.iter().find_map(|device| match &device.outside {
        OutsideTorch::Unknown(why) => Some(why),
        OutsideTorch::Bytes(_) => None,
    });
    // NVML is read twice a second.
    let unknown = unknown.filter(|_| live.elapsed() > Nanos(2_000_000_000));
    notes.extend(unknown.map(|why| format!("outside PyTorch is unknown: {why}")));
    notes.extend(live.warnings().iter().map(ToString::to_string));
    if live.renewed() > 0 {
        let times = if live.renewed() == 1 { "time" } else { "times" };
        notes.push(format!(
            "started over {} {times}, as the job has more distinct stacks than memspy keeps: earlier allocation sites are forgotten",
            live.renewed()
        ));
    }
    ViewHeader {
        pid: start.map(|s| s.pid),
        command: render::one_line(&start.map_or(String::new(), |s| s.command.join(" "))),
        runtime: runtime.map_or(String::new(), versions),
        rate: start.map_or(0, |s| s.rate),
        elapsed: live.elapsed(),
        counts: live.counts(),
        notes: notes.iter().map(|note| render::one_line(note)).collect(),
    }
}

fn versions(runtime: &TargetRuntime) -> String {
    let version = |name: &str, version: &Option<String>| match version {
        Some(version) => format!("{name} {}", render::one_line(version)),
        None => format!("no {name}"),
    };
    format!("{}, {}", version("Python", &runtime.python), version("PyTorch", &runtime.torch))
}

fn ago(time: Duration) -> String {
    match time.as_secs() {
        0..=9 => format!("{:.1} s ago", time.as_secs_f64()),
        10..=119 => format!("{} s ago", time.as_secs()),
        _ => format!("{} min ago", time.as_secs() / 60),
    }
}

fn moment<R>(live: &LiveProfile, rows: &LiveRows<R>) -> String {
    let bytes = render::bytes(rows.allocated);
    match rows.memory {
        Some(MemoryGroup::Torch) => format!("{bytes} live by exact events"),
        Some(other) => format!("{bytes} live, {}", render::memory_name(other)),
        None => {
            let age = Duration::from_nanos(live.elapsed().0.saturating_sub(rows.time.0));
            let torn = if rows.consistent { "" } else { " (torn)" };
            let when = if rows.is_now { "now".to_owned() } else { ago(age) };
            format!("{bytes} in blocks {when}{torn}")
        }
    }
}

fn lines(
    live: &LiveProfile,
    gpu: CudaIndex,
    labels: FrameLabels<'_>,
    all: bool,
    details: bool,
) -> Result<ViewTable, String> {
    let found = if all { live.lines(gpu, None) } else { live.program_lines(gpu) };
    let found = found.map_err(|e| e.to_string())?;
    let row = |line: &LiveLine| {
        let cells = vec![
            TableCell::Bytes(line.own),
            TableCell::Bytes(line.total),
            TableCell::Bytes(line.at_peak),
            line.peak.map_or(TableCell::Unknown, TableCell::Bounded),
        ];
        let detail = if details { line_detail(line, &cells, labels, all) } else { Vec::new() };
        let key = FxBuildHasher.hash_one(line.place);
        TableRow { cells, name: name(line.place, labels), detail, key, ..TableRow::default() }
    };
    let whose = if all { "all lines" } else { "the program's own lines" };
    let taken = moment(live, &found);
    Ok(ViewTable {
        title: format!("By line ({whose}): {taken}"),
        certainty: render::certainty_in_short(found.resolution),
        columns: vec![OWN, TOTAL, AT_PEAK, LINE_PEAK],
        names: "LINE",
        min_name_width: MIN_NAME_WIDTH,
        rows: found.rows.iter().map(row).collect(),
    })
}

fn line_detail(
    line: &LiveLine,
    cells: &[TableCell],
    labels: FrameLabels<'_>,
    all: bool,
) -> Vec<String> {
    let full = FrameLabels { full_filenames: true, ..labels };
    let what = [
        if all {
            "own: live now, allocated by this line itself"
        } else {
            "own: live now, by this line or by library code it called"
        },
        "total: live now, allocated while the line was on the stack",
        "at peak: the total when the recorded peak was reached",
        "line peak: allocated in total while the line was on a stack",
    ];
    let mut detail = vec![full.label(line.place, true), String::new()];
    detail
        .extend(cells.iter().zip(what).map(|(cell, what)| format!("{:>11}  {what}", cell.text())));
    if let Some(peak) = line.peak.filter(|peak| !peak.exact) {
        let least = render::signed_bytes(peak.value);
        let most = peak
            .upper
            .map_or(String::new(), |upper| format!(", at most {}", render::signed_bytes(upper)));
        detail.push(format!("{:>11}  (at least {least}{most})", ""));
    }
    detail
}

fn stacks(
    live: &LiveProfile,
    gpu: CudaIndex,
    labels: FrameLabels<'_>,
    details: bool,
) -> Result<ViewTable, String> {
    let found = live.stacks(gpu).map_err(|e| e.to_string())?;
    let allocated = found.allocated;
    let full = FrameLabels { full_filenames: true, ..labels };
    let row = |stack: &LiveStack| {
        let share = stack.bytes as f64 * 100.0 / allocated.max(1) as f64;
        let mut from_inside = stack.path.iter().rev().map(|label| name(*label, labels));
        let mut first = from_inside.next().unwrap_or_default();
        let callers = from_inside.take(MAX_CALLERS);
        first.callers = callers.map(|caller| (caller.text, caller.place)).collect();
        let mut detail = Vec::new();
        if details {
            let sizes = [stack.bytes, stack.at_peak].map(render::bytes);
            let title = format!("{} now, {} at the peak; innermost first:", sizes[0], sizes[1]);
            detail.extend([title, String::new()]);
            detail.extend(stack.path.iter().rev().map(|label| full.label(*label, true)));
        }
        let cells = vec![
            TableCell::Bytes(stack.bytes),
            TableCell::Share(share),
            TableCell::Bytes(stack.at_peak),
        ];
        let key = FxBuildHasher.hash_one(&stack.path);
        TableRow { cells, name: first, detail, key, ..TableRow::default() }
    };
    let taken = moment(live, &found);
    Ok(ViewTable {
        title: format!("By stack: {taken}"),
        certainty: render::certainty_in_short(found.resolution),
        columns: vec![NOW, SHARE, AT_PEAK],
        names: "STACK",
        min_name_width: MIN_NAME_WIDTH,
        rows: found.rows.iter().map(row).collect(),
    })
}

/// In parts that can be shortened one by one.
pub(super) fn name(label: StackLabel, labels: FrameLabels<'_>) -> RowName {
    let StackLabel::Frame(Frame { function, line }) = label else {
        return RowName { text: labels.label(label, true), ..RowName::default() };
    };
    let Some(known) = labels.stacks.get_function(function) else {
        return RowName { text: labels.label(label, true), ..RowName::default() };
    };
    let file = if labels.full_filenames {
        &known.file
    } else {
        render::short_file(&known.file, labels.directory)
    };
    RowName {
        text: render::one_line(&known.name),
        place: Some((render::one_line(file), line)),
        callers: Vec::new(),
    }
}

fn owners_table(
    seen: &LastOwners,
    looking: bool,
    gpu: Option<CudaIndex>,
) -> Result<ViewTable, String> {
    let LastOwners { snapshot, age, stops } = seen;
    let pause = match snapshot.pause {
        Some(pause) => {
            let tried =
                if stops.count > 1 { format!(" ({} stops)", stops.count) } else { String::new() };
            format!("the job was stopped for {:.1} ms{tried}", pause.seconds() * 1e3)
        }
        None => "the job ran on: what changed meanwhile may be torn".to_owned(),
    };
    let Some(device) = snapshot.devices.iter().find(|d| Some(d.device) == gpu) else {
        return Err(format!("the snapshot has no PyTorch memory on this GPU; {pause}"));
    };
    let allocated = device.allocated;
    let age = if looking { "reading again ..".to_owned() } else { ago(*age) };
    let mut rows = category_rows(device);
    rows.extend(rest_rows(device));
    Ok(ViewTable {
        title: format!("By owner: {} {age}; {pause}", render::bytes(allocated)),
        certainty: None,
        columns: vec![BYTES, SHARE, STORAGES],
        names: "OWNER",
        min_name_width: MIN_NAME_WIDTH,
        rows,
    })
}

fn share_of(device: &DeviceOwners, bytes: u64) -> TableCell {
    TableCell::Share(bytes as f64 * 100.0 / device.allocated.max(1) as f64)
}

/// Each category, and its owners below it.
fn category_rows(device: &DeviceOwners) -> Vec<TableRow> {
    let mut rows = Vec::new();
    let groups = recorded_owner_groups(device);
    for (group, category) in TensorCategory::ALL.into_iter().enumerate() {
        let held: Vec<_> = groups.iter().filter(|group| group.category == category).collect();
        if held.is_empty() {
            continue;
        }
        let sum: u64 = held.iter().map(|group| group.size.bytes).sum();
        let count: u64 = held.iter().map(|group| group.size.storages).sum();
        let mut push = |bytes: u64, count: u64, text: String, more: String, is_head: bool| {
            let plural = if count == 1 { "" } else { "s" };
            let mut detail = vec![
                text.trim_start().to_owned(),
                String::new(),
                format!("{}, {}", category.name(), render::bytes(bytes)),
                format!("{} storage{plural}", render::count(count)),
            ];
            detail.extend((!more.is_empty()).then_some(more));
            let cells =
                vec![TableCell::Bytes(bytes), share_of(device, bytes), TableCell::Count(count)];
            let name = RowName { text, ..RowName::default() };
            let key = FxBuildHasher.hash_one((category, &name.text));
            rows.push(TableRow { cells, name, detail, key, group, is_head, is_dim: false });
        };
        push(sum, count, category.name().to_owned(), String::new(), true);
        for owners in held {
            for pattern in &owners.patterns {
                let (text, size) = (render::pattern_name(owners, pattern), pattern.size);
                let largest = match size.range {
                    Some((least, most)) => {
                        format!("{} to {} each", render::bytes(least), render::bytes(most))
                    }
                    None => String::new(),
                };
                push(size.bytes, size.storages, format!("  {text}"), largest, false);
            }
        }
    }
    rows
}

/// What lies in no tensor.
fn rest_rows(device: &DeviceOwners) -> Vec<TableRow> {
    let mut rows = Vec::new();
    let rest = [
        ("[rounding]", device.rounding, "what the allocator adds to the bytes asked for"),
        (
            "[in no tensor]",
            device.without_tensor,
            "blocks in which no tensor lies: work spaces, tensors that only C++ holds",
        ),
    ];
    for (i, (text, bytes, what)) in rest.into_iter().enumerate() {
        if bytes > 0 {
            rows.push(TableRow {
                cells: vec![TableCell::Bytes(bytes), share_of(device, bytes), TableCell::Unknown],
                name: RowName { text: text.to_owned(), ..RowName::default() },
                detail: vec![text.to_owned(), String::new(), what.to_owned(), render::bytes(bytes)],
                key: i as u64,
                group: TensorCategory::ALL.len() + i,
                is_head: true,
                is_dim: false,
            });
        }
    }
    rows
}
