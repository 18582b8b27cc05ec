//! The end of `memspy record`: what was recorded.

use std::io::Write;

use crate::analysis::{Profile, peak};
use crate::model::EndReason;
use crate::render::shared::{
    COMMENT, EscapeGuard, OutputError, bytes, certainty_at_peak, end_text, events_line,
    exact_cost_warning, exact_notes as notes, file_word, following_line, gpu_line, job_cost_line,
    one_line, phase_at_peak, sampling_line, suggestion, warnings,
};

/// Writes what was recorded and what to do next.
pub fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    file: &str,
    size: u64,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let trace = file_word(file);
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
    let mut any = false;
    for gpu in profile.gpus() {
        any = true;
        writeln!(out, "  {}", gpu_line(profile, gpu))?;
        if let Some(certainty) = certainty_at_peak(profile, gpu) {
            writeln!(out, "  {certainty}")?;
        }
        if let Some(phase) = phase_at_peak(profile, gpu) {
            writeln!(out, "  {phase}")?;
        }
    }
    if !any {
        writeln!(out, "  no GPU memory of PyTorch was seen")?;
    }
    for warning in warnings(profile) {
        writeln!(out, "  warning: {}", one_line(&warning))?;
    }
    let costly = cost.filter(|_| profile.exact().is_some());
    if let Some(warning) = costly.as_ref().and_then(exact_cost_warning) {
        writeln!(out, "  warning: {warning}")?;
    }
    let has_driver_events = profile.exact().is_some_and(|exact| exact.events() > 0);
    if !any && !has_driver_events {
        return Ok(());
    }
    writeln!(out, "Next:")?;
    let mut next = |command: String, shows: &str| writeln!(out, "  {command}{COMMENT}{shows}");
    next(suggestion(["flame", &trace]), "which stacks hold the memory at its peak")?;
    if any {
        next(suggestion(["lines", &trace]), "the peak reached on every line")?;
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
