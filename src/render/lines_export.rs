//! The table of lines as CSV and JSON: exact bytes and limits.

use std::collections::BTreeMap;
use std::io::Write;

use rustc_hash::FxHashMap;

use super::RenderError;
use super::exact::way;
use super::interchange::CsvSheet;
use super::json::{
    BoundedJson, ByteBalanceJson, ExactRecordingJson, FunctionLinesJson, JsonDocument,
    LineCellJson, LineJson, LinesJson, LiveMomentJson, OtherMemoryJson, RankedLineJson,
    RefusalsJson,
};
use super::label::FrameLabels;
use super::lines::{selected, source_lines};
use super::warnings::warnings;
use crate::analysis::{
    BoundedValue, ExactProfile, LineCell, LineRanking, LineRow, LineTable, MemoryGroup, Profile,
    RankedLine,
};
use crate::model::{
    CudaIndex, EventTotals, Frame, FreeTracking, Nanos, ReaderKind, StatField, StatKey,
};

/// Writes one row per line seen. Each requested column becomes three: the value, `.exact`, and
/// `.upper`, empty without a limit. `estimated` covers allocated, freed and live bytes.
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

/// Whether the table also shows the largest single execution of a line.
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
    let labels = FrameLabels::new(profile, false);
    let ranking = profile.rank_lines(table, false)?;
    let ranked = ranked_json(profile, &ranking, functions);
    let functions = selected(profile, table, functions).into_iter().map(|(function, lines)| {
        let rows = source_lines(profile, lines)
            .into_iter()
            .filter_map(|(line, source, row)| Some(line_json(line, source, row?)));
        FunctionLinesJson {
            function: function.name.to_string(),
            file: function.file.to_string(),
            short_file: labels.file(function).to_owned(),
            first_line: function.first_line,
            library: ranking.is_library(function),
            peak: lines.peak,
            lines: rows.collect(),
        }
    });
    JsonDocument::new(LinesJson {
        device: table.device.0,
        columns: table.columns.iter().map(ToString::to_string).collect(),
        estimated: table.estimated,
        doubt: table.doubt.map(|doubt| doubt.to_string()),
        peak_allocated: table.allocated.into(),
        peak_reserved: table.reserved.map(Into::into),
        samples: profile.samples(),
        exact: profile.exact().map(|exact| exact_json(profile, exact, table.device)),
        seconds: profile.duration().seconds(),
        kept_from_seconds: profile.begins().map(Nanos::seconds),
        warnings: warnings(profile),
        ranked,
        live_moment: ranking.moment.map(|(time, total)| LiveMomentJson {
            seconds: time.seconds(),
            allocated: total,
            on_known_lines: ranking.on_lines(),
            without_line: without_line(&ranking),
            attribution: profile.peak_resolution(table.device).map(Into::into),
        }),
        functions: functions.collect(),
    })
    .write(out, true)
}

/// The lines of the program, largest first; library code counts for the line that called it.
fn ranked_json(profile: &Profile, ranking: &LineRanking, names: &[String]) -> Vec<RankedLineJson> {
    let labels = FrameLabels::new(profile, false);
    let total = ranking.moment.map(|(_, total)| total);
    let row = |row: &RankedLine| {
        let function = profile.stacks().get_function(row.frame.function)?;
        let wanted = |n: &String| function.name.contains(n) || function.file.contains(n);
        if !names.is_empty() && !names.iter().any(wanted) {
            return None;
        }
        Some(RankedLineJson {
            file: function.file.to_string(),
            short_file: labels.file(function).to_owned(),
            function: function.name.to_string(),
            line: row.frame.line,
            source: profile.source_line(row.frame).map(str::to_owned),
            library: row.library,
            live_at_peak: total.map(|_| row.live),
            share: total.filter(|total| *total > 0).map(|total| row.live as f64 / total as f64),
            allocated: row.allocated,
            peak: row.peak.map(Into::into),
            samples: row.samples,
        })
    };
    ranking.rows.iter().filter_map(row).collect()
}

fn without_line(ranking: &LineRanking) -> BTreeMap<String, u64> {
    ranking.without_line.iter().map(|(pseudo, bytes)| (pseudo.text().to_owned(), *bytes)).collect()
}

fn line_json(line: u32, source: Option<&str>, row: &LineRow) -> LineJson {
    LineJson {
        line,
        source: source.map(str::to_owned),
        columns: row.cells.iter().map(|cell| (cell.key.to_string(), cell_json(cell))).collect(),
        allocated: row.allocated,
        freed: row.freed,
        live_at_peak: row.live,
        live_at_peak_own: row.live_self,
        samples: row.samples,
    }
}

fn cell_json(cell: &LineCell) -> LineCellJson {
    let one_run = cell.one_run.map(BoundedJson::from);
    match cell.untold {
        None => {
            let BoundedValue { value, exact, upper } = cell.value;
            LineCellJson { value: Some(value), exact, upper, unknown_because: None, one_run }
        }
        Some(reason) => LineCellJson {
            value: None,
            exact: false,
            upper: None,
            unknown_because: Some(reason.why().to_owned()),
            one_run,
        },
    }
}

/// The numbers that a report gives about exact events.
fn exact_json(profile: &Profile, exact: &ExactProfile, device: CudaIndex) -> ExactRecordingJson {
    let options = exact.exact();
    let totals = profile.end().and_then(|end| end.totals.exact);
    let of_totals = |value: fn(&EventTotals) -> u64| totals.as_ref().map(value);
    let agreement = exact.agreement(device);
    let balance = exact.balance(device);
    let of_kinds = [
        ("driver", MemoryGroup::Driver),
        ("physical", MemoryGroup::Physical),
        ("managed", MemoryGroup::Managed),
        ("pinned", MemoryGroup::Pinned),
    ];
    let other_memory = of_kinds
        .into_iter()
        .filter_map(|(name, kind)| Some((name.to_owned(), exact.other(kind)?)))
        .map(|(name, (peak, end))| (name, OtherMemoryJson { peak, end }))
        .collect();
    let frees = match options.frees {
        FreeTracking::Events => "events",
        FreeTracking::Stacks => "stacks",
        FreeTracking::Snapshots => "snapshots",
    };
    let [contexts, modules, libraries] = exact.marks();
    ExactRecordingJson {
        probes: way(options.backend).to_owned(),
        events: exact.events(),
        lost: profile.losses().late(ReaderKind::Events),
        truncated: of_totals(|t| t.truncated),
        borrowed: of_totals(|t| t.borrowed),
        faulted: of_totals(|t| t.faulted),
        unknown: of_totals(|t| t.unknown),
        no_python: of_totals(|t| t.no_python),
        comparisons: agreement.map(|a| a.checks),
        comparisons_equal: agreement.map(|a| a.equal),
        bytes_compared: balance.map_or(0, |balance| balance.checks),
        bytes_off: balance
            .map(|balance| ByteBalanceJson { allocated: balance.allocated, freed: balance.freed }),
        starts_empty: options.starts_empty,
        frees: frees.to_owned(),
        stacks_from: options.stacks_from,
        stacks_every: options.stacks_every,
        backward_lines: options.backward_lines,
        uncovered: options.uncovered.iter().map(ToString::to_string).collect(),
        other_memory,
        refused: RefusalsJson { count: exact.refused().count, largest: exact.refused().largest },
        contexts,
        modules,
        libraries,
    }
}
