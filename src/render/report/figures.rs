//! A page's figures, as columns, which compress well.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::names::{PageFile, PageFrame, PageNames, sentence};
use super::page_modules::{PageModules, page_modules};
use super::summary::{SummarySharpness, certainty, counted_peak, facts, sharpness};
use super::{ReportOptions, ReportedRecording};
use crate::analysis::report::{
    BlockSpan, ChurnedBytes, LevelColumn, LevelHistory, MemoryTrack, SegmentMap,
};
use crate::model::{
    BlockState, CudaIndex, DeviceOwners, FreedBytes, MemoryKind, Nanos, TensorCategory,
    TensorDevice,
};
use crate::render::shared::{phase_at_peak, visible, warnings};

const MAX_ITERATIONS: usize = 3000;
const MAX_OWNERS: usize = 40;

/// Times are microseconds since a recording began.
#[derive(Debug, Serialize)]
pub(super) struct PageFigures {
    format: &'static str,
    version: u32,
    made_by: &'static str,
    pub(super) title: String,
    redacted: bool,
    frames: Vec<PageFrame>,
    files: Vec<PageFile>,
    recordings: Vec<PageRecording>,
}

#[derive(Debug, Serialize)]
struct PageRecording {
    label: String,
    sharpness: SummarySharpness,
    /// Milliseconds since 1970 at time 0.
    began: u64,
    from: u64,
    to: u64,
    facts: Vec<(&'static str, String)>,
    warnings: Vec<String>,
    /// Begin, end, number.
    iterations: Vec<(u64, u64, u64)>,
    iterations_left_out: u64,
    /// Time, description, bytes refused by the driver.
    ooms: Vec<(u64, String, Option<u64>)>,
    tracks: Vec<PageTrack>,
}

#[derive(Debug, Serialize)]
struct PageTrack {
    name: String,
    kind: &'static str,
    capacity: Option<u64>,
    certainty: Option<String>,
    phase: Option<String>,
    counted_peak: Option<(u64, (u64, u64))>,
    levels: PageLevels,
    /// Time, bytes used on the device, bytes of the job.
    usage: Vec<(u64, u64, Option<u64>)>,
    reserved_changes: Vec<(u64, i64)>,
    moments: PageMoments,
    /// Each node's parent, which precedes it, and its frame.
    parents: Vec<i64>,
    nodes: Vec<u32>,
    /// The node of each stack.
    stacks: Vec<u32>,
    /// Stacks with estimated bytes, and stacks for bytes in no block.
    estimates: Vec<u32>,
    remainders: Vec<u32>,
    spans: PageSpans,
    churned: Option<PageSpans>,
    snapshots: Vec<PageSnapshot>,
    modules: Option<PageModules>,
    maps: Vec<PageMap>,
}

#[derive(Debug, Serialize)]
struct PageLevels {
    from: u64,
    /// Microseconds of a column.
    width: f64,
    highest: Vec<Option<u64>>,
    lowest: Vec<Option<u64>>,
    reserved: Vec<Option<u64>>,
}

#[derive(Debug, Serialize)]
struct PageMoments {
    time: Vec<u64>,
    total: Vec<u64>,
    reserved: Vec<Option<u64>>,
    shared: Vec<u64>,
    peak: usize,
}

/// Columns. For churn, `from` is the time before which it was freed; there is no `to`.
#[derive(Debug, Default, Serialize)]
struct PageSpans {
    stack: Vec<u32>,
    from: Vec<u32>,
    to: Vec<u32>,
    bytes: Vec<u64>,
    count: Vec<u64>,
}

/// Category, owner, bytes, storages, opt bytes that come back if this reference goes: at once, and
/// further after `gc.collect()`.
type PageOwner = (&'static str, String, u64, u64, Option<(u64, u64)>);

#[derive(Debug, Serialize)]
struct PageSnapshot {
    time: u64,
    allocated: u64,
    /// They add up to the allocated bytes, except what was freed meanwhile.
    categories: Vec<(&'static str, u64)>,
    owners: Vec<PageOwner>,
    owners_left_out: usize,
}

#[derive(Debug, Serialize)]
struct PageMap {
    time: u64,
    segments_at: u64,
    unplaced: u64,
    consistent: bool,
    merged: bool,
    segments: Vec<PageSegment>,
}

/// Bytes, marks (1 small, 2 expandable, 4 private pool), stream; blocks: state, bytes, stack or -1.
type PageSegment = (u64, u32, u64, Vec<u64>, Vec<u64>, Vec<i64>);

fn micros(time: Nanos) -> u64 {
    time.0 / 1000
}

impl PageFigures {
    pub(super) fn new(
        recordings: &[ReportedRecording<'_>],
        options: &ReportOptions,
    ) -> PageFigures {
        let mut names = PageNames::new(options.redact);
        let told = |(number, recording): (usize, &ReportedRecording<'_>)| {
            page_recording(number, recording, options.redact, &mut names)
        };
        let told: Vec<PageRecording> = recordings.iter().enumerate().map(told).collect();
        let (frames, files) = names.finish();
        let title = options.title.as_deref().map(|title| visible(title).into_owned());
        PageFigures {
            format: "memspy-report",
            version: 1,
            made_by: concat!("memspy ", env!("CARGO_PKG_VERSION")),
            title: title.unwrap_or_else(|| default_title(recordings, options.redact)),
            redacted: options.redact,
            frames,
            files,
            recordings: told,
        }
    }
}

fn default_title(recordings: &[ReportedRecording<'_>], redact: bool) -> String {
    let start = recordings.first().and_then(|recording| recording.profile.start());
    let program = start.and_then(|start| {
        let mut words = start.command.iter().skip(1);
        let program = words.find(|word| !word.starts_with('-'));
        program.or(start.command.first()).map(|word| word.rsplit('/').next().unwrap_or(word))
    });
    match program.filter(|_| !redact) {
        Some(program) => format!("GPU memory of {}", visible(program)),
        None => "GPU memory".to_owned(),
    }
}

fn page_recording(
    number: usize,
    recording: &ReportedRecording<'_>,
    redact: bool,
    names: &mut PageNames,
) -> PageRecording {
    let profile = recording.profile;
    let (iterations, mut left_out) = profile.iterations();
    let every = iterations.len().div_ceil(MAX_ITERATIONS).max(1);
    let told = iterations.iter().step_by(every);
    let told: Vec<_> = told.map(|i| (micros(i.from), micros(i.to), i.step)).collect();
    left_out += (iterations.len() - told.len()) as u64;
    let ooms = recording
        .survey
        .ooms()
        .iter()
        .map(|oom| (micros(oom.time), sentence(&oom.text, redact), oom.refused));
    let label = match (redact, profile.start().and_then(|start| start.rank)) {
        (false, _) => visible(recording.label).into_owned(),
        (true, Some(rank)) => format!("rank {rank}"),
        (true, None) => format!("recording {}", number + 1),
    };
    let tracks = recording.tracks.iter().map(|track| page_track(number, recording, track, names));
    PageRecording {
        label,
        sharpness: sharpness(recording),
        began: profile.start().map_or(0, |start| start.unix_nanos / 1_000_000),
        from: micros(profile.begins().unwrap_or_default()),
        to: micros(profile.duration()),
        facts: facts(recording, redact),
        warnings: warnings(profile).iter().map(|warning| sentence(warning, redact)).collect(),
        iterations: told,
        iterations_left_out: left_out,
        ooms: ooms.collect(),
        tracks: tracks.collect(),
    }
}

fn kind_name(recording: &ReportedRecording<'_>, kind: MemoryKind) -> (String, &'static str) {
    match kind {
        MemoryKind::Torch(device) => {
            let devices = recording.profile.devices();
            let name = devices.iter().find(|d| d.cuda_index == Some(device));
            let name = name.and_then(|device| device.name.as_deref());
            let name = name.map_or(String::new(), |name| format!(" ({})", visible(name)));
            (format!("GPU {}{name}", device.0), "torch")
        }
        MemoryKind::Driver(_) => ("from the driver (cuMemAlloc)".to_owned(), "driver"),
        MemoryKind::Physical(_) => {
            ("physical, from the driver (cuMemCreate)".to_owned(), "physical")
        }
        MemoryKind::Managed => ("managed".to_owned(), "managed"),
        MemoryKind::Mapping => ("mapped".to_owned(), "mapped"),
        MemoryKind::PinnedHost => ("page-locked on the host".to_owned(), "pinned"),
    }
}

fn page_track(
    number: usize,
    recording: &ReportedRecording<'_>,
    track: &MemoryTrack,
    names: &mut PageNames,
) -> PageTrack {
    let (name, kind) = kind_name(recording, track.kind);
    let device = match track.kind {
        MemoryKind::Torch(device) => Some(device),
        _ => None,
    };
    let of_device = device.and_then(|device| {
        recording.profile.devices().iter().find(|known| known.cuda_index == Some(device))
    });
    let usage = of_device.and_then(|device| recording.survey.usage().get(&device.nvml_index?));
    let usage = usage.into_iter().flatten();
    let surveyed = recording.survey.levels().find(|(kind, _)| *kind == track.kind);
    let surveyed = surveyed.map(|(_, memory)| memory);
    let changes = surveyed.map_or(&[][..], |memory| &memory.reserved_changes[..]);
    let tree = StackTree::new(number, recording, track, names);
    let marked = |mark: fn(&crate::analysis::report::SitePath) -> bool| {
        let marked = (0u32..).zip(&track.stacks).filter(|(_, stack)| mark(stack));
        marked.map(|(number, _)| number).collect()
    };
    PageTrack {
        name,
        kind,
        capacity: of_device.and_then(|device| device.total),
        certainty: device.and_then(|device| certainty(recording, device)),
        phase: device.and_then(|device| phase_at_peak(recording.profile, device)),
        counted_peak: device.and_then(|device| counted_peak(recording, device)),
        levels: page_levels(surveyed.map(|memory| &memory.levels)),
        usage: usage.map(|usage| (micros(usage.time), usage.used, usage.process)).collect(),
        reserved_changes: changes.iter().map(|(time, by)| (micros(*time), *by)).collect(),
        moments: page_moments(track),
        parents: tree.parents,
        nodes: tree.nodes,
        stacks: tree.stacks,
        estimates: marked(|stack| stack.is_estimate),
        remainders: marked(|stack| stack.is_remainder),
        spans: spans(&track.spans),
        churned: track.churned.as_deref().map(churned_spans),
        snapshots: device.map_or(Vec::new(), |device| snapshots(recording, device)),
        modules: device.and_then(|device| page_modules(recording, device)),
        maps: track.maps.iter().map(page_map).collect(),
    }
}

fn page_levels(levels: Option<&LevelHistory>) -> PageLevels {
    let Some(levels) = levels else {
        return PageLevels {
            from: 0,
            width: 1.0,
            highest: Vec::new(),
            lowest: Vec::new(),
            reserved: Vec::new(),
        };
    };
    let columns = levels.columns();
    let (from, width) = levels.scale();
    let column = |value: fn(&LevelColumn) -> Option<u64>| {
        columns.iter().map(|column| column.as_ref().and_then(value)).collect()
    };
    PageLevels {
        from: micros(from),
        width: width.0 as f64 / 1e3,
        highest: column(|column| Some(column.highest)),
        lowest: column(|column| Some(column.lowest)),
        reserved: column(|column| column.reserved),
    }
}

fn page_moments(track: &MemoryTrack) -> PageMoments {
    let moments = &track.moments;
    PageMoments {
        time: moments.iter().map(|moment| micros(moment.time)).collect(),
        total: moments.iter().map(|moment| moment.total).collect(),
        reserved: moments.iter().map(|moment| moment.reserved).collect(),
        shared: moments.iter().map(|moment| moment.shared).collect(),
        peak: track.peak().unwrap_or(0),
    }
}

fn churned_spans(churned: &[ChurnedBytes]) -> PageSpans {
    let span = churned.iter().map(|bytes| BlockSpan {
        stack: bytes.stack,
        from: bytes.before,
        to: 0,
        bytes: bytes.bytes,
        count: bytes.count,
    });
    let mut columns = spans(&span.collect::<Vec<_>>());
    columns.to.clear();
    columns
}

fn spans(spans: &[BlockSpan]) -> PageSpans {
    let mut columns = PageSpans::default();
    for span in spans {
        columns.stack.push(span.stack);
        columns.from.push(span.from);
        columns.to.push(span.to);
        columns.bytes.push(span.bytes);
        columns.count.push(span.count);
    }
    columns
}

struct StackTree {
    parents: Vec<i64>,
    nodes: Vec<u32>,
    stacks: Vec<u32>,
}

impl StackTree {
    fn new(
        number: usize,
        recording: &ReportedRecording<'_>,
        track: &MemoryTrack,
        names: &mut PageNames,
    ) -> StackTree {
        let mut tree = StackTree { parents: Vec::new(), nodes: Vec::new(), stacks: Vec::new() };
        let mut known: FxHashMap<(i64, u32), u32> = FxHashMap::default();
        for stack in &track.stacks {
            let mut node = -1i64;
            let mut frames: Vec<u32> = Vec::new();
            if stack.path.is_empty() {
                frames.push(names.text(&format!("[small: {} stacks]", track.small)));
            }
            for label in &stack.path {
                frames.push(names.label(number, recording.profile, *label));
            }
            for frame in frames {
                node = i64::from(*known.entry((node, frame)).or_insert_with(|| {
                    tree.parents.push(node);
                    tree.nodes.push(frame);
                    tree.nodes.len() as u32 - 1
                }));
            }
            tree.stacks.push(node as u32);
        }
        tree
    }
}

fn snapshots(recording: &ReportedRecording<'_>, device: CudaIndex) -> Vec<PageSnapshot> {
    let mut snapshots = Vec::new();
    let cuda = TensorDevice { kind: 1, index: u8::try_from(device.0).ok() };
    for snapshot in recording.survey.snapshots() {
        let Some(held) = snapshot.devices.iter().find(|held| held.device == device) else {
            continue;
        };
        let mut owners: Vec<_> = held.held.iter().collect();
        owners.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
        let told = owners.iter().take(MAX_OWNERS).map(|held| {
            let retained = snapshot.retained.iter().find(|known| known.name == held.owner);
            let frees = retained.filter(|known| !known.is_least).map(|known| {
                let FreedBytes { at_once, after_collect, .. } = known.on(cuda);
                (at_once, after_collect)
            });
            let owner = visible(&held.owner).into_owned();
            (held.category.name(), owner, held.bytes, held.count, frees)
        });
        snapshots.push(PageSnapshot {
            time: micros(Nanos(snapshot.time.0.saturating_sub(snapshot.age.0))),
            allocated: held.allocated,
            categories: categories(held),
            owners: told.collect(),
            owners_left_out: owners.len().saturating_sub(MAX_OWNERS),
        });
    }
    snapshots
}

fn categories(held: &DeviceOwners) -> Vec<(&'static str, u64)> {
    let mut bytes: BTreeMap<TensorCategory, u64> = BTreeMap::new();
    for owner in &held.held {
        *bytes.entry(owner.category).or_default() += owner.bytes;
    }
    let mut all: Vec<(&'static str, u64)> =
        bytes.into_iter().map(|(category, bytes)| (category.name(), bytes)).collect();
    all.push(("in no tensor", held.without_tensor));
    all.push(("rounding", held.rounding));
    let known: u64 = all.iter().map(|(_, bytes)| bytes).sum();
    all.push(("unknown", held.allocated.saturating_sub(known)));
    all.retain(|(_, bytes)| *bytes > 0);
    all
}

fn page_map(map: &SegmentMap) -> PageMap {
    let state = |state: BlockState| match state {
        BlockState::Allocated => 0,
        BlockState::PendingFree => 1,
        BlockState::Inactive => 2,
    };
    let segments = map.segments.iter().map(|segment| {
        let marks = [(segment.small, 1), (segment.expandable, 2), (segment.private, 4)];
        let marks = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| mark).sum();
        (
            segment.size,
            marks,
            segment.stream,
            segment.blocks.iter().map(|block| state(block.state)).collect(),
            segment.blocks.iter().map(|block| block.size).collect(),
            segment.blocks.iter().map(|block| block.stack.map_or(-1, i64::from)).collect(),
        )
    });
    PageMap {
        time: micros(map.time),
        segments_at: micros(map.segments_at),
        unplaced: map.unplaced,
        consistent: map.consistent,
        merged: map.merged,
        segments: segments.collect(),
    }
}
