//! The end of `memspy record`: what was recorded.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use crate::analysis::{HighWater, Moment, Profile, flame, peak};
use crate::model::{CudaIndex, EndReason};
use crate::render::lines::rank_peaks;
use crate::render::shared::{
    COMMENT, EscapeGuard, OutputError, bytes, certainty_at_peak, end_text, events_line,
    exact_cost_warning, exact_notes as notes, file_word, following_line, gpu_line, job_cost_line,
    number, one_line, phase_at_peak, sampling_line, suggestion, warnings,
};

const FLAME_SHOWS: &str = "which stacks hold the memory at its peak";
const LINES_SHOW: &str = "the peak reached on every line";

/// Writes what was recorded, without what to do next ([`next_steps`]).
pub fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    file: &str,
    size: u64,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    writeln!(out, "Recorded to {} ({}): {}", one_line(file), bytes(size), end_text(profile))?;
    match profile.exact() {
        Some(exact) => {
            writeln!(out, "  {}", events_line(profile, exact, peak::main_gpu(profile)))?;
            for note in notes(exact) {
                writeln!(out, "  {note}")?;
            }
        }
        None => {
            writeln!(out, "  {}", sampling_line(profile))?;
            if let Some(followed) = profile.end().and_then(|end| end.totals.follow) {
                writeln!(out, "  {}", following_line(profile, &followed))?;
            }
        }
    }
    let cost = profile.end().and_then(|end| end.totals.cost);
    if let Some(cost) = &cost {
        writeln!(out, "  {}", job_cost_line(cost))?;
    }
    gpus(out, profile)?;
    for warning in warnings(profile) {
        writeln!(out, "  warning: {}", one_line(&warning))?;
    }
    let costly = cost.filter(|_| profile.exact().is_some());
    if let Some(warning) = costly.as_ref().and_then(exact_cost_warning) {
        writeln!(out, "  warning: {warning}")?;
    }
    Ok(())
}

/// The GPUs that PyTorch allocated on: a process that sees eight allocates on one.
fn gpus(out: &mut dyn Write, profile: &Profile) -> Result<(), OutputError> {
    let unused = |gpu: &CudaIndex| {
        let is_zero = |mark: Option<HighWater>| mark.is_some_and(|mark| mark.bytes == 0);
        is_zero(peak::allocated(profile, *gpu)) && is_zero(profile.peak_reserved(*gpu))
    };
    let (unused, used): (Vec<CudaIndex>, Vec<CudaIndex>) = profile.gpus().partition(unused);
    let shown = if used.is_empty() { &unused } else { &used };
    if shown.is_empty() {
        writeln!(out, "  no GPU memory of PyTorch was seen")?;
    }
    for gpu in shown {
        writeln!(out, "  {}", gpu_line(profile, *gpu))?;
        if let Some(certainty) = certainty_at_peak(profile, *gpu) {
            writeln!(out, "  {certainty}")?;
        }
        if let Some(phase) = phase_at_peak(profile, *gpu) {
            writeln!(out, "  {phase}")?;
        }
        if let Some(owners) = owners_line(profile, *gpu) {
            writeln!(out, "  {owners}")?;
        }
    }
    Ok(())
}

/// How many snapshots of the owners there are; without any, whether they are missed.
fn owners_line(profile: &Profile, gpu: CudaIndex) -> Option<String> {
    if let Some(owners) = profile.owners(gpu, Moment::End) {
        return Some(format!(
            "owners: {}, the last at {:.3} s (--owners=5 takes them more often)",
            number(owners.snapshots, "snapshot"),
            owners.time.seconds()
        ));
    }
    let peak = peak::allocated(profile, gpu)?.bytes.max(0) as u64;
    let before = peak.saturating_sub(flame::peak_resolution(profile, gpu)?.seen);
    (before > peak / 2).then(|| {
        format!(
            "{} of the peak is from before the recording: --owners says what holds it",
            bytes(before)
        )
    })
}

/// Writes which commands read the trace, if it has anything to read.
pub fn next_steps(out: &mut dyn Write, profile: &Profile, file: &str) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let trace = file_word(file);
    let any = profile.gpus().next().is_some();
    let has_driver_events = profile.exact().is_some_and(|exact| exact.events() > 0);
    if !any && !has_driver_events {
        return Ok(());
    }
    writeln!(out, "Next:")?;
    let mut next = |command: String, shows: &str| writeln!(out, "  {command}{COMMENT}{shows}");
    next(suggestion(["flame", &trace]), FLAME_SHOWS)?;
    if any {
        next(suggestion(["lines", &trace]), LINES_SHOW)?;
        let is_guessed = match profile.exact() {
            Some(exact) => exact.stacks_are_guessed(),
            None => profile.end().is_none_or(|end| end.totals.follow.is_none()),
        };
        if is_guessed {
            next(suggestion(exact_words(profile)), "as root: the line of each allocation, proven")?;
        }
    }
    Ok(())
}

/// Writes the peaks of a job's ranks (label, bytes), which ended `first` and how long before the
/// next, and which commands read their traces together.
pub fn ranks_summary(
    out: &mut dyn Write,
    peaks: &[(&str, i64)],
    first: Option<(&str, Duration)>,
    files: &[String],
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let traces: Vec<Cow<'_, str>> = files.iter().map(|file| file_word(file)).collect();
    let command =
        |words: &[&str]| suggestion(words.iter().copied().chain(traces.iter().map(AsRef::as_ref)));
    let together = [
        (&["lines", "--merge"][..], "of each line the most, the least, in which rank"),
        (&["report", "-o", "ranks.html"], "a page with all ranks"),
    ];
    let alone = [(&["flame"][..], FLAME_SHOWS), (&["lines"], LINES_SHOW)];
    if peaks.len() > 1 {
        writeln!(out, "{}", rank_peaks(peaks))?;
    }
    if let Some((label, before)) = first {
        let seconds = before.as_secs_f64();
        writeln!(out, "{} ended first, {seconds:.1} s before the next", one_line(label))?;
    }
    writeln!(out, "Next:")?;
    for (words, shows) in if traces.len() > 1 { together } else { alone } {
        writeln!(out, "  {}{COMMENT}{shows}", command(words))?;
    }
    Ok(())
}

fn exact_words(profile: &Profile) -> Vec<String> {
    let mut words: Vec<String> = ["record", "--exact"].map(str::to_owned).into();
    let has_ended = profile.end().is_some_and(|end| {
        matches!(end.reason, EndReason::TargetExited | EndReason::TargetExecuted)
    });
    match profile.start() {
        Some(start) if has_ended && !start.command.is_empty() => {
            words.push("--".to_owned());
            words.extend(start.command.iter().cloned());
        }
        start => {
            let pid = start.map_or("PID".to_owned(), |start| start.pid.to_string());
            words.extend(["-d".to_owned(), "20s".to_owned(), "-p".to_owned(), pid]);
        }
    }
    words
}
