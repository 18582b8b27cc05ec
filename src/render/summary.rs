//! The lines printed when a recording is over.

use std::io::Write;

use super::RenderError;
use super::certainty::certainty_at_peak;
use super::escape::EscapeGuard;
use super::exact::{events_line, notes};
use super::header::{end_text, following_line, gpu_line, sampling_line};
use super::label::one_line;
use super::size::bytes;
use super::warnings::warnings;
use crate::analysis::Profile;

/// Writes what was recorded and what to do next. `file` is the trace as the user named it, `size` its
/// length in bytes.
pub fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    file: &str,
    size: u64,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    let file = one_line(file);
    writeln!(out, "Recorded to {file} ({}): {}", bytes(size), end_text(profile))?;
    match profile.exact() {
        Some(exact) => {
            writeln!(out, "  {}", events_line(profile, exact, profile.main_gpu()))?;
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
    let mut any = false;
    for gpu in profile.gpus() {
        any = true;
        writeln!(out, "  {}", gpu_line(profile, gpu))?;
        if let Some(certainty) = certainty_at_peak(profile, gpu) {
            writeln!(out, "  {certainty}")?;
        }
    }
    if !any {
        writeln!(out, "  no GPU memory of PyTorch was seen")?;
    }
    for warning in warnings(profile) {
        writeln!(out, "  warning: {}", one_line(&warning))?;
    }
    let has_driver_events = profile.exact().is_some_and(|exact| exact.events() > 0);
    if !any && !has_driver_events {
        return Ok(());
    }
    writeln!(out, "Next:")?;
    writeln!(out, "  memspy flame {file}    which stacks hold the memory at its peak")?;
    if any {
        writeln!(out, "  memspy lines {file}    the peak reached on every line")?;
        let is_guessed = match profile.exact() {
            Some(exact) => exact.stacks_are_guessed(),
            None => profile.end().is_none_or(|end| end.totals.follow.is_none()),
        };
        if is_guessed {
            writeln!(
                out,
                "  memspy record --exact    as root: the line of each allocation, without a guess"
            )?;
        }
    }
    Ok(())
}
