//! A job on one screen as JSON.

use super::super::RenderError;
use super::super::findings::{ToldFinding, rate};
use super::super::interchange::pretty_json;
use super::super::owner_groups::{GroupJson, group_label};
use super::super::owners::incomplete;
use super::{JobSummary, LineBytes, LinesSource, ObservedLines};
use crate::analysis::{GpuFacts, GrowthWatch};
use crate::model::CudaIndex;
use serde::Serialize;
use std::io::Write;

#[derive(Debug, Serialize)]
struct SummaryJson<'a> {
    pid: u32,
    command: Vec<String>,
    gpus: Vec<SummaryGpuJson>,
    groups: Vec<GroupJson<'a>>,
    growth: GrowthJson,
    lines: LinesJson<'a>,
    findings: &'a [ToldFinding],
    look_error: Option<&'a str>,
    incomplete: Option<String>,
    stops: u32,
    stopped_seconds: f64,
    longest_stop_seconds: f64,
}

#[derive(Debug, Serialize)]
struct SummaryGpuJson {
    gpu: u32,
    total: Option<u64>,
    allocated: Option<u64>,
    reserved: Option<u64>,
    outside_pytorch: Option<u64>,
    other_processes: Option<u64>,
    free: Option<u64>,
}

/// What grew, as JSON has it.
#[derive(Debug, Serialize)]
pub(in crate::render) struct GrowthJson {
    looks: usize,
    seconds: f64,
    owners: Vec<OwnerGrowthJson>,
    lines: Vec<LineGrowthJson>,
}

#[derive(Debug, Serialize)]
struct OwnerGrowthJson {
    owner: String,
    text: String,
    category: &'static str,
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    storages: i64,
    held: u64,
    example: Option<String>,
}

#[derive(Debug, Serialize)]
struct LineGrowthJson {
    line: String,
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
}

impl GrowthJson {
    pub(in crate::render) fn new(watch: &GrowthWatch) -> GrowthJson {
        let owners = watch.owners().into_iter().map(|growth| OwnerGrowthJson {
            owner: group_label(&growth.group),
            text: rate(&growth),
            category: growth.group.category.name(),
            bytes: growth.rise.bytes,
            seconds: growth.rise.seconds,
            bytes_per_second: growth.rise.rate(),
            storages: growth.storages,
            held: growth.group.size.bytes,
            example: growth.group.example.clone(),
        });
        let lines = watch.lines().into_iter().map(|growth| LineGrowthJson {
            bytes: growth.rise.bytes,
            seconds: growth.rise.seconds,
            bytes_per_second: growth.rise.rate(),
            line: growth.line,
        });
        GrowthJson {
            looks: watch.looks(),
            seconds: watch.seconds(),
            owners: owners.collect(),
            lines: lines.collect(),
        }
    }
}

/// What lines own, as JSON has it.
#[derive(Debug, Serialize)]
struct LinesJson<'a> {
    /// `exact`, `sampled` or `none`.
    source: &'static str,
    why_not_exact: Option<&'a str>,
    seconds: f64,
    gpus: Vec<GpuLinesJson<'a>>,
}

#[derive(Debug, Serialize)]
struct GpuLinesJson<'a> {
    gpu: u32,
    allocated: u64,
    lines: &'a [LineBytes],
}

impl<'a> LinesJson<'a> {
    fn new(lines: &'a ObservedLines) -> LinesJson<'a> {
        let (source, why_not_exact) = match &lines.source {
            LinesSource::None => ("none", None),
            LinesSource::Exact => ("exact", None),
            LinesSource::Sampled { why } => ("sampled", Some(why.as_str())),
        };
        let of = |(gpu, allocated, lines): &'a (CudaIndex, u64, Vec<LineBytes>)| GpuLinesJson {
            gpu: gpu.0,
            allocated: *allocated,
            lines,
        };
        let gpus = lines.gpus.iter().map(of).collect();
        LinesJson { source, why_not_exact, seconds: lines.seconds, gpus }
    }
}

/// Writes a summary as JSON; sizes in bytes, unknown is `null`.
pub fn job_summary_json(out: &mut dyn Write, summary: &JobSummary<'_>) -> Result<(), RenderError> {
    let groups = summary.look.map(crate::analysis::owner_groups).unwrap_or_default();
    let gpu = |gpu: &GpuFacts| SummaryGpuJson {
        gpu: gpu.gpu,
        total: gpu.total,
        allocated: gpu.allocated,
        reserved: gpu.reserved,
        outside_pytorch: gpu.outside,
        other_processes: gpu.others,
        free: gpu.free,
    };
    let json = SummaryJson {
        pid: summary.pid,
        command: summary.process.start().map(|start| start.command.clone()).unwrap_or_default(),
        gpus: summary.gpus.iter().map(gpu).collect(),
        groups: groups.iter().map(GroupJson::new).collect(),
        growth: GrowthJson::new(summary.growth),
        lines: LinesJson::new(summary.lines),
        findings: summary.findings,
        look_error: summary.look.err(),
        incomplete: summary.look.ok().and_then(incomplete),
        stops: summary.stops.count,
        stopped_seconds: summary.stops.total.as_secs_f64(),
        longest_stop_seconds: summary.stops.longest.as_secs_f64(),
    };
    pretty_json(out, &serde_json::to_value(&json)?)
}
