//! `memspy iterations`: a recording as a table of training iterations.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::analysis::Profile;
use crate::render;

use super::args::{Iterations as Words, LinesFormat};
use super::flame::{device, into_io};
use super::{output, replay, say};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let (profile, path) = replay::for_report(
        &words.trace,
        Profile::new(),
        words.output.as_deref(),
        PathBuf::from("-"),
    )?;
    let device = device(&profile, words.gpu)?;
    if profile.iterations().0.is_empty() {
        bail!(
            "the recording has no whole training iteration: record with --holders a job whose optimizer counts its \
             steps in its own memory (Adam, AdamW and others, not fused or capturable), for two steps or more"
        );
    }
    let format = if words.json { LinesFormat::Json } else { words.format };
    output::write(&path, words.force, |out| {
        match format {
            LinesFormat::Text => render::iterations_text(out, &profile, device, words.limit),
            LinesFormat::Csv => render::iterations_csv(out, &profile, device),
            LinesFormat::Json => render::iterations_json(out, &profile, device),
        }
        .map_err(into_io)
    })?;
    if path.as_os_str() != "-" {
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}
