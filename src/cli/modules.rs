//! `--by module` of `lines` and `flame`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::analysis::modules::{self, ModuleBytes};
use crate::analysis::{Moment, Profile};
use crate::model::CudaIndex;
use crate::render::{self, ModulesOptions};

use super::args::{LinesArgs, LinesFormat, SortArg};
use super::device_choice::device;
use super::filtered_profile;
use super::output::{self, into_io};
use super::ranks::{self, RankTrace};

const NO_MODULES: &str = "the recording tells no modules: record with --exact (CPython 3.11 or newer, as root), or \
                          with --owners for parameters, gradients and optimizer state";

/// Bytes by module, which the recording must tell.
pub(super) fn live(profile: &Profile, device: CudaIndex, moment: Moment) -> Result<ModuleBytes> {
    match modules::live(profile, device, moment)? {
        Some(live) => Ok(live),
        None => bail!(NO_MODULES),
    }
}

pub(super) fn allocated(profile: &Profile, device: CudaIndex) -> Result<ModuleBytes> {
    match modules::allocated(profile, device) {
        Some(allocated) => Ok(allocated),
        None => bail!(
            "all that was allocated is known by module only in exact recordings (record with --exact; CPython 3.11 \
             or newer)"
        ),
    }
}

pub(super) fn lines(args: &LinesArgs) -> Result<()> {
    let of_lines = [
        (args.table.format() != LinesFormat::Text, "--format and --json"),
        (args.merge, "--merge"),
        (args.source, "--source"),
        (args.all, "--all"),
        (args.all_lines, "--all-lines"),
        (!args.functions.is_empty(), "--only"),
        (!args.columns.is_empty(), "--columns"),
        (args.sort != SortArg::Live, "--sort"),
    ];
    if let Some((_, option)) = of_lines.iter().find(|(given, _)| *given) {
        bail!("--by module prints one table of modules: leave out {option}");
    }
    let mut ranks =
        ranks::read(&args.traces, &|| filtered_profile(&args.stacks).without_line_statistics())?;
    if args.max_peak && ranks.len() > 1 {
        ranks = vec![ranks::highest(ranks, args.table.gpu)?];
    }
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(args.table.output.as_deref(), start, PathBuf::from("-"))?;
    write(args, &path, &ranks)
}

fn write(args: &LinesArgs, path: &Path, ranks: &[RankTrace]) -> Result<()> {
    let rows = args.limit.unwrap_or(render::RANKED_ROWS);
    let options = ModulesOptions {
        depth: args.depth.map(usize::from),
        limit: Some(rows).filter(|rows| *rows > 0),
        width: if path == Path::new("-") { output::width() } else { None },
    };
    let mut tables = Vec::new();
    for rank in ranks {
        let gpu = device(&rank.profile, args.table.gpu)?;
        let live = live(&rank.profile, gpu, Moment::Peak)?;
        tables.push((rank, gpu, live, modules::allocated(&rank.profile, gpu)));
    }
    let write = |out: &mut dyn std::io::Write| {
        for (rank, gpu, live, allocated) in &tables {
            if ranks.len() > 1 {
                writeln!(out, "== {} ==", rank.label)?;
            }
            let at = (*gpu, Moment::Peak);
            render::modules_text(out, &rank.profile, at, live, allocated.as_ref(), options)
                .map_err(into_io)?;
        }
        Ok(())
    };
    output::report(path, args.force, output::fitted(path, true, write))
}
