//! `memspy report`: all moments on one page.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};

use crate::analysis::report::{MemoryTrack, PageBuilder, RecordingSurvey, SurveyOptions};
use crate::analysis::{KnownMoment, Profile, peak};
use crate::model::{MemoryKind, Nanos};
use crate::render::{ReportOptions, ReportedRecording, report_page};

use super::args::ReportArgs;
use super::device_choice::device;
use super::output::into_io;
use super::ranks::{self, RankTrace};
use super::replay::{self, StoredRecording};
use super::{eprint_line, output};

/// Moments of all devices together.
const MOMENTS: usize = 400;
/// Minimum for each device.
const MIN_MOMENTS: usize = 40;

pub(super) fn run(args: &ReportArgs) -> Result<()> {
    output::check_requested(args.output.as_deref(), args.force)?;
    let ranks = ranks::read(&args.traces, &empty)?;
    let default = match &ranks[..] {
        [one] => one.trace.with_extension("html"),
        _ => ranks::default_output(&args.traces, "html"),
    };
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(args.output.as_deref(), start, default)?;
    output::check(&path, args.force)?;
    let mut read = Vec::new();
    let mut refused = None;
    for rank in &ranks {
        match survey(rank, ranks.len()) {
            Ok((survey, tracks)) => read.push((rank, survey, tracks)),
            // A rank without GPU memory does not hide others.
            Err(error) if ranks.len() > 1 => {
                eprint_line(&format!("warning: {}: {error:#}", rank.label));
                refused = Some(error.context(rank.label.clone()));
            }
            Err(error) => return Err(error),
        }
    }
    if let (true, Some(error)) = (read.is_empty(), refused) {
        return Err(error);
    }
    let recordings: Vec<ReportedRecording<'_>> = read
        .iter()
        .map(|(rank, survey, tracks)| ReportedRecording {
            label: &rank.label,
            profile: &rank.profile,
            survey,
            tracks,
        })
        .collect();
    let options = ReportOptions { title: args.title.clone(), redact: args.redact };
    let write = |out: &mut dyn Write| report_page(out, &recordings, &options).map_err(into_io);
    let limits = ranks.iter().map(|rank| rank.profile.memory_limit());
    output::report(&path, args.force, output::bounded(limits, write))
}

fn empty() -> Profile {
    Profile::new().without_line_statistics()
}

/// Reads a trace twice more: for its timeline, and for sites at chosen moments.
fn survey(rank: &RankTrace, ranks: usize) -> Result<(RecordingSurvey, Vec<MemoryTrack>)> {
    let profile = &rank.profile;
    device(profile, None)?;
    let exact = profile.exact();
    let peak = |gpu| Some((MemoryKind::Torch(gpu), peak::of(profile, gpu)?.moment?));
    let peaks: BTreeMap<MemoryKind, KnownMoment> = profile.gpus().filter_map(peak).collect();
    let from = profile.begins().unwrap_or_default();
    let devices = profile.gpus().count().max(1) * ranks;
    let mut wanted: Vec<(MemoryKind, Nanos)> =
        peaks.iter().map(|(kind, peak)| (*kind, peak.time)).collect();
    if exact.is_some() {
        let ends = profile.iterations().0.iter().map(|iteration| iteration.to);
        let every = profile.iterations().0.len().div_ceil(MIN_MOMENTS).max(1);
        for time in ends.step_by(every) {
            wanted.extend(peaks.keys().map(|kind| (*kind, time)));
        }
    }
    let mut survey = RecordingSurvey::new(SurveyOptions {
        from,
        to: profile.duration(),
        is_exact: exact.is_some(),
        moments: (MOMENTS / devices).max(MIN_MOMENTS),
        wanted,
    });
    let trace = StoredRecording::trace(&rank.trace)?;
    trace.reread(&mut survey)?;
    let moments = survey.moments();
    let mut again = empty();
    let bytes = std::fs::metadata(&rank.trace).map_or(0, |file| file.len());
    replay::limit(&mut again, bytes);
    let mut builder = PageBuilder::new(again, profile.duration(), &moments, peaks);
    trace.reread(&mut builder)?;
    let (_, tracks) = builder.build();
    let tracks: Vec<MemoryTrack> =
        tracks.into_iter().filter(|track| !track.moments.is_empty()).collect();
    if tracks.is_empty() {
        Err(anyhow::anyhow!(
            "no snapshot of the allocator was recorded, so it is not known what made up the memory at any moment"
        ))
        .context("cannot make a report")
    } else {
        Ok((survey, tracks))
    }
}
