//! Reading a trace into a profile, with progress on a terminal and warnings about what is wrong with it.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::analysis::{Profile, Verdicts};
use crate::model::RecordSink;
use crate::trace::{Reader, Summary, segments};

/// Shorter traces are read before a bar could be seen.
const WORTH_A_BAR: u64 = 16 << 20;

/// Reads the trace at `path` into the empty `profile`.
pub(super) fn profile(path: &Path, mut profile: Profile) -> Result<Profile> {
    let warnings = replay(path, &mut profile)?;
    profile.finish();
    for warning in warnings {
        profile.warn(warning);
    }
    Ok(profile)
}

/// Reads the trace at `path` into the empty `verdicts`.
pub(super) fn into_verdicts(path: &Path, mut verdicts: Verdicts) -> Result<Verdicts> {
    let warnings = replay(path, &mut verdicts)?;
    let profile = verdicts.profile_mut();
    profile.finish();
    for warning in warnings {
        profile.warn(warning);
    }
    Ok(verdicts)
}

/// Passes the records of the trace at `path` to `sink`, with progress on a terminal; gives what is wrong with it.
pub(super) fn replay(path: &Path, sink: &mut dyn RecordSink) -> Result<Vec<String>> {
    if path.is_dir() && !segments(path)?.is_empty() {
        anyhow::bail!(
            "{0} is a folder of segments that 'record --keep' left; 'memspy join {0} -o FILE' makes one trace of them",
            path.display()
        );
    }
    let mut reader = Reader::open(path)?;
    let bar = bar(reader.length().unwrap_or(0));
    let summary = reader.replay_with(sink, &mut |progress| {
        bar.set_position(progress.bytes);
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    if summary.records == 0 {
        anyhow::bail!(
            "{} has no whole block: the recording ended before its first second was written",
            path.display()
        );
    }
    Ok(warnings(&summary))
}

/// What a report has to say about the state of its trace.
fn warnings(summary: &Summary) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(damage) = &summary.first_damage {
        warnings.push(format!(
            "the trace is damaged in {} places, first at byte {} ({}): {} blocks with {} records are lost, {} more records use what was lost",
            summary.damaged_places,
            damage.offset,
            damage.why,
            summary.lost_blocks,
            summary.lost_records,
            summary.dropped_records
        ));
    }
    if summary.unknown_tags > 0 {
        warnings.push(format!(
            "{} records are of kinds this memspy does not know: a later memspy wrote them",
            summary.unknown_tags
        ));
    }
    warnings
}

fn bar(length: u64) -> ProgressBar {
    if length < WORTH_A_BAR || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(
        "{bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left",
    ) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
