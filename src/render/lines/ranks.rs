//! The lines of several ranks: greatest, least and sum.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::json::{BoundedJson, HighWaterJson};
use super::text::{FunctionText, LineColumn, LinesOptions, cell, column_head, with_source};
use crate::analysis::{
    BoundedValue, LineTable, Profile, RankFunction, RankRow, RankTable, RankValues,
};
use crate::render::shared::{
    CsvSheet, EscapeGuard, JsonDocument, JsonFormat, OutputError, count, gpu_line, one_line,
    sampling_line, short_file, signed_bytes, warnings,
};

/// `memspy lines --merge --json`: the memory of each line in several ranks. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankLinesJson {
    /// The ranks.
    pub ranks: Vec<RankJson>,
    /// The statistics that were asked for: keys of `torch.cuda.memory_stats`.
    pub columns: Vec<String>,
    /// All functions with their lines, the one with the greatest `peak` first.
    pub functions: Vec<RankFunctionJson>,
}

impl JsonFormat for RankLinesJson {
    const FORMAT: &'static str = "memspy-lines-merged";
    const VERSION: u32 = 1;
}

/// A rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankJson {
    /// What it is called in this document: `rank 3`.
    pub label: String,
    /// Its number; `null` where the job does not say.
    pub rank: Option<u32>,
    /// Its process.
    pub pid: Option<u32>,
    /// The host that it ran on.
    pub host: Option<String>,
    /// The GPU, as the rank numbers it.
    pub device: u32,
    /// The peak of allocated bytes by the allocator's counter: exact.
    pub peak_allocated: HighWaterJson,
    /// The peak of reserved bytes by the allocator's counter: exact; `null` where it was not
    /// recorded.
    pub peak_reserved: Option<HighWaterJson>,
    /// How often the threads' stacks were sampled.
    pub samples: u64,
    /// Whether the recording is exact, and not sampled.
    pub exact: bool,
    /// How long the recording is, in seconds.
    pub seconds: f64,
    /// What makes the figures less certain.
    pub warnings: Vec<String>,
}

/// A function in all ranks: that of one name in one file at one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankFunctionJson {
    /// Its name.
    pub function: String,
    /// The path of its file.
    pub file: String,
    /// The line that it begins at.
    pub first_line: u32,
    /// The greatest value of the first column in any rank.
    pub peak: i64,
    /// The lines that were seen, in order.
    pub lines: Vec<RankLineJson>,
}

/// A line in all ranks that have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankLineJson {
    /// Its number; 0 when unknown.
    pub line: u32,
    /// Its text; `null` where the recording does not have it.
    pub source: Option<String>,
    /// In how many ranks it was seen.
    pub ranks: u64,
    /// The statistics of `columns` by their keys; `null` where no rank knows one.
    pub columns: BTreeMap<String, Option<RankValuesJson>>,
    /// Bytes live at each rank's peak that were allocated while it was on the stack; exact only in
    /// exact recordings.
    pub live_at_peak: RankValuesJson,
}

/// A value in several ranks, in each at a time of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankValuesJson {
    /// The greatest.
    pub greatest: RankValueJson,
    /// The least.
    pub least: RankValueJson,
    /// The sum; a rank that does not know the value adds nothing, and then the sum is not exact.
    pub sum: BoundedJson,
}

/// The value of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankValueJson {
    /// The value; where it is not exact, the true one is at least this.
    pub value: i64,
    /// Whether it is the true one.
    pub exact: bool,
    /// The true one is at most this; `null` where nothing limits it.
    pub upper: Option<i64>,
    /// The rank's `label`.
    pub rank: Option<String>,
}

/// A rank and its table.
#[derive(Debug, Clone, Copy)]
pub struct RankLines<'a> {
    /// `rank 3`.
    pub label: &'a str,
    /// Its recording.
    pub profile: &'a Profile,
    /// Its own table.
    pub table: &'a LineTable,
}

/// Line number, source and figures.
type FunctionRows<'a> = Vec<(u32, Option<&'a str>, Option<&'a RankRow>)>;

/// Writes the table as text.
pub fn rank_lines_text(
    out: &mut dyn Write,
    ranks: &[RankLines<'_>],
    table: &RankTable,
    options: &LinesOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for rank in ranks {
        let start = rank.profile.start();
        let (pid, host) = start.map_or((0, "an unknown host"), |s| (s.pid, &*s.host));
        writeln!(out, "{}: process {pid} on {}", one_line(rank.label), one_line(host))?;
        writeln!(out, "  {}", gpu_line(rank.profile, rank.table.device))?;
        match rank.profile.exact() {
            Some(exact) => writeln!(out, "  {} exact events", count(exact.events()))?,
            None => writeln!(out, "  {}", sampling_line(rank.profile))?,
        }
        for warning in warnings(rank.profile) {
            writeln!(out, "  warning: {}", one_line(&warning))?;
        }
    }
    writeln!(out, "{}", balance(ranks))?;
    let wanted: Vec<&RankFunction> =
        table.functions.iter().filter(|f| is_wanted(f, &options.functions)).collect();
    let most = table.functions.first().map_or(0, |f| f.peak);
    for function in &wanted {
        writeln!(out)?;
        let directory =
            ranks.get(function.found.0).and_then(|rank| rank.profile.start()?.directory.as_deref());
        let file = &*function.function.file;
        let file = if options.full_filenames { file } else { short_file(file, directory) };
        writeln!(out, "## {}:{}", one_line(file), one_line(&function.function.name))?;
        text(ranks, table, function, options.width, most).write(out)?;
    }
    if wanted.is_empty() {
        writeln!(out, "\nno function was seen in any rank, or none matches")?;
    }
    for note in [
        "",
        "Greatest and least are among the ranks in which the line was seen (the rank in brackets; all: equal), each at its own time.",
        "A peak is the greatest value the allocator reached while the line was on a thread's stack; live: bytes allocated below the line and",
        "alive at each rank's peak. ~1.50 ≤1.75 GiB: at least 1.50, at most 1.75; ?: unknown; without a mark: exact. Live with ~: an estimate.",
    ] {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

pub(super) fn balance(ranks: &[RankLines<'_>]) -> String {
    let peaks: Vec<(&str, i64)> =
        ranks.iter().map(|rank| (rank.label, rank.table.allocated.within)).collect();
    rank_peaks(&peaks)
}

/// Which rank has the greatest peak, which the least, and their sum.
pub(crate) fn rank_peaks(ranks: &[(&str, i64)]) -> String {
    let sum: i64 = ranks.iter().map(|(_, peak)| peak).sum();
    let greatest = ranks.iter().rev().max_by_key(|(_, peak)| peak);
    let least = ranks.iter().min_by_key(|(_, peak)| peak);
    let text = |rank: Option<&(&str, i64)>| {
        rank.map_or_else(String::new, |(label, peak)| {
            format!("{} ({})", signed_bytes(*peak), one_line(label))
        })
    };
    format!(
        "{} ranks, peak allocated: greatest {}, least {}, sum {}",
        ranks.len(),
        text(greatest),
        text(least),
        signed_bytes(sum)
    )
}

fn is_wanted(function: &RankFunction, names: &[String]) -> bool {
    let function = &function.function;
    let has = |n: &String| function.name.contains(n.as_str()) || function.file.contains(n.as_str());
    names.is_empty() || names.iter().any(has)
}

fn rows<'a>(ranks: &[RankLines<'a>], function: &'a RankFunction) -> FunctionRows<'a> {
    let (rank, lines) = &function.found;
    let source = ranks.get(*rank).and_then(|rank| rank.profile.source(lines.function));
    with_source(source, &function.rows, |row| row.line)
}

fn text<'a>(
    ranks: &[RankLines<'a>],
    table: &RankTable,
    function: &'a RankFunction,
    width: Option<usize>,
    most: i64,
) -> FunctionText<'a> {
    let rows = rows(ranks, function);
    let cells = |value: &dyn Fn(&RankRow) -> String| -> Vec<String> {
        rows.iter().map(|(_, _, row)| row.map_or_else(String::new, value)).collect()
    };
    let label = |rank: usize| {
        let label = ranks.get(rank).map_or("?", |rank| rank.label);
        one_line(label.strip_prefix("rank ").unwrap_or(label))
    };
    type Show<'s> = &'s dyn Fn(BoundedValue) -> String;
    let group = |head: String, show: Show<'_>, of: &dyn Fn(&RankRow) -> Option<RankValues>| {
        let of_rank = |which: fn(&RankValues) -> (BoundedValue, usize)| {
            cells(&|row| match of(row) {
                None => "?".to_owned(),
                Some(all) => {
                    let (value, rank) = which(&all);
                    let even = row.ranks > 1 && is_even(&all);
                    let who = if even { "all".to_owned() } else { label(rank) };
                    format!("{} ({who})", show(value))
                }
            })
        };
        let sum = cells(&|row| of(row).map_or_else(|| "?".to_owned(), |all| show(all.sum)));
        let heading = |below: &str| [String::new(), below.to_owned()];
        [
            LineColumn::new([head, "greatest".to_owned()], of_rank(|all| all.greatest)),
            LineColumn::new(heading("least"), of_rank(|all| all.least)),
            LineColumn::new(heading("sum"), sum),
        ]
    };
    let mut columns = Vec::new();
    for (i, &key) in table.columns.iter().enumerate() {
        let of = |row: &RankRow| row.cells.get(i).copied().flatten();
        columns.extend(group(column_head(key).join(" "), &|value| cell(key, value), &of));
    }
    let live = |value: BoundedValue| {
        format!("{}{}", if value.exact { "" } else { "~" }, signed_bytes(value.value))
    };
    let mut extras = Vec::from(group("live at peaks".to_owned(), &live, &|row| Some(row.live)));
    extras.push(LineColumn::new(["".into(), "ranks".into()], cells(&|row| row.ranks.to_string())));
    let first =
        |row: &RankRow| row.cells.first().copied().flatten().map_or(0, |c| c.greatest.0.value);
    let rows = rows.iter().map(|(line, source, row)| (*line, *source, row.map(first))).collect();
    FunctionText::with_columns(rows, columns, extras, width, most)
}

fn is_even(all: &RankValues) -> bool {
    all.greatest.0 == all.least.0 && all.greatest.0.exact
}

/// Writes a row per line. Each statistic and `live_at_peak` have eleven columns: `.greatest`,
/// `.least`, `.sum`, each with `.exact` and `.upper` (empty: no limit), the first two with `.rank`.
pub fn rank_lines_csv(
    out: &mut dyn Write,
    ranks: &[RankLines<'_>],
    table: &RankTable,
    functions: &[String],
) -> Result<(), OutputError> {
    let mut csv = CsvSheet::new(out);
    let mut head: Vec<String> = ["file", "function", "line", "ranks"].map(String::from).into();
    let keys = table.columns.iter().map(ToString::to_string);
    for key in keys.chain(["live_at_peak".to_owned()]) {
        for which in ["greatest", "least", "sum"] {
            head.extend(["", ".exact", ".upper"].map(|part| format!("{key}.{which}{part}")));
            if which != "sum" {
                head.push(format!("{key}.{which}.rank"));
            }
        }
    }
    head.push("source".to_owned());
    csv.write_record(&head)?;
    for function in table.functions.iter().filter(|f| is_wanted(f, functions)) {
        for (line, source, row) in rows(ranks, function) {
            let Some(row) = row else { continue };
            let mut record = vec![
                function.function.file.to_string(),
                function.function.name.to_string(),
                line.to_string(),
                row.ranks.to_string(),
            ];
            for all in row.cells.iter().copied().chain([Some(row.live)]) {
                let Some(RankValues { greatest, least, sum }) = all else {
                    record.extend(std::iter::repeat_n(String::new(), 11));
                    continue;
                };
                for (value, rank) in
                    [(greatest.0, Some(greatest.1)), (least.0, Some(least.1)), (sum, None)]
                {
                    let upper = value.upper.map_or_else(String::new, |upper| upper.to_string());
                    record.extend([value.value.to_string(), value.exact.to_string(), upper]);
                    record.extend(rank.and_then(|r| ranks.get(r)).map(|r| r.label.to_owned()));
                }
            }
            record.push(source.unwrap_or_default().to_owned());
            csv.write_record(&record)?;
        }
    }
    csv.flush()?;
    Ok(())
}

/// Writes one JSON object; bytes, unknown is `null`.
pub fn rank_lines_json(
    out: &mut dyn Write,
    ranks: &[RankLines<'_>],
    table: &RankTable,
    functions: &[String],
) -> Result<(), OutputError> {
    let row = |(line, source, row): (u32, Option<&str>, Option<&RankRow>)| {
        let row = row?;
        let columns = table.columns.iter().zip(&row.cells);
        Some(RankLineJson {
            line,
            source: source.map(str::to_owned),
            ranks: row.ranks as u64,
            columns: columns
                .map(|(key, cell)| (key.to_string(), cell.map(|cell| rank_values(ranks, cell))))
                .collect(),
            live_at_peak: rank_values(ranks, row.live),
        })
    };
    let functions = table.functions.iter().filter(|f| is_wanted(f, functions)).map(|function| {
        RankFunctionJson {
            function: function.function.name.to_string(),
            file: function.function.file.to_string(),
            first_line: function.function.first_line,
            peak: function.peak,
            lines: rows(ranks, function).into_iter().filter_map(row).collect(),
        }
    });
    JsonDocument::new(RankLinesJson {
        ranks: ranks.iter().map(rank_json).collect(),
        columns: table.columns.iter().map(ToString::to_string).collect(),
        functions: functions.collect(),
    })
    .write(out, true)
}

fn rank_json(rank: &RankLines<'_>) -> RankJson {
    let start = rank.profile.start();
    RankJson {
        label: rank.label.to_owned(),
        rank: start.and_then(|start| start.rank),
        pid: start.map(|start| start.pid),
        host: start.map(|start| start.host.clone()),
        device: rank.table.device.0,
        peak_allocated: rank.table.allocated.into(),
        peak_reserved: rank.table.reserved.map(Into::into),
        samples: rank.profile.samples(),
        exact: rank.profile.exact().is_some(),
        seconds: rank.profile.duration().seconds(),
        warnings: warnings(rank.profile),
    }
}

fn rank_values(ranks: &[RankLines<'_>], values: RankValues) -> RankValuesJson {
    let of = |(BoundedValue { value, exact, upper }, rank): (BoundedValue, usize)| {
        let rank = ranks.get(rank).map(|rank| rank.label.to_owned());
        RankValueJson { value, exact, upper, rank }
    };
    RankValuesJson {
        greatest: of(values.greatest),
        least: of(values.least),
        sum: values.sum.into(),
    }
}
