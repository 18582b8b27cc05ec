//! The table of lines as CSV.

use std::io::Write;

use rustc_hash::FxHashMap;

use super::text::{selected, source_lines};
use crate::analysis::{BoundedValue, LineRow, LineTable, Profile, RankedLine, lines};
use crate::model::{Frame, StatField, StatKey};
use crate::render::shared::{CsvSheet, OutputError};

/// Columns after the statistics.
const REST: [&str; 10] = [
    "allocated",
    "freed",
    "live_at_peak",
    "live_at_peak_own",
    "estimated",
    "samples",
    "source",
    "library",
    "live_at_peak_with_libraries",
    "allocated_with_libraries",
];

/// Writes a row per line. Each statistic has three columns: the value, `.exact`, and `.upper`
/// (empty: no limit). `estimated` covers allocated, freed and live bytes.
pub fn lines_csv(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), OutputError> {
    let mut csv = CsvSheet::new(out);
    csv.write_record(head(profile, table))?;
    let ranking = lines::ranking(profile, table, false)?;
    let by_frame: FxHashMap<Frame, &RankedLine> =
        ranking.rows.iter().map(|row| (row.frame, row)).collect();
    for (function, lines) in selected(profile, table, functions) {
        for (line, source, row) in source_lines(profile, lines) {
            let Some(row) = row else {
                continue;
            };
            let mut record = vec![
                table.device.0.to_string(),
                function.file.to_string(),
                function.name.to_string(),
                line.to_string(),
            ];
            record.extend(statistics(profile, row));
            record.extend([
                row.allocated.to_string(),
                row.freed.map_or_else(String::new, |freed| freed.to_string()),
                row.live.to_string(),
                row.live_self.to_string(),
                table.estimated.to_string(),
                row.samples.to_string(),
                source.unwrap_or_default().to_owned(),
            ]);
            let ranked = by_frame.get(&Frame { function: lines.function, line });
            record.extend([
                ranking.is_library(function).to_string(),
                ranked.map_or(0, |row| row.live).to_string(),
                ranked.map_or(0, |row| row.allocated).to_string(),
            ]);
            csv.write_record(&record)?;
        }
    }
    csv.flush()?;
    Ok(())
}

fn head(profile: &Profile, table: &LineTable) -> Vec<String> {
    let mut head: Vec<String> = ["device", "file", "function", "line"].map(String::from).into();
    for key in &table.columns {
        head.extend([key.to_string(), format!("{key}.exact"), format!("{key}.upper")]);
        if has_runs(profile, *key) {
            let parts = ["", ".exact", ".upper"];
            head.extend(parts.map(|part| format!("{key}.one_run{part}")));
        }
    }
    head.extend(REST.map(String::from));
    head
}

fn statistics(profile: &Profile, row: &LineRow) -> Vec<String> {
    let mut cells = Vec::new();
    for cell in &row.cells {
        let value = cell.unknown.is_none().then_some(cell.value);
        cells.extend(bounded_csv(value));
        if has_runs(profile, cell.key) {
            cells.extend(bounded_csv(cell.one_run));
        }
    }
    cells
}

/// Whether a column has the largest single execution.
fn has_runs(profile: &Profile, key: StatKey) -> bool {
    profile.exact().is_some() && matches!(key.field, StatField::Allocated | StatField::Freed)
}

/// Value, `.exact`, `.upper`.
fn bounded_csv(value: Option<BoundedValue>) -> [String; 3] {
    let Some(BoundedValue { value, exact, upper }) = value else {
        return [String::new(), false.to_string(), String::new()];
    };
    [value.to_string(), exact.to_string(), upper.map_or_else(String::new, |u| u.to_string())]
}
