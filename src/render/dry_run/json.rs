//! `memspy dry-run --json`.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::{DryRunAnswer, FitAnswer, RunPeaks, shown_peaks};
use crate::analysis::{RunHolder, RunMoment, RunOwner};
use crate::model::HistoryFrame;
use crate::render::shared::{JsonDocument, JsonFormat, OutputError};

/// `memspy dry-run --json`: a program's memory on simulated cards. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DryRunJson {
    /// `fits`, `out of memory`, `above the limit` or `failed`.
    pub answer: String,
    /// The program's exit code.
    pub exit_code: u8,
    /// The cards: `2 × NVIDIA L4`.
    pub cards: String,
    /// Memory of one card.
    pub card_bytes: u64,
    /// PyTorch's version.
    pub torch: String,
    /// Optimizer steps that ended.
    pub steps: u64,
    /// memspy ended the program after these steps.
    pub was_ended: bool,
    /// The peaks of the largest process; after an out-of-memory error those on a card with room,
    /// if the program ran there.
    pub peaks: RunPeaksJson,
    /// The largest error against a GPU, in per cent; `null`: unknown.
    pub margin_percent: Option<RunMarginJson>,
    /// The processes, the largest first.
    pub processes: Vec<RunProcessJson>,
    /// The largest process at its peak, or when it ran out of memory.
    pub moment: Option<RunMomentJson>,
    /// With `--fit`: what was found.
    pub fit: Option<FittedJson>,
    /// Why the figures may be off.
    pub notes: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
}

impl JsonFormat for DryRunJson {
    const FORMAT: &'static str = "memspy-dry-run";
    const VERSION: u32 = 1;
}

/// Peaks of a process on one card.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunPeaksJson {
    /// Of PyTorch's tensors.
    pub allocated: u64,
    /// Of what PyTorch took from the driver.
    pub reserved: u64,
    /// Of the process, as nvidia-smi shows it.
    pub process: u64,
}

impl From<RunPeaks> for RunPeaksJson {
    fn from(peaks: RunPeaks) -> RunPeaksJson {
        let RunPeaks { allocated, reserved, process } = peaks;
        RunPeaksJson { allocated, reserved, process }
    }
}

/// The largest errors that a comparison with a GPU found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunMarginJson {
    /// Of the allocated peak.
    pub allocated: u64,
    /// Of the reserved peak.
    pub reserved: u64,
    /// Of the process.
    pub process: u64,
}

/// A process of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunProcessJson {
    /// `rank 1`, or `process 1234`.
    pub name: String,
    /// Its peaks until it ended.
    pub peaks: RunPeaksJson,
}

/// One moment of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunMomentJson {
    /// `loading`, `forward`, `backward`, `optimizer step` or `evaluation`.
    pub phase: String,
    /// The step in progress, from 1.
    pub step: u64,
    /// Allocated then.
    pub allocated: u64,
    /// What was asked for, at an out-of-memory error.
    pub asked: Option<u64>,
    /// The program's line that allocated last, or asked for more.
    pub line: Option<RunLineJson>,
    /// Largest first; they add up to `allocated`.
    pub holders: Vec<RunHolderJson>,
}

/// A line of Python.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunLineJson {
    /// Its path.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// With its class.
    pub function: String,
}

/// What held memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunHolderJson {
    /// `parameters`, `optimizer state` and so on; `null` where a line is all that is known.
    pub category: Option<String>,
    /// The line that allocated it.
    pub line: Option<RunLineJson>,
    /// The phase in which it was allocated.
    pub phase: Option<String>,
    /// Their sum.
    pub bytes: u64,
    /// How many blocks of the allocator.
    pub blocks: u64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FittedJson {
    /// The name in the command.
    pub name: String,
    /// The largest number that fits.
    pub largest: u64,
    /// It is the end of the range: more may fit.
    pub is_range_end: bool,
    /// The numbers tried, in order.
    pub tried: Vec<u64>,
}

/// Writes the answer.
pub fn dry_run_json(
    out: &mut dyn Write,
    answer: &DryRunAnswer,
    fit: Option<FittedJson>,
) -> Result<(), OutputError> {
    let margin = answer.class.margins();
    JsonDocument::new(DryRunJson {
        answer: match answer.fit {
            FitAnswer::Fits => "fits",
            FitAnswer::OutOfMemory => "out of memory",
            FitAnswer::AboveLimit(_) => "above the limit",
            FitAnswer::Failed => "failed",
        }
        .to_owned(),
        exit_code: answer.code,
        cards: answer.cards.clone(),
        card_bytes: answer.memory,
        torch: answer.torch.clone(),
        steps: answer.steps,
        was_ended: answer.was_ended,
        peaks: shown_peaks(answer).into(),
        margin_percent: margin.map(|[allocated, reserved, process]| RunMarginJson {
            allocated,
            reserved,
            process,
        }),
        processes: answer
            .processes
            .iter()
            .map(|it| RunProcessJson { name: it.name.clone(), peaks: it.peaks.into() })
            .collect(),
        moment: answer.moment.as_ref().map(moment),
        fit,
        notes: answer.notes.clone(),
        next: answer.next.clone(),
    })
    .write(out, true)
}

fn moment(moment: &RunMoment) -> RunMomentJson {
    RunMomentJson {
        phase: moment.phase.name().to_owned(),
        step: moment.step,
        allocated: moment.allocated,
        asked: moment.asked,
        line: moment.place.as_ref().map(line),
        holders: moment.holders.iter().map(holder).collect(),
    }
}

fn holder(holder: &RunHolder) -> RunHolderJson {
    let (category, of_line, phase) = match &holder.owner {
        RunOwner::Category(category) => (Some(category.name().to_owned()), None, None),
        RunOwner::Line(frame, phase) => (None, Some(line(frame)), Some(phase)),
        RunOwner::Unknown(phase) => (None, None, Some(phase)),
    };
    RunHolderJson {
        category,
        line: of_line,
        phase: phase.map(|phase| phase.name().to_owned()),
        bytes: holder.bytes,
        blocks: holder.blocks,
    }
}

fn line(frame: &HistoryFrame) -> RunLineJson {
    RunLineJson { file: frame.file.to_string(), line: frame.line, function: frame.name.to_string() }
}
