//! `memspy lines`: a table of lines.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::analysis::{LineOrder, LineRanking, LineTable, Profile, RankTable, lines};
use crate::model::StatKey;
use crate::render::{self, LinesOptions, OutputError, RankLines};

use super::args::{LinesArgs, LinesBy, LinesFormat, SortArg};
use super::device_choice::device;
use super::output::into_io;
use super::ranks::{self, RankTrace};
use super::{filtered_profile, modules, output, replay};

pub(super) fn run(args: &LinesArgs) -> Result<()> {
    output::check_requested(args.table.output.as_deref(), args.force)?;
    if args.by == LinesBy::Module {
        return modules::lines(args);
    }
    if args.depth.is_some() {
        bail!("--depth is for --by module");
    }
    if args.table.format() == LinesFormat::Text {
        replay::warn_in_answer(args.table.output.as_deref());
    }
    let mut ranks = ranks::read(&args.traces, &|| filtered_profile(&args.stacks))?;
    if args.max_peak && ranks.len() > 1 {
        ranks = vec![ranks::highest(ranks, args.table.gpu)?];
    }
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(args.table.output.as_deref(), start, PathBuf::from("-"))?;
    let columns = match args.columns.is_empty() {
        // Each column becomes five: show only the most important.
        true if args.merge => lines::default_columns().into_iter().take(1).collect(),
        true => lines::default_columns(),
        false => args.columns.clone(),
    };
    let options = options(args, &path);
    let format = args.table.format();
    // Chosen columns, and lines without memory, need the source.
    let is_listing = args.source || args.all_lines || !args.columns.is_empty();
    if ranks.len() > 1 && format != LinesFormat::Text && !args.merge {
        bail!("CSV and JSON hold one table: use --merge or --max-peak, or name one trace");
    }
    let limits: Vec<Option<u64>> = ranks.iter().map(|rank| rank.profile.memory_limit()).collect();
    let tables = line_tables(args, &ranks, &columns)?;
    if format == LinesFormat::Text && !is_listing {
        return write_ranking(args, &path, &ranks, &tables);
    }
    let options = LinesOptions { limit: args.limit.filter(|limit| *limit > 0), ..options };
    if args.merge {
        let all: Vec<RankLines<'_>> = ranks
            .iter()
            .zip(&tables)
            .map(|(rank, table)| RankLines { label: &rank.label, profile: &rank.profile, table })
            .collect();
        let write = |out: &mut dyn std::io::Write| {
            write_together(format, out, &all, &options).map_err(into_io)
        };
        return output::report(&path, args.force, output::bounded(limits, write));
    }
    let write = |out: &mut dyn std::io::Write| {
        for (rank, table) in ranks.iter().zip(&tables) {
            if ranks.len() > 1 {
                writeln!(out, "== {} ==", rank.label)?;
            }
            write_one(format, out, &rank.profile, table, &options).map_err(into_io)?;
            if ranks.len() > 1 {
                writeln!(out)?;
            }
        }
        Ok(())
    };
    output::report(&path, args.force, output::bounded(limits, write))
}

fn line_tables(
    args: &LinesArgs,
    ranks: &[RankTrace],
    columns: &[StatKey],
) -> Result<Vec<LineTable>> {
    let mut tables = Vec::new();
    for RankTrace { label, profile, .. } in ranks {
        let table = device(profile, args.table.gpu)
            .and_then(|gpu| Ok(lines::table(profile, gpu, columns)?))
            .map(|table| if args.all_lines { table.with_all_lines(profile) } else { table });
        tables.push(if ranks.len() > 1 { table.with_context(|| label.clone())? } else { table? });
    }
    Ok(tables)
}

fn write_ranking(
    args: &LinesArgs,
    path: &std::path::Path,
    ranks: &[RankTrace],
    tables: &[LineTable],
) -> Result<()> {
    let order = match args.sort {
        SortArg::Live => LineOrder::Live,
        SortArg::Peak => LineOrder::Peak,
        SortArg::Allocated => LineOrder::Allocated,
        SortArg::Samples => LineOrder::Samples,
    };
    let rows = args.limit.unwrap_or(render::RANKED_ROWS);
    let options =
        LinesOptions { limit: Some(rows).filter(|rows| *rows > 0), ..options(args, path) };
    let mut rankings: Vec<LineRanking> = Vec::new();
    for (rank, table) in ranks.iter().zip(tables) {
        let mut ranking = lines::ranking(&rank.profile, table, args.all)?;
        ranking.sort(order);
        rankings.push(ranking);
    }
    let write = |out: &mut dyn std::io::Write| {
        let all = ranks.iter().zip(tables).zip(&rankings);
        if args.merge {
            let all: Vec<_> = all
                .map(|((rank, table), ranking)| {
                    (RankLines { label: &rank.label, profile: &rank.profile, table }, ranking)
                })
                .collect();
            return render::ranked_rank_lines_text(out, &all, order, &options).map_err(into_io);
        }
        for ((rank, table), ranking) in all {
            if ranks.len() > 1 {
                writeln!(out, "== {} ==", rank.label)?;
            }
            render::ranked_lines_text(out, &rank.profile, table, ranking, order, &options)
                .map_err(into_io)?;
            if ranks.len() > 1 {
                writeln!(out)?;
            }
        }
        Ok(())
    };
    output::report(path, args.force, output::fitted(path, true, write))
}

fn write_together(
    format: LinesFormat,
    out: &mut dyn std::io::Write,
    ranks: &[RankLines<'_>],
    options: &LinesOptions,
) -> Result<(), OutputError> {
    let tables: Vec<_> = ranks.iter().map(|rank| (rank.profile, rank.table)).collect();
    let table = RankTable::new(&tables);
    match format {
        LinesFormat::Text => render::rank_lines_text(out, ranks, &table, options),
        LinesFormat::Csv => render::rank_lines_csv(out, ranks, &table, &options.functions),
        LinesFormat::Json => render::rank_lines_json(out, ranks, &table, &options.functions),
    }
}

fn write_one(
    format: LinesFormat,
    out: &mut dyn std::io::Write,
    profile: &Profile,
    table: &LineTable,
    options: &LinesOptions,
) -> Result<(), OutputError> {
    match format {
        LinesFormat::Text => render::lines_text(out, profile, table, options),
        LinesFormat::Csv => render::lines_csv(out, profile, table, &options.functions),
        LinesFormat::Json => render::lines_json(out, profile, table, &options.functions),
    }
}

fn options(args: &LinesArgs, path: &std::path::Path) -> LinesOptions {
    LinesOptions {
        width: if path.as_os_str() == "-" { output::width() } else { None },
        functions: args.functions.clone(),
        limit: None,
        full_filenames: args.stacks.full_filenames,
    }
}
