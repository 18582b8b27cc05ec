//! The ranked lines of all ranks, as text.

use std::collections::BTreeMap;
use std::io::Write;

use super::ranked::{filter_text, headline, name_matches, peak_text, place};
use super::ranks::{RankLines, balance};
use super::text::LinesOptions;
use super::text_table::TextTable;
use crate::analysis::{LineOrder, LineRanking, RankedLine};
use crate::render::shared::{
    EscapeGuard, OutputError, count, one_line, sampling_line, short_bytes, short_signed_bytes,
    warnings, wrapped,
};

/// File, first line and name of the function, line.
type LineKey<'a> = (&'a str, u32, &'a str, u32);
type RankRows<'a> = Vec<(usize, &'a RankedLine)>;

/// Writes the lines by live bytes at each rank's peak.
pub fn ranked_rank_lines_text(
    out: &mut dyn Write,
    ranks: &[(RankLines<'_>, &LineRanking)],
    order: LineOrder,
    options: &LinesOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let all: Vec<RankLines<'_>> = ranks.iter().map(|(rank, _)| *rank).collect();
    for (rank, ranking) in ranks {
        write_rank(out, rank, ranking, options.width)?;
    }
    for line in wrapped(&balance(&all), options.width) {
        writeln!(out, "{line}")?;
    }
    let rows = rows(ranks, order, &options.functions);
    let shown = options.limit.unwrap_or(rows.len()).min(rows.len());
    let mut text = TextTable::new([
        "live,/sum",
        "live,/greatest",
        "live,/least",
        "/allocated",
        "peak in/line",
    ]);
    for found in rows.iter().take(shown) {
        let Some((rank, row)) = found.first() else { continue };
        let (place, source) = place(all[*rank].profile, row, options.full_filenames);
        text.push(cells(&all, found), place, source);
    }
    text.write(out, options.width)?;
    if rows.is_empty() {
        writeln!(
            out,
            "no line was seen allocating in any rank{}",
            filter_text(&options.functions)
        )?;
    }
    let hidden = match rows.len() - shown {
        0 => String::new(),
        hidden => format!("{} more lines: --limit 0; ", count(hidden as u64)),
    };
    let notes = [
        format!("{hidden}with source: --source; lines of libraries: --all."),
        "Live at each rank's peak, allocated by the line or library code that it called: sum, greatest and least \
         (with the rank in brackets). Peak in line: the greatest of a rank. ~: an estimate.".to_owned(),
    ];
    for line in notes.iter().flat_map(|note| wrapped(note, options.width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_rank(
    out: &mut dyn Write,
    rank: &RankLines<'_>,
    ranking: &LineRanking,
    width: Option<usize>,
) -> std::io::Result<()> {
    let text = headline(rank.profile, rank.table, ranking);
    for line in wrapped(&format!("{}: {text}", one_line(rank.label)), width) {
        writeln!(out, "{line}")?;
    }
    if rank.profile.exact().is_none() {
        writeln!(out, "  {}", sampling_line(rank.profile))?;
    }
    for warning in warnings(rank.profile) {
        writeln!(out, "  warning: {}", one_line(&warning))?;
    }
    Ok(())
}

fn rows<'a>(
    ranks: &'a [(RankLines<'_>, &LineRanking)],
    order: LineOrder,
    functions: &[String],
) -> Vec<RankRows<'a>> {
    let mut lines: BTreeMap<LineKey<'_>, RankRows<'a>> = BTreeMap::new();
    for (index, (rank, ranking)) in ranks.iter().enumerate() {
        for row in &ranking.rows {
            let function = rank.profile.stacks().get_function(row.frame.function);
            let Some(function) = function.filter(|f| name_matches(f, functions)) else {
                continue;
            };
            let key = (&*function.file, function.first_line, &*function.name, row.frame.line);
            lines.entry(key).or_default().push((index, row));
        }
    }
    let mut rows: Vec<RankRows<'a>> = lines.into_values().collect();
    let value = |row: &RankedLine| match order {
        LineOrder::Live => i128::from(row.live),
        LineOrder::Peak => row.peak.map_or(0, |peak| i128::from(peak.value)),
        LineOrder::Allocated => i128::from(row.allocated),
        LineOrder::Samples => i128::from(row.samples),
    };
    let sum = |rows: &RankRows<'_>| -> i128 { rows.iter().map(|r| value(r.1)).sum() };
    rows.retain(|rows| rows.iter().any(|(_, row)| row.live > 0 || row.allocated > 0));
    rows.sort_by_key(|rows| std::cmp::Reverse(sum(rows)));
    rows
}

/// Sum, greatest and least of live bytes; allocated bytes; greatest peak.
fn cells(all: &[RankLines<'_>], found: &RankRows<'_>) -> [String; 5] {
    let about = |rank: usize| if all[rank].table.estimated { "~" } else { "" };
    let live = |rank: usize| found.iter().find(|r| r.0 == rank).map_or(0, |r| r.1.live);
    let by_rank = || (0..all.len()).map(|rank| (live(rank), rank));
    let (greatest, least) = (by_rank().rev().max(), by_rank().min());
    let greatest = by_rank().find(|r| Some(r.0) == greatest.map(|g| g.0));
    let is_equal = greatest.map(|g| g.0) == least.map(|l| l.0);
    let one = |value: Option<(u64, usize)>| match value {
        Some((value, _)) if is_equal => format!("{}{} (all)", about(0), short_bytes(value)),
        Some((value, rank)) => {
            let label = all[rank].label;
            let short = label.strip_prefix("rank ").unwrap_or(label);
            format!("{}{} ({})", about(rank), short_bytes(value), one_line(short))
        }
        None => "?".to_owned(),
    };
    let is_estimated = all.iter().any(|rank| rank.table.estimated);
    let about = if is_estimated { "~" } else { "" };
    let live: u64 = found.iter().map(|r| r.1.live).sum();
    let allocated: i64 = found.iter().map(|r| r.1.allocated).sum();
    let peak = found.iter().filter_map(|r| r.1.peak).max_by_key(|peak| peak.value);
    let sum = format!("{about}{}", short_bytes(live));
    let allocated = format!("{about}{}", short_signed_bytes(allocated));
    [sum, one(greatest), one(least), allocated, peak_text(peak)]
}
