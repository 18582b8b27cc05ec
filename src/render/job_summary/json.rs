//! A job on one screen as JSON.

use std::io::Write;

use super::super::RenderError;
use super::super::findings::{FindingText, rate};
use super::super::json::{
    GpuLinesJson, JsonDocument, LineBytesJson, LineGrowthJson, ObservedGrowthJson,
    ObservedLinesJson, OwnerGroupJson, OwnerGrowthJson, SummaryFindingJson, SummaryGpuJson,
    SummaryJson,
};
use super::super::owner_groups::group_label;
use super::super::owners::incomplete;
use super::super::owners_json::copied;
use super::device_lines::seconds_to_full;
use super::{JobSummary, LineBytes, LinesSource, ObservedLines};
use crate::analysis::{GpuFacts, GrowthWatch, HighWater, OwnerKind};
use crate::model::Nanos;

impl ObservedGrowthJson {
    /// What grew, as JSON has it.
    pub(in crate::render) fn new(watch: &GrowthWatch) -> ObservedGrowthJson {
        let owners = watch.owners().into_iter().map(|growth| OwnerGrowthJson {
            owner: group_label(&growth.group),
            text: rate(&growth),
            category: match growth.group.kind {
                OwnerKind::NoTensor => "no tensor".to_owned(),
                _ => growth.group.category.name().to_owned(),
            },
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
        ObservedGrowthJson {
            snapshots: watch.looks() as u64,
            seconds: watch.seconds(),
            owners: owners.collect(),
            lines: lines.collect(),
        }
    }
}

impl From<&ObservedLines> for ObservedLinesJson {
    fn from(lines: &ObservedLines) -> ObservedLinesJson {
        let (source, why_not_exact) = match &lines.source {
            LinesSource::None => ("none", None),
            LinesSource::Exact => ("exact", None),
            LinesSource::Sampled { why } => ("sampled", Some(why.clone())),
        };
        let line = |line: &LineBytes| LineBytesJson { line: line.line.clone(), bytes: line.bytes };
        let gpus = lines.gpus.iter().map(|(gpu, allocated, lines)| GpuLinesJson {
            gpu: gpu.0,
            allocated: *allocated,
            lines: lines.iter().map(line).collect(),
        });
        ObservedLinesJson {
            source: source.to_owned(),
            why_not_exact,
            seconds: lines.seconds,
            gpus: gpus.collect(),
        }
    }
}

/// Writes a summary as JSON; sizes in bytes, unknown is `null`.
pub fn job_summary_json(out: &mut dyn Write, summary: &JobSummary<'_>) -> Result<(), RenderError> {
    let groups = summary.look.map(crate::analysis::owner_groups).unwrap_or_default();
    let gpu = |gpu: &GpuFacts| {
        let observed = summary.devices.iter().find(|device| device.gpu == gpu.gpu);
        let peak = observed.and_then(|device| Some((device.peak?, device.until)));
        let highest = |mark: HighWater| mark.older().unwrap_or(mark.within).max(0) as u64;
        let ago = |(mark, until): (HighWater, Nanos)| {
            let ago = until.seconds() - mark.seen.1.seconds();
            mark.older().is_none().then_some(ago.max(0.0))
        };
        SummaryGpuJson {
            peak_allocated: peak.map(|(mark, _)| highest(mark)),
            peak_seconds_ago: peak.and_then(ago),
            ooms: observed.map(|device| device.ooms.all),
            ooms_observed: observed.map(|device| device.ooms.meanwhile),
            retries: observed.map(|device| device.retries.all),
            retries_observed: observed.map(|device| device.retries.meanwhile),
            reserved_grew: observed.and_then(|device| Some(device.reserved?.bytes)),
            taken_by: observed.map_or(Vec::new(), |device| device.taken_by.clone()),
            seconds_to_full: seconds_to_full(gpu, summary.growth),
            gpu: gpu.gpu,
            total: gpu.total,
            allocated: gpu.allocated,
            reserved: gpu.reserved,
            free_in_private_pools: gpu.cache.map(|cache| cache.private),
            outside_pytorch: gpu.outside,
            other_processes: gpu.others,
            free: gpu.free,
        }
    };
    let finding = |finding: &FindingText| SummaryFindingJson {
        kind: finding.kind.to_owned(),
        bytes: finding.bytes,
        text: finding.text.clone(),
        command: finding.command.clone(),
    };
    JsonDocument::new(SummaryJson {
        pid: summary.pid,
        command: summary.process.start().map(|start| start.command.clone()).unwrap_or_default(),
        gpus: summary.gpus.iter().map(gpu).collect(),
        groups: groups.iter().map(OwnerGroupJson::new).collect(),
        growth: ObservedGrowthJson::new(summary.growth),
        lines: summary.lines.into(),
        findings: summary.findings.iter().map(finding).collect(),
        copied: summary.look.ok().and_then(copied),
        snapshot_error: summary.look.err().map(str::to_owned),
        incomplete: summary.look.ok().and_then(incomplete),
        stops: summary.stops.count,
        stopped_seconds: summary.stops.total.as_secs_f64(),
        longest_stop_seconds: summary.stops.longest.as_secs_f64(),
    })
    .write(out, true)
}
