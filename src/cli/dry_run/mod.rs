//! `memspy dry-run`: a program's memory, on a machine without a GPU.

mod answer;
mod fit;
mod observer;
mod trial;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::model::Card;
use crate::render::{
    self, DryRunAnswer, FitAnswer, FittedJson, RunPeaks, bytes, dry_run_json, dry_run_text,
    in_sentence, number, suggestion,
};

use super::args::{DryRunArgs, FitRange};
use super::output::{self, NameFields};
use super::simulated_device::{BOUNDLESS, SimulatedLibraries, TorchPython};
use super::{eprint_error, eprint_progress, in_one_line};

use answer::answer;
use fit::{FitProbe, largest_that_fits};
use observer::ObservedProcess;
use trial::{ProgramTrial, TrialSetting};

/// The program does not fit, or needs more than allowed.
const DOES_NOT_FIT: u8 = 3;
/// As clap's.
const WRONG_ARGUMENTS: u8 = 2;

pub(super) fn run(args: &DryRunArgs) -> Result<ExitCode> {
    output::check_requested(args.output.as_deref(), args.force)?;
    if args.output.as_ref().is_some_and(|path| path.as_os_str() == "-") {
        bail!("a trace cannot be written to standard output: name a file with -o");
    }
    let program = args.command();
    if let Some(line) = args.fit.as_ref().and_then(|range| range.missing_in(&program)) {
        eprint_error(&format!("error: dry-run: {line}; see 'memspy dry-run --help'"));
        return Ok(WRONG_ARGUMENTS.into());
    }
    let python = TorchPython::of(&program)?;
    let libraries = SimulatedLibraries::prepare(&python)?;
    let setting = TrialSetting {
        libraries: &libraries,
        card: &args.card,
        gpus: args.gpus,
        until_step: args.last_step(),
        program: &program,
        is_quiet: false,
        has_own_output: args.json,
        is_read: true,
        wants_trace: args.output.is_some(),
        expandable: false,
    };
    match &args.fit {
        Some(range) => search(args, range, &setting),
        None => once(args, &setting),
    }
}

fn once(args: &DryRunArgs, setting: &TrialSetting<'_>) -> Result<ExitCode> {
    let trial = ProgramTrial::run(setting)?;
    let (pid, mut answer) = answered(&trial, setting, args.max_peak)?;
    if answer.fit == FitAnswer::OutOfMemory {
        eprint_progress(
            "it does not fit: running it again, on a larger card, to see what it needs",
        );
        look_further(&mut answer, setting)?;
    }
    write_traces(args, &trial.observed, pid, &mut answer)?;
    output::print(|out| match args.json {
        true => dry_run_json(out, &answer, None).map_err(output::into_io),
        false => dry_run_text(out, &answer),
    })?;
    Ok(match answer.fit {
        FitAnswer::Fits if args.pass_exit => trial.code().into(),
        FitAnswer::Fits => ExitCode::SUCCESS,
        FitAnswer::OutOfMemory | FitAnswer::AboveLimit(_) => DOES_NOT_FIT.into(),
        FitAnswer::Failed => ExitCode::FAILURE,
    })
}

fn answered(
    trial: &ProgramTrial,
    setting: &TrialSetting<'_>,
    max_peak: Option<u64>,
) -> Result<(u32, DryRunAnswer)> {
    if let Some(found) = answer(trial, setting, max_peak) {
        return Ok(found);
    }
    if let Some(refusal) = trial.refusal() {
        bail!("{refusal}");
    }
    match trial.code() {
        0 => bail!(
            "the program told of no GPU memory of PyTorch's: it uses no device='cuda', ended by \
             os._exit(), or runs with Python's options -I, -E or -S, which hide it from memspy"
        ),
        _ => bail!(
            "the program {}, before it used GPU memory of PyTorch's or without Python's own end \
             (os._exit(), a signal){}{}",
            trial.end,
            if trial.last_line().is_empty() { "" } else { ": " },
            trial.last_line()
        ),
    }
}

/// What it needs where there is room, and whether another allocator setting makes it fit.
fn look_further(answer: &mut DryRunAnswer, setting: &TrialSetting<'_>) -> Result<()> {
    let larger = Card { memory: BOUNDLESS, ..setting.card.clone() };
    let more =
        TrialSetting { is_quiet: true, is_read: false, wants_trace: false, ..setting.clone() };
    let Some(needed) = peaks_of(&TrialSetting { card: &larger, ..more.clone() })? else {
        return Ok(());
    };
    answer.needed = Some(needed);
    let outside = needed.process.saturating_sub(needed.reserved);
    let can_fit = needed.allocated + outside <= answer.memory;
    if can_fit && peaks_of(&TrialSetting { expandable: true, ..more })?.is_some() {
        answer.next.insert(
            0,
            "it fits with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (tried)".to_owned(),
        );
    }
    if let Some((name, memory)) = Card::with_more_than(needed.process + needed.process / 20) {
        answer.next.push(format!("it fits {name} ({}) as it is", bytes(memory)));
    }
    Ok(())
}

/// Peaks of the largest process; `None` if it does not fit.
fn peaks_of(setting: &TrialSetting<'_>) -> Result<Option<RunPeaks>> {
    let trial = ProgramTrial::run(setting)?;
    let (_, answer) = answered(&trial, setting, None)?;
    let fits = answer.fit == FitAnswer::Fits;
    Ok(answer.processes.first().map(|process| process.peaks).filter(|_| fits))
}

fn search(args: &DryRunArgs, range: &FitRange, setting: &TrialSetting<'_>) -> Result<ExitCode> {
    let began = Instant::now();
    let tried = |value: u64| probe(range, value, &range.filled(setting.program, value), setting);
    let result = largest_that_fits(range.low, range.high, args.card.memory, tried)?;
    let runs = number(result.tried.len() as u64, "run");
    let took = format!("{runs}, {:.0} s", began.elapsed().as_secs_f64());
    let Some(largest) = result.largest else {
        let line = format!(
            "{0} = {1} does not fit ({took}): with {1} in the command and without --fit memspy says \
             what it needs",
            range.name, range.low
        );
        output::print(|out| writeln!(out, "{line}"))?;
        return Ok(DOES_NOT_FIT.into());
    };
    // Once more, to see what holds the memory.
    let program = range.filled(setting.program, largest);
    let setting = TrialSetting { program: &program, is_quiet: true, ..setting.clone() };
    let trial = ProgramTrial::run(&setting)?;
    let (pid, mut answer) = answered(&trial, &setting, None)?;
    write_traces(args, &trial.observed, pid, &mut answer)?;
    let found = match largest < range.high {
        true => format!("is the largest that fits; {} does not", largest + 1),
        false => "fits, and is the end of the range: more may fit".to_owned(),
    };
    output::print(|out| {
        if args.json {
            let fitted = FittedJson {
                name: range.name.clone(),
                largest,
                is_range_end: largest == range.high,
                tried: result.tried.clone(),
            };
            return dry_run_json(out, &answer, Some(fitted)).map_err(output::into_io);
        }
        writeln!(out, "{} = {largest} {found} ({took})", range.name)?;
        dry_run_text(out, &answer)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A run with one number.
fn probe(
    range: &FitRange,
    value: u64,
    program: &[String],
    setting: &TrialSetting<'_>,
) -> Result<FitProbe> {
    let setting = TrialSetting {
        program,
        is_quiet: true,
        is_read: false,
        wants_trace: false,
        ..setting.clone()
    };
    let trial = ProgramTrial::run(&setting)?;
    let (_, answer) = answered(&trial, &setting, None)
        .with_context(|| format!("with {} = {value}", range.name))?;
    let needs = answer.processes.iter().map(|it| it.peaks.process).max().unwrap_or(0);
    let (word, probe) = match answer.fit {
        FitAnswer::Fits => ("fits", FitProbe::Fits(needs)),
        FitAnswer::OutOfMemory | FitAnswer::AboveLimit(_) => ("does not fit", FitProbe::TooLarge),
        FitAnswer::Failed => {
            bail!("the program {} with {} = {value}: {}", trial.end, range.name, trial.last_line())
        }
    };
    let took = trial.took.as_secs_f64();
    eprint_progress(&format!("{} = {value} {word} ({took:.1} s)", range.name));
    Ok(probe)
}

/// Writes the recordings that were asked for, and says what to do with them.
fn write_traces(
    args: &DryRunArgs,
    observed: &[ObservedProcess],
    pid: u32,
    answer: &mut DryRunAnswer,
) -> Result<()> {
    let Some(path) = &args.output else {
        answer.next.push(
            "-o trace.bin records it: 'memspy flame trace.bin' then draws the peak".to_owned(),
        );
        return Ok(());
    };
    let host = output::host();
    let is_of_each = ["%r", "%p"].iter().any(|it| path.to_string_lossy().contains(it));
    // The last report of a process has all of its history.
    let mut done = Vec::new();
    for process in observed.iter().rev() {
        let report = &process.report;
        let is_wanted = is_of_each || report.pid == pid;
        if !is_wanted || done.contains(&report.pid) {
            continue;
        }
        done.push(report.pid);
        let Some(bytes) = &process.trace else { continue };
        let rank = report.rank.as_ref().and_then(|rank| rank.parse().ok());
        let path = output::expand(path, NameFields { pid: report.pid, host: &host, rank })?;
        output::write(&path, args.force, |out| out.write_all(bytes))
            .with_context(|| in_one_line(&anyhow::anyhow!("cannot write the trace")))?;
        answer.next.push(drawn(&path));
    }
    Ok(())
}

fn drawn(path: &Path) -> String {
    let name = render::file_word(&path.to_string_lossy()).into_owned();
    format!("{} draws the peak", in_sentence(&suggestion(["flame", &name])))
}
