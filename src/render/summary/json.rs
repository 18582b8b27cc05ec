//! `memspy summary --json`.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::device_lines::seconds_to_full;
use super::findings::{FindingText, rate, unchecked};
use super::text::{JobSummary, LineBytes, LinesSource, ObservedLines};
use crate::analysis::{GpuFacts, GrowthWatch, HighWater, HostUse, OwnerKind, TimeToFull};
use crate::model::Nanos;
use crate::render::owners::{
    CopiedTensorsJson, FreesJson, OwnerGroupJson, copied_json as copied, group_label, incomplete,
    uncertain,
};
use crate::render::shared::{JsonDocument, JsonFormat, OutputError};

/// `memspy summary --json`: where a job's GPU memory is, what owns it, what grows, and findings.
/// Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SummaryJson {
    /// The process.
    pub pid: u32,
    /// Its command line; empty where it is not known.
    pub command: Vec<String>,
    /// The GPUs that it uses.
    pub gpus: Vec<SummaryGpuJson>,
    /// The owners of the last snapshot in groups, the largest first.
    pub groups: Vec<OwnerGroupJson>,
    /// What grew in that time.
    pub growth: ObservedGrowthJson,
    /// What lines hold.
    pub lines: ObservedLinesJson,
    /// The job's memory on the host.
    pub host: HostUseJson,
    /// The findings, those whose change gives back most first.
    pub findings: Vec<SummaryFindingJson>,
    /// What findings could not be looked for.
    pub not_checked: Vec<String>,
    /// Of a process that was forked after CUDA had begun: the tensors on GPUs that are another
    /// process's, and not counted; else `null`.
    pub copied: Option<CopiedTensorsJson>,
    /// Why there is no snapshot of the owners; `null` where there is one.
    pub snapshot_error: Option<String>,
    /// Which limit ended the last snapshot early, in words; `null` if it is complete.
    pub incomplete: Option<String>,
    /// What changed while the last snapshot was read, in words; `null` if nothing did.
    pub uncertain: Option<String>,
    /// How often the job was stopped.
    pub stops: u32,
    /// For how long in all, in seconds.
    pub stopped_seconds: f64,
    /// The longest stop, in seconds.
    pub longest_stop_seconds: f64,
}

impl JsonFormat for SummaryJson {
    const FORMAT: &'static str = "memspy-summary";
    const VERSION: u32 = 1;
}

/// `memspy growth --json`: what grows in a job, and what keeps it. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrowthJson {
    /// The process.
    pub pid: u32,
    /// How many complete snapshots of the owners were read.
    pub snapshots: u64,
    /// From the first to the last, in seconds.
    pub seconds: f64,
    /// The owners that grow, the fastest first.
    pub owners: Vec<OwnerGrowthJson>,
    /// The lines whose live bytes grow, the fastest first.
    pub lines: Vec<LineGrowthJson>,
    /// What keeps a tensor of those that grow fastest.
    pub kept_by: Vec<KeeperJson>,
    /// When GPUs will be full whose allocated bytes keep rising.
    pub full: Vec<TimeToFullJson>,
}

/// When a GPU will be full if its allocated bytes grow as they did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TimeToFullJson {
    /// Its number in the job.
    pub gpu: u32,
    /// Bytes that can still be allocated.
    pub room: u64,
    /// Growth in bytes a second.
    pub bytes_per_second: f64,
    /// Seconds from now.
    pub seconds: f64,
    /// The end of the 90 % interval that is sooner, in seconds.
    pub at_least: f64,
    /// The end that is later, in seconds; `null`: perhaps never.
    pub at_most: Option<f64>,
}

impl TimeToFullJson {
    pub(super) fn new(gpu: u32, full: &TimeToFull) -> TimeToFullJson {
        TimeToFullJson {
            gpu,
            room: full.room,
            bytes_per_second: full.rate,
            seconds: full.seconds,
            at_least: full.at_least,
            at_most: full.at_most,
        }
    }
}

impl JsonFormat for GrowthJson {
    const FORMAT: &'static str = "memspy-growth";
    const VERSION: u32 = 1;
}

/// A GPU that a job uses, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SummaryGpuJson {
    /// Its number in the job.
    pub gpu: u32,
    /// All its memory.
    pub total: Option<u64>,
    /// Allocated in PyTorch.
    pub allocated: Option<u64>,
    /// Reserved by PyTorch's allocator.
    pub reserved: Option<u64>,
    /// Reserved and not allocated, but only for the CUDA graphs and `MemPool`s whose private pools
    /// it is in.
    pub free_in_private_pools: Option<u64>,
    /// What the job uses outside PyTorch's allocator.
    pub outside_pytorch: Option<u64>,
    /// What other processes use.
    pub other_processes: Option<u64>,
    /// Free.
    pub free: Option<u64>,
    /// The peak of what was allocated; `null` where it was not observed.
    pub peak_allocated: Option<u64>,
    /// How long ago that was, in seconds; `null` where it was before memspy observed it.
    pub peak_seconds_ago: Option<f64>,
    /// Out-of-memory errors that the job caught, since it began or reset its counters.
    pub ooms: Option<u64>,
    /// Of these, while it was observed.
    pub ooms_observed: Option<u64>,
    /// How often the allocator freed its cache and tried again (`num_alloc_retries`).
    pub retries: Option<u64>,
    /// Of these, while it was observed.
    pub retries_observed: Option<u64>,
    /// By how much what is reserved grew while what is allocated did not.
    pub reserved_grew: Option<u64>,
    /// The lines that took memory from the driver meanwhile; empty where they are not known
    /// exactly.
    pub taken_by: Vec<String>,
    /// Seconds until it is full, as fast as the owners on it grow; `null` where none does.
    pub seconds_to_full: Option<f64>,
}

/// What grew while a job was observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObservedGrowthJson {
    /// How many complete snapshots of the owners were read.
    pub snapshots: u64,
    /// From the first to the last, in seconds.
    pub seconds: f64,
    /// The owners that grow, the fastest first.
    pub owners: Vec<OwnerGrowthJson>,
    /// The lines whose live bytes grow, the fastest first.
    pub lines: Vec<LineGrowthJson>,
}

/// An owner that grows: the least that it held in each part of the time is more than in the part
/// before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerGrowthJson {
    /// The owner, as the text shows it.
    pub owner: String,
    /// How it grows, in words.
    pub text: String,
    /// What it is for, as in a group; `no tensor` for memory in no tensor.
    pub category: String,
    /// By how many bytes it grew.
    pub bytes: u64,
    /// In which time, in seconds.
    pub seconds: f64,
    /// `bytes` divided by `seconds`.
    pub bytes_per_second: f64,
    /// By how many storages it grew; negative if there are fewer.
    pub storages: i64,
    /// What it holds now, in bytes.
    pub held: u64,
    /// What would come back if its one reference went; `null` where it is not known.
    pub frees: Option<FreesJson>,
    /// A tensor of it, for `memspy why`; `null` where none has a name.
    pub example: Option<String>,
}

/// A line whose live bytes grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineGrowthJson {
    /// Function, file and line.
    pub line: String,
    /// By how many bytes it grew.
    pub bytes: u64,
    /// In which time, in seconds.
    pub seconds: f64,
    /// `bytes` divided by `seconds`.
    pub bytes_per_second: f64,
}

/// What keeps one tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeeperJson {
    /// The tensor.
    pub example: String,
    /// The paths from variables of the program to it; a reference that no variable leads to is left
    /// out.
    pub referrers: Vec<String>,
}

/// What lines hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObservedLinesJson {
    /// How it is known: `exact` (each allocation was recorded), `sampled` (an estimate), or `none`.
    pub source: String,
    /// Why it is not exact; `null` if it is, and without any recording.
    pub why_not_exact: Option<String>,
    /// How long the recording took, in seconds.
    pub seconds: f64,
    /// By GPU.
    pub gpus: Vec<GpuLinesJson>,
}

/// What lines hold on one GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GpuLinesJson {
    /// The GPU's number in the job.
    pub gpu: u32,
    /// All that is allocated in PyTorch: exact.
    pub allocated: u64,
    /// The lines, the one that holds most first.
    pub lines: Vec<LineBytesJson>,
}

/// What a line holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineBytesJson {
    /// Function, file and line.
    pub line: String,
    /// Bytes that it allocated and that are live.
    pub bytes: u64,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SummaryFindingJson {
    /// Its kind, a section of `docs/findings.md`.
    pub kind: String,
    /// The bytes that it is about; of what grows the bytes of a minute.
    pub bytes: u64,
    /// The bytes that the change gives back; `null` where they are not known.
    pub frees: Option<u64>,
    /// The finding, a sentence.
    pub text: String,
    /// The command that shows more.
    pub command: String,
}

/// The host's side of a job, in bytes; `null` where it is not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostUseJson {
    /// Resident memory.
    pub resident: Option<u64>,
    /// Its growth while observed; negative if it fell.
    pub grew: Option<i64>,
    /// In which time, in seconds.
    pub seconds: Option<f64>,
    /// Page-locked by PyTorch, of tensors.
    pub page_locked: Option<u64>,
    /// What these tensors asked for.
    pub page_locked_asked: Option<u64>,
    /// Page-locked by PyTorch and free.
    pub page_locked_cached: Option<u64>,
    /// Entries of PyTorch's own memory history; `null` unless it is on.
    pub history_entries: Option<u64>,
}

impl HostUseJson {
    fn new(host: &HostUse) -> HostUseJson {
        HostUseJson {
            resident: host.resident,
            grew: host.grown.map(|(bytes, _)| bytes),
            seconds: host.grown.map(|(_, seconds)| seconds),
            page_locked: host.page_locked.map(|it| it.in_use),
            page_locked_asked: host.page_locked.map(|it| it.asked),
            page_locked_cached: host.page_locked.map(|it| it.cached),
            history_entries: host.history.filter(|it| it.is_on).map(|it| it.entries),
        }
    }
}

/// `memspy why --json` without a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FindingsJson {
    /// The process.
    pub pid: u32,
    /// All findings, those whose change gives back most first.
    pub findings: Vec<SummaryFindingJson>,
    /// What findings could not be looked for.
    pub not_checked: Vec<String>,
}

impl JsonFormat for FindingsJson {
    const FORMAT: &'static str = "memspy-findings";
    const VERSION: u32 = 1;
}

/// Writes findings as JSON.
pub fn findings_json(
    out: &mut dyn Write,
    pid: u32,
    findings: &[FindingText],
    not_checked: Vec<String>,
) -> Result<(), OutputError> {
    let findings = findings.iter().map(SummaryFindingJson::new).collect();
    JsonDocument::new(FindingsJson { pid, findings, not_checked }).write(out, true)
}

impl SummaryFindingJson {
    fn new(finding: &FindingText) -> SummaryFindingJson {
        SummaryFindingJson {
            kind: finding.kind.to_owned(),
            bytes: finding.bytes,
            frees: finding.frees,
            text: finding.text.clone(),
            command: finding.command.clone(),
        }
    }
}

impl ObservedGrowthJson {
    pub(super) fn new(watch: &GrowthWatch) -> ObservedGrowthJson {
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
            frees: growth.group.frees.as_ref().map(FreesJson::new),
            example: growth.group.example.clone(),
        });
        let lines = watch.lines().into_iter().map(|growth| LineGrowthJson {
            bytes: growth.rise.bytes,
            seconds: growth.rise.seconds,
            bytes_per_second: growth.rise.rate(),
            line: growth.line,
        });
        ObservedGrowthJson {
            snapshots: watch.snapshots() as u64,
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
            LinesSource::Sampled { why, .. } => ("sampled", Some(why.clone())),
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

/// Writes a summary as JSON; bytes, unknown is `null`.
pub fn job_summary_json(out: &mut dyn Write, summary: &JobSummary<'_>) -> Result<(), OutputError> {
    let groups = summary.snapshot.map(crate::analysis::owner_groups).unwrap_or_default();
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
    JsonDocument::new(SummaryJson {
        pid: summary.pid,
        command: summary.process.start().map(|start| start.command.clone()).unwrap_or_default(),
        gpus: summary.gpus.iter().map(gpu).collect(),
        groups: groups.iter().map(OwnerGroupJson::new).collect(),
        growth: ObservedGrowthJson::new(summary.growth),
        lines: summary.lines.into(),
        host: HostUseJson::new(summary.host),
        findings: summary.findings.iter().map(SummaryFindingJson::new).collect(),
        not_checked: unchecked(summary.snapshot.ok(), summary.growth),
        copied: summary.snapshot.ok().and_then(copied),
        snapshot_error: summary.snapshot.err().map(str::to_owned),
        incomplete: summary.snapshot.ok().and_then(incomplete),
        uncertain: summary.snapshot.ok().and_then(uncertain),
        stops: summary.stops.count,
        stopped_seconds: summary.stops.total.as_secs_f64(),
        longest_stop_seconds: summary.stops.longest.as_secs_f64(),
    })
    .write(out, true)
}
