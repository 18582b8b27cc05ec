//! The table of lines as JSON: `memspy lines --json`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::text::{selected, source_lines};
use crate::analysis::{
    BoundedValue, ExactProfile, HighWater, LineCell, LineRanking, LineRow, LineTable, MemoryGroup,
    Profile, RankedLine, flame, lines,
};
use crate::model::{CudaIndex, EventTotals, FreeTracking, Nanos, ReaderKind};
use crate::render::shared::{
    AttributionJson, FrameLabels, JsonDocument, JsonFormat, OutputError, line_notes, warnings, way,
};

/// `memspy lines --json`: the memory of each line on one GPU. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinesJson {
    /// The GPU, as the job numbers it.
    pub device: u32,
    /// The statistics that were asked for: keys of `torch.cuda.memory_stats`.
    pub columns: Vec<String>,
    /// Whether the bytes allocated, freed and live of lines are estimates from samples; they are
    /// exact in an exact recording.
    pub estimated: bool,
    /// Why no line of an exact recording is marked exact; `null` where there is no doubt.
    pub doubt: Option<String>,
    /// The peak of allocated bytes by the allocator's counter: exact.
    pub peak_allocated: HighWaterJson,
    /// The peak of reserved bytes by the allocator's counter: exact; `null` where it was not
    /// recorded.
    pub peak_reserved: Option<HighWaterJson>,
    /// How often the threads' stacks were sampled.
    pub samples: u64,
    /// How good an exact recording is; `null` for a sampled one.
    pub exact: Option<ExactRecordingJson>,
    /// How long the recording is, in seconds.
    pub seconds: f64,
    /// Where a recording with `--keep` begins, in seconds since the recorder started; `null` where
    /// nothing was dropped.
    pub kept_from_seconds: Option<f64>,
    /// What makes the figures less certain.
    pub warnings: Vec<String>,
    /// The lines of the program, the one with most live bytes first; library code counts for the
    /// line that called it.
    pub ranked: Vec<RankedLineJson>,
    /// The moment of the live bytes: the peak where it is known what was live then, else the
    /// snapshot nearest below it; `null` without a snapshot.
    pub live_moment: Option<LiveMomentJson>,
    /// All functions with their lines, libraries too: a byte counts for each line on its stack.
    pub functions: Vec<FunctionLinesJson>,
}

impl JsonFormat for LinesJson {
    const FORMAT: &'static str = "memspy-lines";
    const VERSION: u32 = 1;
}

/// The peak of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HighWaterJson {
    /// The most bytes that the allocator had at once while it was recorded.
    pub bytes: i64,
    /// It was reached at this time or later, in seconds since the recording began.
    pub reached_after_seconds: f64,
    /// It was reached at this time or earlier, in seconds since the recording began.
    pub reached_before_seconds: f64,
    /// The allocator's own peak, in bytes, where it is higher because it is from before the
    /// recording; otherwise `null`.
    pub older_mark: Option<i64>,
    /// How often the job reset the counter, as far as that could be seen.
    pub resets: u32,
}

/// A value with its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BoundedJson {
    /// The value; where it is not exact, the true one is at least this.
    pub value: i64,
    /// Whether it is the true one.
    pub exact: bool,
    /// The true one is at most this; `null` where nothing limits it.
    pub upper: Option<i64>,
}

/// A line of the program; each byte counts for one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankedLineJson {
    /// The path of its file.
    pub file: String,
    /// The same, relative to the job's directory or to the library's package.
    pub short_file: String,
    /// Its function.
    pub function: String,
    /// Its number; 0 when unknown.
    pub line: u32,
    /// Its text; `null` where the recording does not have it.
    pub source: Option<String>,
    /// Whether it is of a library: no line of the program is on the stacks that count for it.
    pub library: bool,
    /// Bytes that it allocated and that were live at `live_moment`; an estimate where `estimated`.
    /// `null` without a snapshot.
    pub live_at_peak: Option<u64>,
    /// Its part of all that was allocated then, from 0 to 1; `null` without a snapshot, or if
    /// nothing was allocated.
    pub share: Option<f64>,
    /// Bytes that it allocated while recording; an estimate where `estimated`.
    pub allocated: i64,
    /// The most that was allocated in all while the line was on a stack, in bytes; `null` where
    /// that is not known.
    pub peak: Option<BoundedJson>,
    /// Samples in which it was the innermost line of the program; in an exact recording its
    /// allocations.
    pub samples: u64,
}

/// The moment of the live bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LiveMomentJson {
    /// When, in seconds since the recording began.
    pub seconds: f64,
    /// All bytes allocated then: exact.
    pub allocated: u64,
    /// The part of these with a known line.
    pub on_known_lines: u64,
    /// The others, in bytes, by the reason why no line is known.
    pub without_line: BTreeMap<String, u64>,
    /// How the lines of the bytes allocated while recording are known; `null` where that is
    /// unknown.
    pub attribution: Option<AttributionJson>,
}

/// A function with its lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FunctionLinesJson {
    /// Its name.
    pub function: String,
    /// The path of its file.
    pub file: String,
    /// The same, relative to the job's directory or to the library's package.
    pub short_file: String,
    /// The line that it begins at.
    pub first_line: u32,
    /// Whether it is of a library.
    pub library: bool,
    /// The greatest value of the first column.
    pub peak: i64,
    /// The lines that were seen, in order.
    pub lines: Vec<LineJson>,
}

/// A line of a function; a byte counts for each line on its stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineJson {
    /// Its number; 0 when unknown.
    pub line: u32,
    /// Its text; `null` where the recording does not have it.
    pub source: Option<String>,
    /// The statistics of `columns` by their keys.
    pub columns: BTreeMap<String, LineCellJson>,
    /// Bytes allocated while it was on a stack; an estimate where `estimated`.
    pub allocated: i64,
    /// Bytes freed while it was on a stack; an estimate where `estimated`. `null` in an exact
    /// recording without the stacks of frees.
    pub freed: Option<i64>,
    /// Bytes live at `live_moment` that were allocated while it was on the stack; an estimate where
    /// `estimated`.
    pub live_at_peak: u64,
    /// Of these, bytes that it allocated itself: it was the innermost line.
    pub live_at_peak_own: u64,
    /// Samples that had it on the stack; in an exact recording allocations.
    pub samples: u64,
}

/// A statistic of a line. Of `peak`, the greatest value while the line was on a stack; of
/// `current`, the greatest at an end of the line; of `allocated` and `freed`, the sum while it was
/// on a stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineCellJson {
    /// The value; where it is not exact, the true one is at least this. `null` where it is not
    /// known.
    pub value: Option<i64>,
    /// Whether it is the true one.
    pub exact: bool,
    /// The true one is at most this; `null` where nothing limits it.
    pub upper: Option<i64>,
    /// Why the value is not known; absent where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_because: Option<String>,
    /// Of `allocated` and `freed` in an exact recording: the greatest of one execution of the line;
    /// absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_run: Option<BoundedJson>,
}

/// How good an exact recording is. Counts are of the whole recording and of all GPUs, unless it
/// says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExactRecordingJson {
    /// How events were recorded: `uprobe_multi`, `perf uprobes` or `perf samples, stacks from
    /// sampling`.
    pub probes: String,
    /// Allocations and frees recorded.
    pub events: u64,
    /// Events lost: the kernel counted them, their content is gone.
    pub lost: u64,
    /// Allocations whose stack is deeper than was read; `null` in a recording without an end.
    pub truncated: Option<u64>,
    /// Allocations of threads without Python that count for the main thread's stack; `null` in a
    /// recording without an end.
    pub borrowed: Option<u64>,
    /// Allocations whose stack could not be read to its end; `null` in a recording without an end.
    pub faulted: Option<u64>,
    /// Allocations with a function on the stack that has no name; `null` in a recording without an
    /// end.
    pub unknown: Option<u64>,
    /// Allocations of threads that run no Python; `null` in a recording without an end.
    pub no_python: Option<u64>,
    /// How often the events were compared with the allocator's counters on this GPU; `null` if
    /// never.
    pub comparisons: Option<u64>,
    /// Of these, comparisons in which they were equal.
    pub comparisons_equal: Option<u64>,
    /// How often the bytes on this GPU were compared with the allocator's counters.
    pub bytes_compared: u64,
    /// The difference at the last of these comparisons; `null` if there was none.
    pub bytes_off: Option<ByteBalanceJson>,
    /// Whether the recording began before PyTorch's allocator did anything.
    pub starts_empty: bool,
    /// How frees are known: by `events`, by events with `stacks`, or by `snapshots`.
    pub frees: String,
    /// Allocations of fewer bytes have no stack; 0: all have one.
    pub stacks_from: u64,
    /// One stack was read for this many bytes, on average; 0: one for each allocation.
    pub stacks_every: u64,
    /// Whether allocations of the backward pass know their line of the forward pass.
    pub backward_lines: bool,
    /// What was not recorded, a sentence each.
    pub uncovered: Vec<String>,
    /// Memory outside PyTorch's allocator, in bytes: `driver`, `physical`, `managed`, `pinned`; a
    /// kind is absent where it was not recorded.
    pub other_memory: BTreeMap<String, OtherMemoryJson>,
    /// Allocations that the driver refused.
    pub refused: RefusalsJson,
    /// CUDA contexts created.
    pub contexts: u64,
    /// CUDA modules loaded.
    pub modules: u64,
    /// Shared libraries loaded.
    pub libraries: u64,
}

/// By how much the allocator's counters are above the events; below where negative.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ByteBalanceJson {
    /// Bytes allocated.
    pub allocated: i64,
    /// Bytes freed.
    pub freed: i64,
}

/// Memory outside PyTorch's allocator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherMemoryJson {
    /// The most at once, in bytes.
    pub peak: u64,
    /// At the end of the recording, in bytes.
    pub end: u64,
}

/// Allocations that were refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RefusalsJson {
    /// How many.
    pub count: u64,
    /// The largest, in bytes.
    pub largest: u64,
}

impl From<BoundedValue> for BoundedJson {
    fn from(BoundedValue { value, exact, upper }: BoundedValue) -> BoundedJson {
        BoundedJson { value, exact, upper }
    }
}

impl From<HighWater> for HighWaterJson {
    fn from(high: HighWater) -> HighWaterJson {
        let (from, to) = high.seen;
        HighWaterJson {
            bytes: high.within,
            reached_after_seconds: from.seconds(),
            reached_before_seconds: to.seconds(),
            older_mark: high.older(),
            resets: high.resets,
        }
    }
}

/// Writes one JSON object; bytes, unknown is `null`.
pub fn lines_json(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), OutputError> {
    let labels = FrameLabels::new(profile, false);
    let ranking = lines::ranking(profile, table, false)?;
    let ranked = ranked_json(profile, &ranking, functions);
    let functions = selected(profile, table, functions).into_iter().map(|(function, lines)| {
        let rows = source_lines(profile, lines)
            .into_iter()
            .filter_map(|(line, source, row)| Some(line_json(line, source, row?)));
        FunctionLinesJson {
            function: function.name.to_string(),
            file: function.file.to_string(),
            short_file: labels.file(function).to_owned(),
            first_line: function.first_line,
            library: ranking.is_library(function),
            peak: lines.peak,
            lines: rows.collect(),
        }
    });
    JsonDocument::new(LinesJson {
        device: table.device.0,
        columns: table.columns.iter().map(ToString::to_string).collect(),
        estimated: table.estimated,
        doubt: table.doubt.map(|doubt| doubt.to_string()),
        peak_allocated: table.allocated.into(),
        peak_reserved: table.reserved.map(Into::into),
        samples: profile.samples(),
        exact: profile.exact().map(|exact| exact_json(profile, exact, table.device)),
        seconds: profile.duration().seconds(),
        kept_from_seconds: profile.begins().map(Nanos::seconds),
        warnings: warnings(profile),
        ranked,
        live_moment: ranking.moment.map(|(time, total)| LiveMomentJson {
            seconds: time.seconds(),
            allocated: total,
            on_known_lines: ranking.on_lines(),
            without_line: without_line(&ranking),
            attribution: flame::peak_resolution(profile, table.device).map(Into::into),
        }),
        functions: functions.collect(),
    })
    .write(out, true)
}

/// Library code counts for the line that called it.
fn ranked_json(profile: &Profile, ranking: &LineRanking, names: &[String]) -> Vec<RankedLineJson> {
    let labels = FrameLabels::new(profile, false);
    let total = ranking.moment.map(|(_, total)| total);
    let row = |row: &RankedLine| {
        let function = profile.stacks().get_function(row.frame.function)?;
        let wanted = |n: &String| function.name.contains(n) || function.file.contains(n);
        if !names.is_empty() && !names.iter().any(wanted) {
            return None;
        }
        Some(RankedLineJson {
            file: function.file.to_string(),
            short_file: labels.file(function).to_owned(),
            function: function.name.to_string(),
            line: row.frame.line,
            source: profile.source_line(row.frame).map(str::to_owned),
            library: row.library,
            live_at_peak: total.map(|_| row.live),
            share: total.filter(|total| *total > 0).map(|total| row.live as f64 / total as f64),
            allocated: row.allocated,
            peak: row.peak.map(Into::into),
            samples: row.samples,
        })
    };
    ranking.rows.iter().filter_map(row).collect()
}

fn without_line(ranking: &LineRanking) -> BTreeMap<String, u64> {
    ranking.without_line.iter().map(|(pseudo, bytes)| (pseudo.text().to_owned(), *bytes)).collect()
}

fn line_json(line: u32, source: Option<&str>, row: &LineRow) -> LineJson {
    LineJson {
        line,
        source: source.map(str::to_owned),
        columns: row.cells.iter().map(|cell| (cell.key.to_string(), cell_json(cell))).collect(),
        allocated: row.allocated,
        freed: row.freed,
        live_at_peak: row.live,
        live_at_peak_own: row.live_self,
        samples: row.samples,
    }
}

fn cell_json(cell: &LineCell) -> LineCellJson {
    let one_run = cell.one_run.map(BoundedJson::from);
    match cell.unknown {
        None => {
            let BoundedValue { value, exact, upper } = cell.value;
            LineCellJson { value: Some(value), exact, upper, unknown_because: None, one_run }
        }
        Some(reason) => LineCellJson {
            value: None,
            exact: false,
            upper: None,
            unknown_because: Some(line_notes::why(reason).to_owned()),
            one_run,
        },
    }
}

fn exact_json(profile: &Profile, exact: &ExactProfile, device: CudaIndex) -> ExactRecordingJson {
    let options = exact.exact();
    let totals = profile.end().and_then(|end| end.totals.exact);
    let of_totals = |value: fn(&EventTotals) -> u64| totals.as_ref().map(value);
    let agreement = exact.agreement(device);
    let balance = exact.balance(device);
    let of_kinds = [
        ("driver", MemoryGroup::Driver),
        ("physical", MemoryGroup::Physical),
        ("managed", MemoryGroup::Managed),
        ("pinned", MemoryGroup::Pinned),
    ];
    let other_memory = of_kinds
        .into_iter()
        .filter_map(|(name, kind)| Some((name.to_owned(), exact.other(kind)?)))
        .map(|(name, (peak, end))| (name, OtherMemoryJson { peak, end }))
        .collect();
    let frees = match options.frees {
        FreeTracking::Events => "events",
        FreeTracking::Stacks => "stacks",
        FreeTracking::Snapshots => "snapshots",
    };
    let [contexts, modules, libraries] = exact.marks();
    ExactRecordingJson {
        probes: way(options.backend).to_owned(),
        events: exact.events(),
        lost: profile.losses().late(ReaderKind::Events),
        truncated: of_totals(|t| t.truncated),
        borrowed: of_totals(|t| t.borrowed),
        faulted: of_totals(|t| t.faulted),
        unknown: of_totals(|t| t.unknown),
        no_python: of_totals(|t| t.no_python),
        comparisons: agreement.map(|a| a.checks),
        comparisons_equal: agreement.map(|a| a.equal),
        bytes_compared: balance.map_or(0, |balance| balance.checks),
        bytes_off: balance
            .map(|balance| ByteBalanceJson { allocated: balance.allocated, freed: balance.freed }),
        starts_empty: options.starts_empty,
        frees: frees.to_owned(),
        stacks_from: options.stacks_from,
        stacks_every: options.stacks_every,
        backward_lines: options.backward_lines,
        uncovered: options.uncovered.iter().map(ToString::to_string).collect(),
        other_memory,
        refused: RefusalsJson { count: exact.refused().count, largest: exact.refused().largest },
        contexts,
        modules,
        libraries,
    }
}
