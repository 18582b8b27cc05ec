//! Stacks with their bytes as rows: CSV and JSON.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::{ExportedDevice, ExportedFrame};
use crate::render::shared::{
    AttributionJson, CsvSheet, JsonDocument, JsonFormat, OutputError, warnings,
};

/// `memspy export --format json`: what was live at a moment, by stack. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportJson {
    /// A moment for each device of each trace.
    pub moments: Vec<ExportMomentJson>,
}

impl JsonFormat for ExportJson {
    const FORMAT: &'static str = "memspy-export";
    const VERSION: u32 = 1;
}

/// The memory of one device of one process at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportMomentJson {
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// The process.
    pub pid: u32,
    /// The GPU, as the job numbers it.
    pub device: u32,
    /// Which moment: `peak` or `end`.
    pub moment: String,
    /// When it was, in seconds since the recording began.
    pub seconds: f64,
    /// Whether the recording is exact, and not sampled.
    pub exact: bool,
    /// Whether the bytes of stacks are estimated from a sample of the allocations.
    pub estimated: bool,
    /// How the stacks of the bytes allocated while recording are known.
    pub attribution: AttributionJson,
    /// Live bytes, summed over all stacks.
    pub live_bytes: u64,
    /// The true peak of allocated bytes; `null` where no counters were recorded.
    pub peak_bytes: Option<u64>,
    /// The stacks, the one with most live bytes first.
    pub stacks: Vec<ExportStackJson>,
    /// What makes the figures less certain.
    pub warnings: Vec<String>,
}

/// One stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportStackJson {
    /// Bytes that it allocated and that were live at the moment.
    pub live_bytes: u64,
    /// All that it allocated while recording; `null` where the allocator was only sampled (`-r`).
    pub allocated_bytes: Option<u64>,
    /// How often it allocated; `null` where that is not known.
    pub allocations: Option<u64>,
    /// Its frames, from the outermost to the innermost.
    pub frames: Vec<ExportFrameJson>,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportFrameJson {
    /// The function, or a text in brackets that says why there is none.
    pub name: String,
    /// The path of its file.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
}

/// Live bytes; bytes allocated and allocations, if known.
type StackValues = (u64, u64, Option<u64>);

fn rows(device: &ExportedDevice<'_>) -> Vec<(Vec<ExportedFrame>, StackValues)> {
    let mut rows: BTreeMap<Vec<ExportedFrame>, StackValues> = BTreeMap::new();
    for stack in &device.folded.stacks {
        rows.entry(device.frames(&stack.path)).or_default().0 += stack.bytes;
    }
    for stack in device.allocated.iter().flatten() {
        let row = rows.entry(device.frames(&stack.path)).or_default();
        row.1 += stack.bytes;
        row.2 = stack.count.map(|count| row.2.unwrap_or(0) + count);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    // Largest first.
    rows.sort_by(|(a, of_a), (b, of_b)| (of_b.0, of_b.1, a).cmp(&(of_a.0, of_a.1, b)));
    rows
}

/// Writes a row per stack; the innermost Python line has its own columns.
pub fn export_csv(out: &mut dyn Write, devices: &[ExportedDevice<'_>]) -> Result<(), OutputError> {
    let mut csv = CsvSheet::new(out);
    csv.write_record([
        "rank",
        "pid",
        "device",
        "moment",
        "seconds",
        "live_bytes",
        "allocated_bytes",
        "allocations",
        "function",
        "file",
        "line",
        "stack",
    ])?;
    for device in devices {
        let of_device = [
            device.rank().map_or_else(String::new, |rank| rank.to_string()),
            device.pid().to_string(),
            device.device().0.to_string(),
            device.moment().to_owned(),
            device.folded.snapshot.time.seconds().to_string(),
        ];
        for (frames, (live, allocated, count)) in rows(device) {
            let innermost = frames.iter().rev().find(|frame| !frame.file.is_empty());
            let known = |value: Option<u64>| value.map_or_else(String::new, |v| v.to_string());
            let step = |frame: &ExportedFrame| match frame.file.as_str() {
                "" => frame.name.replace(';', ":"),
                file => format!("{} ({file}:{})", frame.name, frame.line).replace(';', ":"),
            };
            let mut row = of_device.to_vec();
            row.extend([
                live.to_string(),
                known(device.allocated.as_ref().map(|_| allocated)),
                known(count),
                innermost.map_or_else(String::new, |frame| frame.name.clone()),
                innermost.map_or_else(String::new, |frame| frame.file.clone()),
                innermost.map_or_else(String::new, |frame| frame.line.to_string()),
                frames.iter().map(step).collect::<Vec<_>>().join(";"),
            ]);
            csv.write_record(&row)?;
        }
    }
    Ok(csv.flush()?)
}

/// Writes one JSON document.
pub fn export_json(out: &mut dyn Write, devices: &[ExportedDevice<'_>]) -> Result<(), OutputError> {
    let moments = devices.iter().map(moment).collect();
    JsonDocument::new(ExportJson { moments }).write(out, true)
}

fn moment(device: &ExportedDevice<'_>) -> ExportMomentJson {
    let frame = |frame: ExportedFrame| ExportFrameJson {
        name: frame.name,
        line: (frame.line > 0).then_some(frame.line),
        file: Some(frame.file).filter(|file| !file.is_empty()),
    };
    let stack = |(frames, (live, allocated, count)): (Vec<ExportedFrame>, _)| ExportStackJson {
        live_bytes: live,
        allocated_bytes: device.allocated.as_ref().map(|_| allocated),
        allocations: count,
        frames: frames.into_iter().map(frame).collect(),
    };
    ExportMomentJson {
        rank: device.rank(),
        pid: device.pid(),
        device: device.device().0,
        moment: device.moment().to_owned(),
        seconds: device.folded.snapshot.time.seconds(),
        exact: device.profile.exact().is_some(),
        estimated: device.folded.estimated_from.is_some() || device.folded.stacks_guessed,
        attribution: device.folded.resolution.into(),
        live_bytes: device.folded.total,
        peak_bytes: device.folded.true_peak,
        stacks: rows(device).into_iter().map(stack).collect(),
        warnings: warnings(device.profile),
    }
}
