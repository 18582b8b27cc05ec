//! The table of lines as CSV and JSON: exact bytes and limits.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::RenderError;
use super::lines::{labels, selected, source_lines};
use crate::analysis::{Bounded, HighWater, LineRow, LineTable, Profile, Reached};

/// Writes one row per line seen. Each column asked for becomes three: the value, `.exact`, and
/// `.upper`, empty when nothing limits it.
pub fn lines_csv(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), RenderError> {
    let mut csv = csv::Writer::from_writer(out);
    let mut head: Vec<String> = ["device", "file", "function", "line"].map(String::from).into();
    for key in &table.columns {
        head.extend([key.to_string(), format!("{key}.exact"), format!("{key}.upper")]);
    }
    let rest = ["allocated", "freed", "live_at_peak", "live_at_peak_own", "samples", "source"];
    head.extend(rest.map(String::from));
    csv.write_record(&head)?;
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
            for cell in &row.cells {
                let Bounded { value, exact, upper } = cell.value;
                let upper = upper.map_or_else(String::new, |u| u.to_string());
                record.extend([value.to_string(), exact.to_string(), upper]);
            }
            record.extend([
                row.allocated.to_string(),
                row.freed.map_or_else(String::new, |freed| freed.to_string()),
                row.live.to_string(),
                row.live_self.to_string(),
                row.samples.to_string(),
                source.unwrap_or_default().to_owned(),
            ]);
            csv.write_record(&record)?;
        }
    }
    csv.flush()?;
    Ok(())
}

/// Writes the table as one JSON object; sizes in bytes, unknown is `null`.
pub fn lines_json(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), RenderError> {
    let labels = labels(profile, false);
    let functions: Vec<Value> = selected(profile, table, functions)
        .into_iter()
        .map(|(function, lines)| {
            let rows: Vec<Value> = source_lines(profile, lines)
                .into_iter()
                .filter_map(|(line, source, row)| Some(row_json(line, source, row?)))
                .collect();
            json!({
                "function": &*function.name,
                "file": &*function.file,
                "short_file": labels.file(function),
                "first_line": function.first_line,
                "peak": lines.peak,
                "lines": rows,
            })
        })
        .collect();
    let columns: Vec<String> = table.columns.iter().map(ToString::to_string).collect();
    let value = json!({
        "device": table.device.0,
        "columns": columns,
        "peak_allocated": high_water(table.allocated),
        "peak_reserved": high_water(table.reserved),
        "samples": profile.samples(),
        "seconds": profile.duration().seconds(),
        "warnings": profile.warnings(),
        "functions": functions,
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

fn row_json(line: u32, source: Option<&str>, row: &LineRow) -> Value {
    let mut columns = Map::new();
    for cell in &row.cells {
        let Bounded { value, exact, upper } = cell.value;
        let limits = json!({"value": value, "exact": exact, "upper": upper});
        columns.insert(cell.key.to_string(), limits);
    }
    json!({
        "line": line,
        "source": source,
        "columns": columns,
        "allocated": row.allocated,
        "freed": row.freed,
        "live_at_peak": row.live,
        "live_at_peak_own": row.live_self,
        "samples": row.samples,
    })
}

fn high_water(high: HighWater) -> Value {
    let (from, to) = match high.reached {
        Reached::BeforeRecording => (None, None),
        Reached::Between(from, to) => (Some(from.seconds()), Some(to.seconds())),
    };
    json!({
        "bytes": high.bytes,
        "before_recording": from.is_none(),
        "reached_after_seconds": from,
        "reached_before_seconds": to,
        "seen_in_recording": high.within,
        "resets": high.resets,
    })
}
