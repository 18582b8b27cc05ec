//! Turns a trial into an answer.

use std::collections::BTreeMap;

use super::observer::{ObservedProcess, ReportedRead};
use super::trial::{ProgramTrial, TrialSetting};
use crate::analysis::{RunFacts, RunInstant, RunMoment, RunOwner, RunPhase, run_moment};
use crate::model::{Card, CudaIndex, Metric, Pool, TensorCategory};
use crate::render::{
    DryRunAnswer, FitAnswer, RunClass, RunPeaks, RunProcess, bytes, count, short_file,
};

/// Operations whose result's size depends on values.
const SIZED_BY_VALUES: [&str; 7] = [
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
];
const LISTED_READS: usize = 2;
/// A part of the peak worth advice.
const LARGE_PART: f64 = 0.25;

/// One process of the program, over all its reports.
struct ProcessView<'a> {
    last: &'a ObservedProcess,
    /// At its last out-of-memory error.
    refused: Option<&'a ObservedProcess>,
    device: u32,
    peaks: RunPeaks,
    retries: u64,
}

impl ProcessView<'_> {
    /// Each process once, in the order of their first reports.
    fn all(observed: &[ObservedProcess]) -> Vec<ProcessView<'_>> {
        let mut by_pid: BTreeMap<u32, Vec<&ObservedProcess>> = BTreeMap::new();
        for process in observed {
            by_pid.entry(process.report.pid).or_default().push(process);
        }
        by_pid.into_values().filter_map(|reports| ProcessView::of(&reports)).collect()
    }

    fn of<'a>(reports: &[&'a ObservedProcess]) -> Option<ProcessView<'a>> {
        let last = *reports.last()?;
        let refused = reports.iter().rev().find(|it| it.report.event == "oom").copied();
        let devices = reports.iter().flat_map(|it| &it.report.devices);
        let main = devices.max_by_key(|it| (it.process_peak, std::cmp::Reverse(it.device)))?;
        let device = refused.and_then(|it| it.report.device).unwrap_or(main.device);
        let mut peaks = RunPeaks::default();
        for of_device in reports.iter().flat_map(|it| &it.report.devices) {
            if of_device.device == device {
                peaks.allocated = peaks.allocated.max(of_device.allocated_peak);
                peaks.reserved = peaks.reserved.max(of_device.reserved_peak);
                peaks.process = peaks.process.max(of_device.process_peak);
            }
        }
        let retries = reports.iter().flat_map(|it| &it.report.devices).map(|it| it.retries).max();
        Some(ProcessView { last, refused, device, peaks, retries: retries.unwrap_or(0) })
    }

    fn name(&self) -> String {
        match &self.last.report.rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("process {}", self.last.report.pid),
        }
    }

    /// Whether its end came with an out-of-memory error.
    fn ran_out(&self) -> bool {
        self.last.report.out_of_memory > 0 && self.last.report.event != "step"
    }

    /// An exit code is that of an exception, or of another process if memspy ended this one.
    fn tells_of_failure(&self) -> bool {
        self.last.report.error.is_some() || self.last.report.event == "step"
    }

    fn class(&self) -> RunClass {
        let is_sized = |read: &ReportedRead| SIZED_BY_VALUES.contains(&read.0.as_str());
        if self.last.report.reads.iter().any(is_sized) {
            return RunClass::SizedByValues;
        }
        let frames = self.last.reading.iter().flatten().flat_map(|reading| &reading.history.frames);
        let mut files = frames.map(|frame| &*frame.file);
        match files.any(|file| file.ends_with("torch/nn/modules/conv.py")) {
            true => RunClass::Convolutions,
            false => RunClass::Plain,
        }
    }

    fn moment(&self, instant: RunInstant) -> Option<RunMoment> {
        let of = match instant {
            RunInstant::Peak => self.last,
            RunInstant::OutOfMemory => self.refused?,
        };
        let reading = of.reading.as_ref()?.as_ref().ok()?;
        let device = CudaIndex(self.device);
        let counters = reading.counters.iter().find(|(index, _)| *index == device);
        let counted =
            counters.map_or(0, |(_, it)| it.stat(Metric::Allocation, Pool::All).allocated);
        let marks = of.report.marks();
        let facts = RunFacts {
            history: &reading.history,
            marks: &marks,
            owners: reading.owners.as_ref(),
            allocations: u64::try_from(counted).unwrap_or(0),
        };
        run_moment(facts, device, instant)
    }
}

/// The pid of the process that is shown, and the answer; `None` if no process used the card.
pub(super) fn answer(
    trial: &ProgramTrial,
    setting: &TrialSetting<'_>,
    max_peak: Option<u64>,
) -> Option<(u32, DryRunAnswer)> {
    let mut processes = ProcessView::all(&trial.observed);
    let ran_out = trial.code() != 0 && processes.iter().any(ProcessView::ran_out);
    processes.sort_by_key(|it| {
        (std::cmp::Reverse(ran_out && it.ran_out()), std::cmp::Reverse(it.peaks.allocated))
    });
    let shown = processes.first()?;
    // An exit code of the program's own choice is no failure; an exception is.
    let has_failed = trial.code() != 0 && processes.iter().any(ProcessView::tells_of_failure);
    let fit = match max_peak {
        _ if ran_out => FitAnswer::OutOfMemory,
        _ if has_failed => FitAnswer::Failed,
        Some(most) if shown.peaks.allocated > most => FitAnswer::AboveLimit(most),
        _ => FitAnswer::Fits,
    };
    let instant = if ran_out { RunInstant::OutOfMemory } else { RunInstant::Peak };
    let moment = shown.moment(instant);
    let directory = std::env::current_dir().ok().map(|it| it.to_string_lossy().into_owned());
    let report = &shown.last.report;
    let answer = DryRunAnswer {
        fit,
        class: shown.class(),
        cards: cards(setting.card, setting.gpus),
        memory: setting.card.memory,
        context_is_estimated: !setting.card.is_measured,
        torch: report.torch.clone(),
        steps: report.steps,
        was_ended: report.event == "step",
        code: trial.code(),
        end: trial.end.to_string(),
        processes: processes
            .iter()
            .map(|it| RunProcess { name: it.name(), peaks: it.peaks })
            .collect(),
        needed: None,
        notes: notes(shown, trial, fit, directory.as_deref()),
        next: moment.as_ref().map(|it| advice(it, shown.peaks)).unwrap_or_default(),
        moment,
        directory,
    };
    Some((report.pid, answer))
}

fn cards(card: &Card, gpus: u32) -> String {
    match gpus {
        1 => card.title.clone(),
        gpus => format!("{gpus} × {}", card.title),
    }
}

fn notes(
    shown: &ProcessView<'_>,
    trial: &ProgramTrial,
    fit: FitAnswer,
    directory: Option<&str>,
) -> Vec<String> {
    let report = &shown.last.report;
    let mut notes = Vec::new();
    if fit != FitAnswer::OutOfMemory && trial.code() != 0 {
        let why = report.error.as_deref().and_then(|text| text.lines().next());
        notes.push(format!(
            "the program {}{}",
            trial.end,
            why.map(|why| format!(": {why}")).unwrap_or_default()
        ));
    }
    if let Some(Err(why)) = &shown.last.reading {
        notes.push(format!("the program's blocks could not be read: {why}"));
    }
    if fit != FitAnswer::OutOfMemory && report.out_of_memory > 0 {
        notes.push(format!(
            "the program went on after {} out-of-memory errors",
            count(report.out_of_memory)
        ));
    }
    if fit == FitAnswer::Fits && shown.retries > 0 {
        let times = match shown.retries {
            1 => "once".to_owned(),
            retries => format!("{} times", count(retries)),
        };
        notes.push(format!(
            "it fits only because PyTorch gave its cache back {times}: that is slow"
        ));
    }
    notes.extend(reads_note(&report.reads, directory));
    notes
}

/// Values of a simulated device are all zero.
fn reads_note(reads: &[ReportedRead], directory: Option<&str>) -> Option<String> {
    let sizes = |read: &&ReportedRead| SIZED_BY_VALUES.contains(&read.0.as_str());
    let decides = |read: &&ReportedRead| sizes(read) || read.3;
    let mut found: Vec<&ReportedRead> = reads.iter().filter(decides).collect();
    found.sort_by_key(|read| (!sizes(read), std::cmp::Reverse(read.4)));
    let place = |read: &&ReportedRead| {
        let operation = match read.0.as_str() {
            "" => "a copy to the host",
            "_local_scalar_dense" => "item()",
            other => other,
        };
        format!("{}:{} ({operation})", short_file(&read.1, directory), read.2)
    };
    let listed: Vec<String> = found.iter().take(LISTED_READS).map(place).collect();
    let more = match found.len().saturating_sub(LISTED_READS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!listed.is_empty()).then(|| {
        format!(
            "{}{more} read values, which are zero here: sizes that depend on them are wrong",
            listed.join(", ")
        )
    })
}

fn advice(moment: &RunMoment, peaks: RunPeaks) -> Vec<String> {
    let sum = |wanted: &dyn Fn(&RunOwner) -> bool| -> u64 {
        moment.holders.iter().filter(|it| wanted(&it.owner)).map(|it| it.bytes).sum()
    };
    let is_large = |part: u64| part > 0 && part as f64 >= LARGE_PART * moment.allocated as f64;
    let mut next = Vec::new();
    let activations = sum(&|it| matches!(it, RunOwner::Line(_, RunPhase::Forward)));
    if is_large(activations) {
        next.push(format!(
            "{} are of the forward pass: a smaller batch, or torch.utils.checkpoint, takes from these",
            bytes(activations)
        ));
    }
    let state = sum(&|it| *it == RunOwner::Category(TensorCategory::OptimizerState));
    if is_large(state) {
        next.push(format!(
            "{} are the optimizer's state: 8-bit states, Adafactor or sharding (FSDP) takes from these",
            bytes(state)
        ));
    }
    let temporary = sum(&|it| {
        matches!(
            it,
            RunOwner::Line(_, RunPhase::Optimizer) | RunOwner::Unknown(RunPhase::Optimizer)
        )
    });
    if moment.phase == RunPhase::Optimizer && temporary > moment.allocated / 10 {
        next.push(format!(
            "{} are temporary in the optimizer's step: fused=True or foreach=False avoids them",
            bytes(temporary)
        ));
    }
    let cache = peaks.reserved.saturating_sub(peaks.allocated);
    if cache > peaks.allocated / 8 && cache > 1 << 30 {
        next.push(format!(
            "{} are PyTorch's cache: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may need less",
            bytes(cache)
        ));
    }
    next
}
