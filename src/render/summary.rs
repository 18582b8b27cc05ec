//! The lines printed when a recording is over.

use std::io::Write;

use super::RenderError;
use super::header::{end_text, gpu_line, sampling_line};
use super::size::bytes;
use crate::analysis::Profile;

/// Writes what was recorded and what to do next. `file` is the trace as the user named it, `size` its
/// length in bytes.
pub fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    file: &str,
    size: u64,
) -> Result<(), RenderError> {
    writeln!(out, "Recorded to {file} ({}): {}", bytes(size), end_text(profile))?;
    writeln!(out, "  {}", sampling_line(profile))?;
    let mut any = false;
    for gpu in profile.gpus() {
        any = true;
        writeln!(out, "  {}", gpu_line(profile, gpu))?;
    }
    if !any {
        writeln!(out, "  no GPU memory of PyTorch was seen")?;
    }
    for warning in profile.warnings() {
        writeln!(out, "  warning: {warning}")?;
    }
    if !any {
        return Ok(());
    }
    writeln!(out, "Next:")?;
    writeln!(out, "  memspy flame {file}    which stacks hold the memory at its peak")?;
    writeln!(out, "  memspy lines {file}    the peak reached on every line")?;
    Ok(())
}
