//! `memspy lines`: a trace as a table of lines.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::analysis::{LineTable, Profile, RankTable};
use crate::render::{self, LinesOptions, RankLines, RenderError};

use super::args::{Lines as Words, LinesFormat};
use super::flame::{device, into_io};
use super::ranks::{self, Rank};
use super::{charging, output};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let mut ranks = ranks::read(&words.traces, &|| charging(&words.stacks))?;
    if words.highest && ranks.len() > 1 {
        ranks = vec![ranks::highest(ranks, words.table.gpu)?];
    }
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(words.table.output.as_deref(), start, PathBuf::from("-"))?;
    let columns = match words.columns.is_empty() {
        // Each becomes five: the one that matters most.
        true if words.together => Profile::default_columns().into_iter().take(1).collect(),
        true => Profile::default_columns(),
        false => words.columns.clone(),
    };
    let options = options(words, &path);
    let format = words.table.format();
    if ranks.len() > 1 && format != LinesFormat::Text && !words.together {
        bail!("CSV and JSON are of one table: use --together or --highest, or name one trace");
    }
    let mut tables = Vec::new();
    for Rank { label, profile, .. } in &ranks {
        let table = device(profile, words.table.gpu)
            .and_then(|gpu| Ok(profile.lines(gpu, &columns)?))
            .map(|table| if words.all_lines { table.with_all_lines(profile) } else { table });
        tables.push(if ranks.len() > 1 { table.with_context(|| label.clone())? } else { table? });
    }
    if words.together {
        let all: Vec<RankLines<'_>> = ranks
            .iter()
            .zip(&tables)
            .map(|(rank, table)| RankLines { label: &rank.label, profile: &rank.profile, table })
            .collect();
        return output::report(&path, words.force, |out| {
            write_together(format, out, &all, &options).map_err(into_io)
        });
    }
    output::report(&path, words.force, |out| {
        for (rank, table) in ranks.iter().zip(&tables) {
            if ranks.len() > 1 {
                writeln!(out, "== {} ==", rank.label)?;
            }
            write(format, out, &rank.profile, table, &options).map_err(into_io)?;
            if ranks.len() > 1 {
                writeln!(out)?;
            }
        }
        Ok(())
    })
}

fn write_together(
    format: LinesFormat,
    out: &mut dyn std::io::Write,
    ranks: &[RankLines<'_>],
    options: &LinesOptions,
) -> Result<(), RenderError> {
    let tables: Vec<_> = ranks.iter().map(|rank| (rank.profile, rank.table)).collect();
    let table = RankTable::of(&tables);
    match format {
        LinesFormat::Text => render::rank_lines_text(out, ranks, &table, options),
        LinesFormat::Csv => render::rank_lines_csv(out, ranks, &table, &options.functions),
        LinesFormat::Json => render::rank_lines_json(out, ranks, &table, &options.functions),
    }
}

fn write(
    format: LinesFormat,
    out: &mut dyn std::io::Write,
    profile: &Profile,
    table: &LineTable,
    options: &LinesOptions,
) -> Result<(), RenderError> {
    match format {
        LinesFormat::Text => render::lines_text(out, profile, table, options),
        LinesFormat::Csv => render::lines_csv(out, profile, table, &options.functions),
        LinesFormat::Json => render::lines_json(out, profile, table, &options.functions),
    }
}

fn options(words: &Words, path: &std::path::Path) -> LinesOptions {
    LinesOptions {
        width: if path.as_os_str() == "-" { output::width() } else { None },
        functions: words.functions.clone(),
        limit: None,
        full_filenames: words.stacks.full_filenames,
    }
}
