//! The table of lines as CSV and JSON: exact bytes and limits.

use std::io::Write;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use super::RenderError;
use super::exact::way;
use super::interchange::{CsvSheet, pretty_json};
use super::lines::{labels, selected, source_lines};
use crate::analysis::{
    BoundedValue, ExactProfile, HighWater, LineRanking, LineRow, LineTable, MemoryGroup, PeakTime,
    Profile, PseudoFrame, RankedLine,
};
use crate::model::{CudaIndex, EventTotals, Frame, FreeTracking, ReaderKind, StatField, StatKey};

/// Writes one row per line seen. Each column asked for becomes three: the value, `.exact`, and
/// `.upper`, empty when nothing limits it. `estimated` is of what was allocated, freed and live.
pub fn lines_csv(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), RenderError> {
    let mut csv = CsvSheet::new(out);
    let mut head: Vec<String> = ["device", "file", "function", "line"].map(String::from).into();
    for key in &table.columns {
        head.extend([key.to_string(), format!("{key}.exact"), format!("{key}.upper")]);
        if has_runs(profile, *key) {
            let parts = ["", ".exact", ".upper"];
            head.extend(parts.map(|part| format!("{key}.one_run{part}")));
        }
    }
    let rest = ["allocated", "freed", "live_at_peak", "live_at_peak_own", "estimated"];
    head.extend(rest.into_iter().chain(["samples", "source"]).map(String::from));
    let ranked = ["library", "live_at_peak_with_libraries", "allocated_with_libraries"];
    head.extend(ranked.map(String::from));
    csv.write_record(&head)?;
    let ranking = profile.rank_lines(table, false)?;
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
            for cell in &row.cells {
                let value = cell.untold.is_none().then_some(cell.value);
                record.extend(bounded_csv(value));
                if has_runs(profile, cell.key) {
                    record.extend(bounded_csv(cell.one_run));
                }
            }
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

/// Whether what one execution of a line did stands beside what all did.
fn has_runs(profile: &Profile, key: StatKey) -> bool {
    profile.exact().is_some() && matches!(key.field, StatField::Allocated | StatField::Freed)
}

/// The value, whether it is exact, and its upper limit; empty where it is not known.
fn bounded_csv(value: Option<BoundedValue>) -> [String; 3] {
    let Some(BoundedValue { value, exact, upper }) = value else {
        return [String::new(), false.to_string(), String::new()];
    };
    [value.to_string(), exact.to_string(), upper.map_or_else(String::new, |u| u.to_string())]
}

/// Writes the table as one JSON object; sizes in bytes, unknown is `null`.
pub fn lines_json(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    functions: &[String],
) -> Result<(), RenderError> {
    let labels = labels(profile, false);
    let ranking = profile.rank_lines(table, false)?;
    let ranked = ranked_json(profile, &ranking, functions);
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
                "library": ranking.is_library(function),
                "peak": lines.peak,
                "lines": rows,
            })
        })
        .collect();
    let columns: Vec<String> = table.columns.iter().map(ToString::to_string).collect();
    let value = json!({
        "device": table.device.0,
        "columns": columns,
        "estimated": table.estimated,
        "doubt": table.doubt,
        "peak_allocated": high_water(Some(table.allocated)),
        "peak_reserved": high_water(table.reserved),
        "samples": profile.samples(),
        "exact": profile.exact().map(|exact| exact_json(profile, exact, table.device)),
        "seconds": profile.duration().seconds(),
        "kept_from_seconds": profile.begins().map(crate::model::Nanos::seconds),
        "warnings": profile.warnings(),
        "ranked": ranked,
        "live_moment": ranking.moment.map(|(time, total)| {
            json!({
                "seconds": time.seconds(),
                "allocated": total,
                "on_known_lines": ranking.on_lines(),
                "without_line": without_line(&ranking),
            })
        }),
        "functions": functions,
    });
    pretty_json(out, &value)
}

/// The lines of the program, the one that holds most first; library code counts for the line that called it.
fn ranked_json(profile: &Profile, ranking: &LineRanking, names: &[String]) -> Vec<Value> {
    let labels = labels(profile, false);
    let total = ranking.moment.map(|(_, total)| total);
    let row = |row: &RankedLine| {
        let function = profile.stacks().get_function(row.frame.function)?;
        let wanted = |n: &String| function.name.contains(n) || function.file.contains(n);
        if !names.is_empty() && !names.iter().any(wanted) {
            return None;
        }
        let limits = |BoundedValue { value, exact, upper }: BoundedValue| json!({"value": value, "exact": exact, "upper": upper});
        Some(json!({
            "file": &*function.file,
            "short_file": labels.file(function),
            "function": &*function.name,
            "line": row.frame.line,
            "source": profile.source_line(row.frame),
            "library": row.library,
            "live_at_peak": total.map(|_| row.live),
            "share": total.filter(|total| *total > 0).map(|total| row.live as f64 / total as f64),
            "allocated": row.allocated,
            "peak": row.peak.map(limits),
            "samples": row.samples,
        }))
    };
    ranking.rows.iter().filter_map(row).collect()
}

fn without_line(ranking: &LineRanking) -> Value {
    let bytes = |(pseudo, bytes): &(PseudoFrame, u64)| (pseudo.text().to_owned(), json!(bytes));
    Value::Object(ranking.without_line.iter().map(bytes).collect())
}

fn row_json(line: u32, source: Option<&str>, row: &LineRow) -> Value {
    let mut columns = Map::new();
    for cell in &row.cells {
        let limits = |BoundedValue { value, exact, upper }: BoundedValue| json!({"value": value, "exact": exact, "upper": upper});
        let mut limits = match cell.untold {
            None => limits(cell.value),
            Some(untold) => {
                json!({"value": null, "exact": false, "upper": null, "not_told": untold.why()})
            }
        };
        if let Some(BoundedValue { value, exact, upper }) = cell.one_run {
            limits["one_run"] = json!({"value": value, "exact": exact, "upper": upper});
        }
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

/// What a report says of exact events, as numbers.
fn exact_json(profile: &Profile, exact: &ExactProfile, device: CudaIndex) -> Value {
    let options = exact.exact();
    let totals = profile.end().and_then(|end| end.totals.exact);
    let of_totals = |value: fn(&EventTotals) -> u64| totals.as_ref().map(value);
    let agreement = exact.agreement(device);
    let of_kinds = [
        ("driver", MemoryGroup::Driver),
        ("physical", MemoryGroup::Physical),
        ("managed", MemoryGroup::Managed),
        ("pinned", MemoryGroup::Pinned),
    ];
    let other: Map<String, Value> = of_kinds
        .into_iter()
        .filter_map(|(name, kind)| Some((name.to_owned(), exact.other(kind)?)))
        .map(|(name, (peak, end))| (name, json!({"peak": peak, "end": end})))
        .collect();
    let [contexts, modules, libraries] = exact.marks();
    json!({
        "way": way(options.backend),
        "events": exact.events(),
        "lost": profile.losses().late(ReaderKind::Events),
        "truncated": of_totals(|t| t.truncated),
        "borrowed": of_totals(|t| t.borrowed),
        "faulted": of_totals(|t| t.faulted),
        "unknown": of_totals(|t| t.unknown),
        "no_python": of_totals(|t| t.no_python),
        "comparisons": agreement.map(|a| a.checks),
        "comparisons_equal": agreement.map(|a| a.equal),
        "bytes_compared": exact.balance(device).map_or(0, |balance| balance.checks),
        "bytes_off": exact.balance(device).map(|balance| {
            json!({"allocated": balance.allocated, "freed": balance.freed})
        }),
        "starts_empty": options.starts_empty,
        "frees": match options.frees {
            FreeTracking::Events => "events",
            FreeTracking::Stacks => "stacks",
            FreeTracking::Snapshots => "snapshots",
        },
        "stacks_from": options.stacks_from,
        "stacks_every": options.stacks_every,
        "backward_lines": options.backward_lines,
        "uncovered": options.uncovered.iter().map(|text| &**text).collect::<Vec<_>>(),
        "other_memory": other,
        "refused": {"count": exact.refused().count, "largest": exact.refused().largest},
        "contexts": contexts,
        "modules": modules,
        "libraries": libraries,
    })
}

pub(super) fn high_water(high: Option<HighWater>) -> Value {
    let Some(high) = high else { return Value::Null };
    let (from, to) = match high.reached {
        PeakTime::BeforeRecording => (None, None),
        PeakTime::Between(from, to) => (Some(from.seconds()), Some(to.seconds())),
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
