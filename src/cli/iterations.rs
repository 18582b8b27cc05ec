//! `memspy iterations`: a table of training iterations.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::analysis::{IterationClock, MarkerLine, PeriodFinder, Profile};
use crate::render::{self, in_sentence, suggestion};

use super::args::{IterationsArgs, LinesFormat};
use super::device_choice::device;
use super::output;
use super::output::into_io;
use super::replay::StoredRecording;

pub(super) fn run(args: &IterationsArgs) -> Result<()> {
    output::check_requested(args.table.output.as_deref(), args.force)?;
    let profile = profile(args)?;
    let path =
        output::of_report(args.table.output.as_deref(), profile.start(), PathBuf::from("-"))?;
    let device = device(&profile, args.table.gpu)?;
    let format = args.table.format();
    let write = |out: &mut dyn std::io::Write| {
        match format {
            LinesFormat::Text => {
                render::iterations_text(out, &profile, device, args.limit, args.parameters)
            }
            LinesFormat::Csv => render::iterations_csv(out, &profile, device),
            LinesFormat::Json => render::iterations_json(out, &profile, device),
        }
        .map_err(into_io)
    };
    let is_text = matches!(format, LinesFormat::Text);
    let write = output::bounded([profile.memory_limit()], write);
    output::report(&path, args.force, output::fitted(&path, is_text, write))
}

/// The requested clock, else the first available: steps, then the counters' period.
fn profile(args: &IterationsArgs) -> Result<Profile> {
    let recording = StoredRecording::trace(&args.trace)?;
    let read = |clock: IterationClock| {
        let profile = Profile::new().without_line_statistics();
        recording.profile(profile.with_iterations(clock, args.parameters))
    };
    let has_none = |profile: &Profile| profile.iterations().0.is_empty();
    if let Some(marker) = &args.marker {
        let read = read(IterationClock::Marker(marker.clone()))?;
        if has_none(&read) {
            let MarkerLine { file, line } = marker;
            bail!(
                "no thread was seen at {file}:{line} twice: name a line that calls something slower than the time \
                 between two samples, as {} lists them, or record with a higher rate (-r)",
                in_sentence(&suggestion(["lines", &args.trace.to_string_lossy()]))
            );
        }
        return Ok(read);
    }
    if !args.period {
        let read = read(IterationClock::Steps)?;
        if !has_none(&read) {
            return Ok(read);
        }
    }
    let mut finder = PeriodFinder::default();
    recording.replay(&mut finder)?;
    let read = finder.period().map(|period| read(IterationClock::Period(period))).transpose()?;
    match read {
        Some(read) if !has_none(&read) => Ok(read),
        _ => bail!(
            "the recording has no whole training iteration: nothing counts its steps, and its counters do not repeat \
             themselves. Record two steps or more with --iter-var NAME (the loop's variable) or with --owners (the step \
             counter of Adam, AdamW and others, where it is not on the GPU as those of fused and capturable ones are; transformers' \
             Trainer, a learning-rate scheduler), or name a line with --marker FILE:LINE"
        ),
    }
}
