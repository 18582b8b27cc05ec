//! The table of lines as text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use crate::analysis::{
    BoundedValue, LineCell, LineFunction, LineRow, LineTable, Profile, UnknownReason,
};
use crate::model::{Function, Metric, Pool, SourceText, StatField, StatKey};
use crate::render::shared::{
    EscapeGuard, FrameLabels, OutputError, bytes, count, header, line_notes, one_line, scaled,
    signed_bytes,
};

/// What the table shows.
#[derive(Debug, Clone, Default)]
pub struct LinesOptions {
    /// Characters per line; `None` cuts nothing.
    pub width: Option<usize>,
    /// Functions whose name or file contains one of these; all if empty.
    pub functions: Vec<String>,
    /// Most functions.
    pub limit: Option<usize>,
    /// Full paths of files.
    pub full_filenames: bool,
}

const BAR: usize = 8;
const MIN_SOURCE_WIDTH: usize = 24;
/// Lines shown around one with figures, and the longest gap shown.
const CONTEXT_LINES: usize = 2;
const FEW: usize = 6;

/// Writes the table.
pub fn lines_text(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    options: &LinesOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for line in header(profile, table.device) {
        writeln!(out, "{line}")?;
    }
    let labels = FrameLabels::new(profile, options.full_filenames);
    let functions = selected(profile, table, &options.functions);
    let most = table.functions.first().map_or(0, |f| f.peak);
    let shown = options.limit.unwrap_or(functions.len());
    for &(function, lines) in functions.iter().take(shown) {
        writeln!(out)?;
        let file = labels.file(function);
        writeln!(out, "## {}:{}", one_line(file), one_line(&function.name))?;
        FunctionText::new(profile, table, lines, options.width, most).write(out)?;
    }
    if functions.is_empty() {
        writeln!(
            out,
            "\nno function was seen{}",
            match &options.functions[..] {
                [] => String::new(),
                names => format!(" whose name or file contains {}", names.join(" or ")),
            }
        )?;
    }
    if functions.len() > shown {
        writeln!(out, "\n{} more functions are not shown", functions.len() - shown)?;
    }
    footer(out, table, profile.exact().is_some())?;
    Ok(())
}

pub(super) fn selected<'a>(
    profile: &'a Profile,
    table: &'a LineTable,
    names: &[String],
) -> Vec<(&'a Function, &'a LineFunction)> {
    table
        .functions
        .iter()
        .filter_map(|f| Some((profile.stacks().get_function(f.function)?, f)))
        .filter(|(f, _)| {
            let wanted = |n: &String| f.name.contains(n.as_str()) || f.file.contains(n.as_str());
            names.is_empty() || names.iter().any(wanted)
        })
        .collect()
}

/// Without source, only lines with figures.
pub(super) fn source_lines<'a>(
    profile: &'a Profile,
    function: &'a LineFunction,
) -> Vec<(u32, Option<&'a str>, Option<&'a LineRow>)> {
    with_source(profile.source(function.function), &function.rows, |row| row.line)
}

pub(super) fn with_source<'a, R>(
    source: Option<&'a SourceText>,
    rows: &'a [R],
    line: impl Fn(&R) -> u32,
) -> Vec<(u32, Option<&'a str>, Option<&'a R>)> {
    let row = |wanted| rows.iter().find(|r| line(r) == wanted);
    let Some(source) = source else {
        return rows.iter().map(|r| (line(r), None, Some(r))).collect();
    };
    let mut lines: Vec<_> = source
        .text
        .lines()
        .zip(source.first_line..)
        .map(|(text, line)| (line, Some(text), row(line)))
        .collect();
    let beyond = |r: &&R| !lines.iter().any(|l| l.0 == line(r));
    let mut others: Vec<_> = rows.iter().filter(beyond).collect();
    others.sort_unstable_by_key(|r| line(r));
    lines.extend(others.into_iter().map(|r| (line(r), None, Some(r))));
    lines.sort_by_key(|l| l.0);
    lines
}

pub(super) struct FunctionText<'a> {
    /// Line number, source, value of the bar.
    lines: Vec<(u32, Option<&'a str>, Option<i64>)>,
    columns: Vec<LineColumn>,
    source_width: usize,
    has_source: bool,
    /// A full bar: the first column's greatest value.
    most: i64,
}

pub(super) struct LineColumn {
    head: [String; 2],
    cells: Vec<String>,
    width: usize,
}

impl<'a> FunctionText<'a> {
    fn new(
        profile: &'a Profile,
        table: &LineTable,
        function: &'a LineFunction,
        width: Option<usize>,
        most: i64,
    ) -> FunctionText<'a> {
        let lines = source_lines(profile, function);
        let cells = |value: &dyn Fn(&LineRow) -> String| -> Vec<String> {
            lines.iter().map(|(_, _, row)| row.map_or_else(String::new, value)).collect()
        };
        let mut columns = Vec::new();
        for (i, &key) in table.columns.iter().enumerate() {
            let value = |row: &LineRow| match row.cells.get(i) {
                Some(LineCell { unknown: Some(unknown), .. }) => {
                    line_notes::word(*unknown).to_owned()
                }
                Some(c) => cell(c.key, c.value),
                None => String::new(),
            };
            columns.push(LineColumn::new(column_head(key), cells(&value)));
            // The sum of all executions, and the greatest of one.
            if profile.exact().is_some()
                && matches!(key.field, StatField::Allocated | StatField::Freed)
            {
                let one_run = |row: &LineRow| match row.cells.get(i).map(|c| (c.key, c.one_run)) {
                    Some((key, Some(value))) => cell(key, value),
                    _ => String::new(),
                };
                let head = ["of it at most".to_owned(), "in one run".to_owned()];
                columns.push(LineColumn::new(head, cells(&one_run)));
            }
        }
        let head = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let about = if table.estimated { "~" } else { "" };
        let times = match profile.exact() {
            Some(_) if table.estimated => "stacks",
            Some(_) => "allocs",
            None => "samples",
        };
        let extras = vec![
            LineColumn::new(
                head("live at", "the peak"),
                cells(&|r| format!("{about}{}", bytes(r.live))),
            ),
            LineColumn::new(
                head("of it", "own"),
                cells(&|r| format!("{about}{}", bytes(r.live_self))),
            ),
            LineColumn::new(
                head("", "allocated"),
                cells(&|r| format!("{about}{}", signed_bytes(r.allocated))),
            ),
            LineColumn::new(head("", times), cells(&|r| count(r.samples))),
        ];
        let bar = |row: &LineRow| row.cells.first().map_or(0, |c| c.value.value);
        let lines = lines.iter().map(|(line, source, row)| (*line, *source, row.map(bar)));
        FunctionText::with_columns(lines.collect(), columns, extras, width, most)
    }

    /// Drops the last `extras`, the least important, until the source has room.
    pub(super) fn with_columns(
        lines: Vec<(u32, Option<&'a str>, Option<i64>)>,
        mut columns: Vec<LineColumn>,
        mut extras: Vec<LineColumn>,
        width: Option<usize>,
        most: i64,
    ) -> FunctionText<'a> {
        let taken = |columns: &[LineColumn]| {
            columns.iter().map(|c| c.width + 2).sum::<usize>() + 7 + BAR + 3
        };
        let width = width.unwrap_or(usize::MAX);
        let mut room = width.saturating_sub(taken(&columns));
        while !extras.is_empty()
            && room < MIN_SOURCE_WIDTH + extras.iter().map(|c| c.width + 2).sum::<usize>()
        {
            extras.pop();
        }
        columns.extend(extras);
        room = width.saturating_sub(taken(&columns));
        FunctionText {
            has_source: lines.iter().any(|l| l.1.is_some()),
            lines,
            columns,
            source_width: room.max(MIN_SOURCE_WIDTH),
            most,
        }
    }

    /// The first line, those with figures, and their neighbours. Gaps of at most [`FEW`] lines are
    /// filled.
    fn shown(&self) -> Vec<bool> {
        let count = self.lines.len();
        let mut shown = vec![false; count];
        for (i, line) in self.lines.iter().enumerate() {
            if i == 0 || line.2.is_some() {
                shown[i.saturating_sub(CONTEXT_LINES)..count.min(i + CONTEXT_LINES + 1)].fill(true);
            }
        }
        for gap in shown.chunk_by_mut(|a, b| a == b) {
            if gap.len() <= FEW {
                gap.fill(true);
            }
        }
        shown
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for half in 0..2 {
            let mut text = format!("{:>6}", ["", "line"][half]);
            for column in &self.columns {
                text += &format!("  {:>width$}", column.head[half], width = column.width);
            }
            if half == 1 && self.has_source {
                text += &format!("  {:BAR$}  source", "");
            }
            writeln!(out, "{}", text.trim_end())?;
        }
        let shown = self.shown();
        for (i, (line, source, row)) in self.lines.iter().enumerate() {
            if !shown[i] {
                if shown[i - 1] {
                    writeln!(out, "{:>6}", "⋮")?;
                }
                continue;
            }
            let number = match line {
                0 => "?".to_owned(),
                line => line.to_string(),
            };
            let mut text = format!("{number:>6}");
            for column in &self.columns {
                text += &format!("  {:>width$}", column.cells[i], width = column.width);
            }
            let first = row.unwrap_or(0);
            let source = one_line(&source.unwrap_or_default().replace('\t', "    "));
            let source: String = source.chars().take(self.source_width).collect();
            text += &format!("  {}  {source}", bar(first, self.most));
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

impl LineColumn {
    pub(super) fn new(head: [String; 2], cells: Vec<String>) -> LineColumn {
        let longest = head.iter().chain(&cells).map(|c| c.chars().count()).max();
        LineColumn { width: longest.unwrap_or(0), head, cells }
    }
}

pub(super) fn column_head(key: StatKey) -> [String; 2] {
    let known = match (key.metric, key.pool, key.field) {
        (Metric::AllocatedBytes, Pool::All, StatField::Peak) => Some("allocated"),
        (Metric::ReservedBytes, Pool::All, StatField::Peak) => Some("reserved"),
        _ => None,
    };
    match known {
        Some(name) => ["peak".to_owned(), name.to_owned()],
        None => {
            let rest = format!("{}.{}", key.pool.name(), key.field.name());
            [key.metric.name().to_owned(), rest]
        }
    }
}

/// Plain if exact; `~` for a lower limit; `≤` for the upper limit where it reads differently.
pub(super) fn cell(key: StatKey, value: BoundedValue) -> String {
    let text = |v: i64| {
        if key.metric.is_bytes() { signed_bytes(v) } else { v.to_string() }
    };
    let low = text(value.value);
    if value.exact {
        return low;
    }
    match value.upper {
        Some(upper) if text(upper) != low => {
            // One unit if both have the same.
            let (number, unit) = scaled(value.value.unsigned_abs());
            let same =
                key.metric.is_bytes() && value.value >= 0 && unit == scaled(upper.unsigned_abs()).1;
            let low = if same { number } else { low };
            format!("~{low} ≤{}", text(upper))
        }
        // "At least nothing" means unknown.
        None if value.value <= 0 => "?".to_owned(),
        _ => format!("~{low}"),
    }
}

fn bar(value: i64, most: i64) -> String {
    let eighths = if most > 0 && value > 0 {
        (value as f64 / most as f64 * (BAR * 8) as f64).round() as usize
    } else {
        0
    };
    let parts = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let text = "█".repeat(eighths / 8) + parts[eighths % 8];
    format!("{text:BAR$}")
}

fn footer(out: &mut dyn Write, table: &LineTable, exact: bool) -> std::io::Result<()> {
    writeln!(out)?;
    let mut notes = vec![
        "A peak is the greatest value the allocator reached while the line was on a thread's stack.",
        "~1.50 ≤1.75 GiB: at least 1.50, at most 1.75; ?: unknown; without a mark: exact.",
        if exact {
            "Only lines that allocated are listed: an execution that allocated nothing is not seen. \
             A value has two limits where the line began or ended while memory was freed or allocated elsewhere \
             ('record --frees stacks' leaves fewer)."
        } else {
            "A line in two samples in a row counts as running in between; a line that ran only between samples is not listed."
        },
    ];
    let has = |fields: [StatField; 2]| table.columns.iter().any(|k| fields.contains(&k.field));
    let has_sums = has([StatField::Allocated, StatField::Freed]);
    if has([StatField::Current; 2]) {
        notes.push(match exact {
            true => "Current is the greatest level at an end of the line.",
            false => "Current is the greatest level seen at a sample while the line was on a thread's stack, not the one at its end.",
        });
    }
    if exact && has_sums {
        notes.push("In one run: the greatest sum of one execution of the line; two limits where a loop may have run it again.");
    }
    let doubt = table.doubt.as_ref().map(|doubt| format!("Nothing is marked exact: {doubt}."));
    notes.extend(doubt.as_deref());
    let unknown = unknown_notes(table);
    notes.extend(unknown.iter().map(String::as_str));
    let has_sums = !exact && has_sums;
    if table.estimated && table.doubt.is_none() {
        notes.push(match (exact, has_sums) {
            (true, _) => "Live and allocated with ~ are estimates, from a sample of the allocations.",
            (false, false) => "Live and allocated with ~ are estimates: what happens between two samples is shared by both.",
            (false, true) => "Live and sums of allocated and freed are estimates: what happens between two samples is shared by both.",
        });
    }
    for note in notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn unknown_notes(table: &LineTable) -> Vec<String> {
    let rows = table.functions.iter().flat_map(|function| &function.rows);
    let cells = rows.flat_map(|row| &row.cells);
    let reasons: BTreeSet<(UnknownReason, StatKey)> =
        cells.filter_map(|cell| Some((cell.unknown?, cell.key))).collect();
    let mut by_reason: BTreeMap<UnknownReason, Vec<String>> = BTreeMap::new();
    for (unknown, key) in reasons {
        by_reason.entry(unknown).or_default().push(key.to_string());
    }
    let note = |(unknown, keys): (UnknownReason, Vec<String>)| match unknown {
        UnknownReason::NotSeen => {
            format!("{}: {}.", line_notes::word(unknown), line_notes::why(unknown))
        }
        _ => format!(
            "{} ({}): {}.",
            line_notes::word(unknown),
            keys.join(", "),
            line_notes::why(unknown)
        ),
    };
    by_reason.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_value_shows_both_limits() {
        let key: StatKey = "allocated_bytes.all.peak".parse().unwrap();
        let show = |value: i64, upper: Option<i64>| {
            let exact = upper == Some(value);
            cell(key, BoundedValue { value, exact, upper })
        };
        assert_eq!(show(3 << 20, Some(3 << 20)), "3.00 MiB");
        assert_eq!(show(3 << 20, Some(5 << 20)), "~3.00 ≤5.00 MiB");
        assert_eq!(show(3 << 20, Some(5 << 30)), "~3.00 MiB ≤5.00 GiB");
        assert_eq!(show(3 << 20, Some((3 << 20) + 512)), "~3.00 MiB");
        assert_eq!(show(3 << 20, None), "~3.00 MiB");
        assert_eq!(show(0, None), "?");
        assert_eq!(bar(1, 2).chars().filter(|c| *c == '█').count(), BAR / 2);
        assert_eq!(bar(0, 0).len(), BAR);
    }
}
