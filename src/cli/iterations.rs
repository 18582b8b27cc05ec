//! `memspy iterations`: a recording as a table of training iterations.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::analysis::{IterationClock, MarkerLine, PeriodFinder, Profile};
use crate::render;

use super::args::{Iterations as Words, LinesFormat};
use super::flame::{device, into_io};
use super::{output, replay, say};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let (profile, path) = profile(words)?;
    let device = device(&profile, words.gpu)?;
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

/// The recording by the clock asked for, else by the first that it has: steps, then the period of its counters.
fn profile(words: &Words) -> Result<(Profile, PathBuf)> {
    let read = |clock: IterationClock| {
        replay::for_report(
            &words.trace,
            Profile::new().with_iterations(clock, words.parameters),
            words.output.as_deref(),
            PathBuf::from("-"),
        )
    };
    if let Some(marker) = &words.marker {
        let read = read(IterationClock::Marker(marker.clone()))?;
        if read.0.iterations().0.is_empty() {
            let MarkerLine { file, line } = marker;
            bail!(
                "no thread was seen to come to {file}:{line} twice: name a line that calls something slower than the time \
                 between two samples, as 'memspy lines' lists them, or record with a higher rate (-r)"
            );
        }
        return Ok(read);
    }
    if !words.period {
        let read = read(IterationClock::Steps)?;
        if !read.0.iterations().0.is_empty() {
            return Ok(read);
        }
    }
    let mut finder = PeriodFinder::default();
    replay::replay(&words.trace, &mut finder)?;
    let read = match finder.period() {
        Some(period) => Some(read(IterationClock::Period(period))?),
        None => None,
    };
    match read {
        Some(read) if !read.0.iterations().0.is_empty() => Ok(read),
        _ => bail!(
            "the recording has no whole training iteration: nothing counts its steps, and its counters do not repeat \
             themselves. Record two steps or more with --iter-var NAME (the loop's variable) or with --holders (the step \
             counter of Adam, AdamW and others, not fused or capturable), or name a line with --marker FILE:LINE"
        ),
    }
}
