//! `memspy diff`: two traces side by side, line by line.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::analysis::{ComparedMoment, FoldedProfile, Profile};
use crate::render;

use super::args::DiffArgs;
use super::export::moment;
use super::flame::{device, into_io};
use super::output;
use super::replay::StoredRecording;

/// Runs it.
pub(super) fn run(args: &DiffArgs) -> Result<()> {
    let (before, folded_before) = read(args, &args.before)?;
    let (after, folded_after) = read(args, &args.after)?;
    let path = output::of_report(args.output.as_deref(), after.start(), PathBuf::from("-"))?;
    let before_of = ComparedMoment { profile: &before, folded: &folded_before };
    let after_of = ComparedMoment { profile: &after, folded: &folded_after };
    let names = [&args.before, &args.after].map(|path| path.display().to_string());
    let limit = Some(args.limit).filter(|limit| *limit > 0);
    let write = |out: &mut dyn Write| {
        let (before, after) = ((&*names[0], before_of), (&*names[1], after_of));
        render::line_diff_text(out, before, after, limit, args.full_filenames).map_err(into_io)
    };
    let limits = [before.memory_limit(), after.memory_limit()];
    output::report(&path, args.force, output::bounded(limits, write))
}

fn read(args: &DiffArgs, trace: &Path) -> Result<(Profile, FoldedProfile)> {
    let empty = Profile::new().without_line_statistics();
    let profile = StoredRecording::trace(trace)?.profile(empty)?;
    let folded = device(&profile, args.gpu)
        .and_then(|device| moment(&profile, device, args.at.into()))
        .with_context(|| trace.display().to_string())?;
    Ok((profile, folded))
}
