//! `memspy export -f parquet`: a folder of tables.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::analysis::{BlocksBuilder, CounterSamples, Moment, MomentBlocks, Profile};
use crate::files::{PlaceError, create_folder};
use crate::render::{ExportedTable, TableExport};

use crate::cli::args::ExportArgs;
use crate::cli::device_choice::device;
use crate::cli::export::{moment_with_addresses, wanted};
use crate::cli::ranks::RankTrace;
use crate::cli::replay::{self, StoredRecording};
use crate::cli::{eprint_line, output};

pub(super) fn write(args: &ExportArgs, ranks: &[RankTrace]) -> Result<()> {
    let Some(folder) = args.output.as_deref().filter(|folder| *folder != Path::new("-")) else {
        bail!("-f parquet writes several files: name a folder for them with -o");
    };
    if args.gpu.is_some() {
        bail!("--gpu is for formats that show one moment: the tables have a column 'device'");
    }
    let mut names: Vec<String> = Vec::new();
    for rank in ranks {
        let stem = rank.trace.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = stem.unwrap_or_default();
        if names.contains(&name) {
            bail!("two traces are called {name}: the files of their tables would be the same");
        }
        names.push(name);
    }
    let path = |table: ExportedTable, name: &str| -> PathBuf {
        folder.join(table.name()).join(format!("{name}.parquet"))
    };
    make_folder(folder)?;
    for table in ExportedTable::ALL {
        make_folder(&folder.join(table.name()))?;
        for name in &names {
            output::check(&path(table, name), args.force)?;
        }
    }
    for (rank, name) in ranks.iter().zip(&names) {
        one(args, rank, &|table| path(table, name)).with_context(|| rank.label.clone())?;
    }
    eprint_line(&format!(
        "wrote the tables of {} recordings into {}: events, samples, blocks, stacks, frames",
        ranks.len(),
        folder.display()
    ));
    Ok(())
}

/// Creates a folder and its parents, for this user only. Refuses a link.
fn make_folder(path: &Path) -> Result<()> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if is_link {
        bail!(
            "cannot write into {}: it is a symbolic link; name another folder with -o",
            path.display()
        );
    }
    if path.is_dir() {
        return Ok(());
    }
    let outer = path.parent().filter(|outer| !outer.as_os_str().is_empty());
    if let Some(outer) = outer.filter(|outer| !outer.is_dir()) {
        make_folder(outer)?;
    }
    match create_folder(path) {
        // Another export created it meanwhile.
        Err(PlaceError::Exists(_)) if path.is_dir() => Ok(()),
        made => made.with_context(|| format!("cannot make the folder {}", path.display())),
    }
}

fn one(args: &ExportArgs, rank: &RankTrace, path: &dyn Fn(ExportedTable) -> PathBuf) -> Result<()> {
    let profile = &rank.profile;
    let device = device(profile, None)?;
    let recording = StoredRecording::trace(&rank.trace)?;
    let bytes = std::fs::metadata(&rank.trace).map_or(0, |file| file.len());
    let blocks = |until| -> Result<MomentBlocks> {
        let mut empty = Profile::new().without_line_statistics();
        replay::limit(&mut empty, bytes);
        let mut builder = BlocksBuilder::new(empty, device, until);
        recording.reread(&mut builder)?;
        Ok(builder.build())
    };
    let whole = blocks(None)?;
    let wanted = wanted(args);
    let of_peak = match wanted {
        Moment::Peak => {
            let time = moment_with_addresses(profile, device, wanted)?.snapshot.time;
            Some((blocks(Some(time))?, time.seconds()))
        }
        Moment::End => None,
    };
    let (at, seconds) = match &of_peak {
        Some((blocks, seconds)) => (blocks, *seconds),
        None => (&whole, profile.duration().seconds()),
    };
    let mut counters = CounterSamples::default();
    recording.reread(&mut counters)?;
    let export = TableExport::new(profile, &whole, at, (wanted, seconds), &counters.samples);
    if profile.exact().is_none() {
        eprint_line(&format!(
            "{}: a sampled recording has no events: that table is empty (a recording with --exact has them)",
            rank.label
        ));
    }
    for table in ExportedTable::ALL {
        output::write(&path(table), args.force, |out| export.write(table, out))?;
    }
    Ok(())
}
