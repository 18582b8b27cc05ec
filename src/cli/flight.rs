//! `memspy oom-report`, `memspy join`, and the report of an ended recording.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use crate::analysis::{OomBuilder, Profile, TriggerCondition, TriggerWatch};
use crate::flight::join_segments;
use crate::render;
use crate::trace;

use super::args::{JoinArgs, OomArgs};
use super::output::into_io;
use super::replay::{self, StoredRecording};
use super::{eprint_line, filtered_profile, output};

pub(super) fn warn(warning: String) {
    eprint_line(&format!("warning: {warning}"));
}

pub(super) fn write_oom_report(reports: &mut OomBuilder, path: &Path, force: bool) -> Result<()> {
    let report = reports.report();
    let write = |out: &mut dyn std::io::Write| {
        render::oom_report_text(out, reports.profile(), &report).map_err(into_io)
    };
    output::write(path, force, output::fitted(path, true, write))
}

pub(super) fn oom_report(args: &OomArgs) -> Result<()> {
    output::check_requested(args.output.as_deref(), args.force)?;
    replay::warn_in_answer(args.output.as_deref());
    let profile = filtered_profile(&args.stacks).without_line_statistics();
    let reports = OomBuilder::new(profile);
    let reports = match args.until.is_empty() {
        true => reports.with_trigger(TriggerWatch::new(vec!["oom".parse::<TriggerCondition>()?])),
        false => reports.only(TriggerWatch::new(args.until.clone())),
    };
    let mut reports = StoredRecording::trace_or_ring(&args.trace).oom_report(reports)?;
    let start = reports.profile().start();
    let path = output::of_report(args.output.as_deref(), start, PathBuf::from("-"))?;
    write_oom_report(&mut reports, &path, args.force)?;
    output::wrote(&path);
    Ok(())
}

pub(super) fn join(args: &JoinArgs) -> Result<()> {
    output::check_requested(args.output.as_deref(), args.force)?;
    let segments = replay::found(&args.ring)?;
    // A first pass finds what the file name needs.
    let bytes = segments.iter().filter_map(|segment| std::fs::metadata(segment).ok());
    let bytes = bytes.map(|file| file.len()).sum();
    let empty = || {
        let mut profile = Profile::new().without_line_statistics();
        replay::limit(&mut profile, bytes);
        profile
    };
    let path = match &args.output {
        Some(path) if path.to_string_lossy().contains('%') => {
            let mut profile = empty();
            trace::join(&segments, &mut profile)?;
            output::expand(path, profile.start().into())?
        }
        Some(path) => path.clone(),
        None => args.ring.with_extension("bin"),
    };
    output::check(&path, args.force)?;
    let creation = output::creation(args.force);
    let reported = join_segments(&segments, &path, creation, empty(), None, &mut warn)?;
    if reported.reports.profile().start().is_none() {
        let _ = std::fs::remove_file(&path);
        return Err(anyhow!("the segments in {} have no whole block", args.ring.display()));
    }
    let (mut err, profile) = (output::notes(), reported.reports.profile());
    let path = path.display().to_string();
    render::summary(&mut err, profile, &path, reported.bytes)?;
    render::next_steps(&mut err, profile, &path)?;
    Ok(())
}
