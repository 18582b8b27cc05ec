//! The answer of a dry run.

mod json;

pub use json::{
    DryRunJson, FittedJson, RunHolderJson, RunLineJson, RunMarginJson, RunMomentJson, RunPeaksJson,
    RunProcessJson, dry_run_json,
};

use std::io::{self, Write};

use crate::analysis::{RunHolder, RunMoment, RunOwner, RunPhase};
use crate::model::HistoryFrame;
use crate::render::shared::{EscapeGuard, bytes, count, number, short_file};

const LISTED_HOLDERS: usize = 6;

/// Peaks of one process on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunPeaks {
    /// Of PyTorch's tensors.
    pub allocated: u64,
    /// Of what PyTorch took from the driver.
    pub reserved: u64,
    /// Of the process, as nvidia-smi shows it.
    pub process: u64,
}

/// A process of the program.
#[derive(Debug, Clone, Default)]
pub struct RunProcess {
    /// `rank 1`, or `process 1234`.
    pub name: String,
    /// Its peaks.
    pub peaks: RunPeaks,
}

/// Whether the program fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FitAnswer {
    /// It does.
    Fits,
    /// PyTorch ran out of memory.
    OutOfMemory,
    /// It does, but the peak is above what was allowed.
    AboveLimit(u64),
    /// The program failed for another reason.
    Failed,
}

/// What the error of a dry run depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunClass {
    /// PyTorch's own kernels: their work spaces are PyTorch's.
    Plain,
    /// cuDNN's convolutions, whose work spaces follow a rule.
    Convolutions,
    /// Values that the simulated card does not have decide sizes.
    SizedByValues,
}

impl RunClass {
    /// The largest error, in per cent, against an H200 (benches/dry_run.md): of allocated, reserved
    /// and process. `None`: unknown.
    fn margins(self) -> Option<[u64; 3]> {
        match self {
            RunClass::Plain => Some([1, 1, 1]),
            RunClass::Convolutions => Some([6, 8, 9]),
            RunClass::SizedByValues => None,
        }
    }
}

/// What a dry run found.
#[derive(Debug, Clone)]
pub struct DryRunAnswer {
    /// Whether it fits.
    pub fit: FitAnswer,
    /// How far the figures may be off.
    pub class: RunClass,
    /// `2 × NVIDIA L4`.
    pub cards: String,
    /// Memory of one card.
    pub memory: u64,
    /// The context's size was estimated.
    pub context_is_estimated: bool,
    /// PyTorch's version.
    pub torch: String,
    /// Optimizer steps that ended.
    pub steps: u64,
    /// memspy ended the program then.
    pub was_ended: bool,
    /// The program's exit code.
    pub code: u8,
    /// `ended with exit code 5`, `was ended by SIGTERM (signal 15)`.
    pub end: String,
    /// The largest process first.
    pub processes: Vec<RunProcess>,
    /// The largest process at its peak, or when it ran out of memory.
    pub moment: Option<RunMoment>,
    /// The program's folder.
    pub directory: Option<String>,
    /// What the program needs on a card with more memory; after an out-of-memory error.
    pub needed: Option<RunPeaks>,
    /// Notes: values that decide sizes, what could not be read.
    pub notes: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
}

/// Writes the answer.
pub fn dry_run_text(out: &mut dyn Write, answer: &DryRunAnswer) -> io::Result<()> {
    let out = &mut EscapeGuard::text(out);
    writeln!(out, "{}", verdict(answer))?;
    let steps = match (answer.steps, answer.was_ended) {
        (0, _) => "no optimizer step".to_owned(),
        (steps, true) => {
            format!("ended after step {steps}: what may come later is not counted (--until-step 0)")
        }
        (steps, false) => format!("{}, then its end", number(steps, "optimizer step")),
    };
    writeln!(
        out,
        "{}, {} each; PyTorch {}; {steps}",
        answer.cards,
        bytes(answer.memory),
        answer.torch
    )?;
    figures(out, answer)?;
    if let Some(moment) = &answer.moment {
        moment_text(out, answer, moment)?;
    }
    if !answer.notes.is_empty() {
        writeln!(out)?;
    }
    for note in &answer.notes {
        writeln!(out, "note: {note}")?;
    }
    if !answer.next.is_empty() {
        writeln!(out, "\nNext")?;
    }
    for line in &answer.next {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn verdict(answer: &DryRunAnswer) -> String {
    let peaks = largest(answer);
    let left = answer.memory.saturating_sub(peaks.process);
    let share = 100.0 * left as f64 / answer.memory.max(1) as f64;
    match answer.fit {
        FitAnswer::Fits if answer.code != 0 => {
            format!("FITS as far as it ran: it {}; {} ({share:.0} %) left", answer.end, bytes(left))
        }
        FitAnswer::Fits if is_close(answer, left) => format!(
            "FITS, but only just: {} are left, less than such a run may be off",
            bytes(left)
        ),
        FitAnswer::Fits => format!("FITS, with {} ({share:.0} %) left", bytes(left)),
        FitAnswer::AboveLimit(limit) => format!(
            "ABOVE THE LIMIT: {} allocated at the peak, --max-peak allows {}",
            bytes(peaks.allocated),
            bytes(limit)
        ),
        FitAnswer::OutOfMemory => match answer.needed {
            Some(needed) => format!(
                "DOES NOT FIT: it needs {}, the card has {}",
                bytes(needed.process),
                bytes(answer.memory)
            ),
            // Not even the largest card that is simulated has as much.
            None => format!(
                "DOES NOT FIT: it needs more than {}, the card has {}",
                bytes(peaks.process.saturating_add(asked(answer))),
                bytes(answer.memory)
            ),
        },
        FitAnswer::Failed => "NO ANSWER: the program failed; until then:".to_owned(),
    }
}

/// At its out-of-memory error.
fn asked(answer: &DryRunAnswer) -> u64 {
    answer.moment.as_ref().and_then(|moment| moment.asked).unwrap_or(0)
}

/// Whether the error may be larger than what is left.
fn is_close(answer: &DryRunAnswer, left: u64) -> bool {
    let margin = answer.class.margins().map_or(10, |[.., process]| process);
    left < largest(answer).process / 100 * margin
}

fn largest(answer: &DryRunAnswer) -> RunPeaks {
    answer.processes.first().map(|process| process.peaks).unwrap_or_default()
}

/// On a card with room, if the program ran there.
fn shown_peaks(answer: &DryRunAnswer) -> RunPeaks {
    answer.needed.unwrap_or(largest(answer))
}

fn figures(out: &mut dyn Write, answer: &DryRunAnswer) -> io::Result<()> {
    writeln!(out)?;
    if answer.fit == FitAnswer::OutOfMemory && answer.needed.is_none() {
        writeln!(out, "Until it ran out of memory:")?;
    }
    let note = match answer.context_is_estimated {
        true => "as nvidia-smi shows it; the context is an estimate",
        false => "as nvidia-smi shows it",
    };
    let margins = answer.class.margins();
    let margin =
        |at: usize| margins.map_or("±? %".to_owned(), |margins| format!("±{} %", margins[at]));
    let shown = shown_peaks(answer);
    for (at, (name, value, what)) in [
        ("allocated", shown.allocated, "in tensors"),
        ("reserved", shown.reserved, "with PyTorch's cache"),
        ("process", shown.process, note),
    ]
    .into_iter()
    .enumerate()
    {
        let share = 100.0 * value as f64 / answer.memory.max(1) as f64;
        let margin = margin(at);
        writeln!(out, "  {name:<10} {:>11} {share:>4.0} %  {margin}  {what}", bytes(value))?;
    }
    if answer.processes.len() > 1 {
        let all: Vec<String> = answer
            .processes
            .iter()
            .map(|process| format!("{} {}", process.name, bytes(process.peaks.allocated)))
            .collect();
        writeln!(out, "  allocated by process: {}", all.join(", "))?;
    }
    Ok(())
}

fn moment_text(out: &mut dyn Write, answer: &DryRunAnswer, moment: &RunMoment) -> io::Result<()> {
    let place = |line: &Option<HistoryFrame>| match line {
        Some(frame) => format!(" at {}", frame_text(frame, answer.directory.as_deref())),
        None => String::new(),
    };
    writeln!(out)?;
    match moment.asked {
        Some(asked) => writeln!(
            out,
            "Out of memory in step {}, {}: {} more asked for{}",
            moment.step,
            moment.phase.name(),
            bytes(asked),
            place(&moment.place)
        )?,
        None => writeln!(
            out,
            "Peak in step {}, {}{}",
            moment.step,
            moment.phase.name(),
            place(&moment.place)
        )?,
    }
    for holder in moment.holders.iter().take(LISTED_HOLDERS) {
        let share = 100.0 * holder.bytes as f64 / moment.allocated.max(1) as f64;
        writeln!(
            out,
            "  {:>11} {share:>4.0} %  {}",
            bytes(holder.bytes),
            holder_text(holder, answer.directory.as_deref())
        )?;
    }
    let rest = moment.holders.iter().skip(LISTED_HOLDERS);
    let (others, held) = rest.fold((0, 0), |(n, sum), holder| (n + 1, sum + holder.bytes));
    if others > 0 {
        let share = 100.0 * held as f64 / moment.allocated.max(1) as f64;
        writeln!(out, "  {:>11} {share:>4.0} %  {} more", bytes(held), count(others))?;
    }
    Ok(())
}

fn holder_text(holder: &RunHolder, directory: Option<&str>) -> String {
    let blocks = match holder.blocks {
        1 => "1 block".to_owned(),
        blocks => format!("{} blocks", count(blocks)),
    };
    match &holder.owner {
        RunOwner::Category(category) => format!("{} ({blocks})", category.name()),
        RunOwner::Line(frame, phase) => {
            format!("{} ({}, {blocks})", frame_text(frame, directory), phase.name())
        }
        RunOwner::Unknown(RunPhase::Backward) => format!("made by the backward pass ({blocks})"),
        RunOwner::Unknown(phase) => {
            format!("without a line of Python ({}, {blocks})", phase.name())
        }
    }
}

fn frame_text(frame: &HistoryFrame, directory: Option<&str>) -> String {
    format!("{}:{} {}", short_file(&frame.file, directory), frame.line, frame.name)
}
