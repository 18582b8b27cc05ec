//! Joins the line tables of several ranks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analysis::lines::{BoundedValue, LineFunction, LineRow, LineTable};
use crate::analysis::profile::Profile;
use crate::model::{Function, StatKey};

/// A value in all ranks that know it: the extremes with their ranks, and the sum, not exact with
/// unknown ranks.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankValues {
    pub greatest: (BoundedValue, usize),
    pub least: (BoundedValue, usize),
    pub sum: BoundedValue,
}

/// A line of several ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRow {
    /// 0 if unknown.
    pub line: u32,
    /// Ranks that have the line.
    pub ranks: usize,
    /// By column; `None` if no rank knows it.
    pub cells: Vec<Option<RankValues>>,
    /// Live at each rank's peak; an estimate unless `exact`.
    pub live: RankValues,
}

/// A function's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFunction {
    /// Same name, file and first line in all ranks.
    pub function: Function,
    /// A rank's index and its lines, to find the source.
    pub found: (usize, LineFunction),
    /// Greatest value of the first column.
    pub peak: i64,
    /// The lines seen, in order.
    pub rows: Vec<RankRow>,
}

/// The table of several ranks. Functions are by peak, then by the live bytes of a line.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankTable {
    pub columns: Vec<StatKey>,
    pub functions: Vec<RankFunction>,
}

/// File, first line, name.
type FunctionKey<'a> = (&'a str, u32, &'a str);

impl RankTable {
    /// Joins tables that have the same columns.
    pub fn new(ranks: &[(&Profile, &LineTable)]) -> RankTable {
        let mut functions: BTreeMap<FunctionKey<'_>, Vec<(usize, &Function, &LineFunction)>> =
            BTreeMap::new();
        for (index, (profile, table)) in ranks.iter().enumerate() {
            for lines in &table.functions {
                let Some(function) = profile.stacks().get_function(lines.function) else {
                    continue;
                };
                let key = (&*function.file, function.first_line, &*function.name);
                functions.entry(key).or_default().push((index, function, lines));
            }
        }
        let columns = ranks.first().map_or(Vec::new(), |(_, table)| table.columns.clone());
        let mut functions: Vec<RankFunction> = functions
            .into_values()
            .filter_map(|found| {
                let (index, function, lines) = *found.first()?;
                let mut rows: BTreeMap<u32, Vec<(usize, &LineRow)>> = BTreeMap::new();
                for (index, _, lines) in &found {
                    for row in &lines.rows {
                        rows.entry(row.line).or_default().push((*index, row));
                    }
                }
                Some(RankFunction {
                    function: function.clone(),
                    found: (index, lines.clone()),
                    peak: found.iter().map(|(_, _, lines)| lines.peak).max().unwrap_or(0),
                    rows: rows.iter().filter_map(|(line, rows)| row(*line, rows, ranks)).collect(),
                })
            })
            .collect();
        functions.sort_by_key(|f| {
            let live: i64 = f.rows.iter().map(|row| row.live.sum.value).max().unwrap_or(0);
            Reverse((f.peak, live))
        });
        RankTable { columns, functions }
    }
}

fn row(line: u32, rows: &[(usize, &LineRow)], ranks: &[(&Profile, &LineTable)]) -> Option<RankRow> {
    let columns = rows.first()?.1.cells.len();
    let cells = (0..columns)
        .map(|column| {
            let known = rows.iter().map(|(rank, row)| {
                let value = row.cells.get(column).map(|cell| cell.value);
                (*rank, value.filter(is_known))
            });
            ranked(known)
        })
        .collect();
    let live = ranked(rows.iter().map(|(rank, row)| {
        let value = i64::try_from(row.live).unwrap_or(i64::MAX);
        let exact = ranks.get(*rank).is_some_and(|(_, table)| !table.estimated);
        (*rank, Some(BoundedValue { value, exact, upper: exact.then_some(value) }))
    }))?;
    Some(RankRow { line, ranks: rows.len(), cells, live })
}

/// At least 0 without an upper limit is unknown.
fn is_known(value: &BoundedValue) -> bool {
    value.exact || value.upper.is_some() || value.value > 0
}

fn ranked(values: impl Iterator<Item = (usize, Option<BoundedValue>)>) -> Option<RankValues> {
    let mut all: Option<RankValues> = None;
    let mut unknown = false;
    for (rank, value) in values {
        let Some(value) = value else {
            unknown = true;
            continue;
        };
        all = Some(match all {
            None => RankValues { greatest: (value, rank), least: (value, rank), sum: value },
            Some(RankValues { greatest, least, sum }) => RankValues {
                greatest: if value.value > greatest.0.value { (value, rank) } else { greatest },
                least: if value.value < least.0.value { (value, rank) } else { least },
                sum: BoundedValue {
                    value: sum.value.saturating_add(value.value),
                    exact: sum.exact && value.exact,
                    upper: sum.upper.zip(value.upper).map(|(a, b)| a.saturating_add(b)),
                },
            },
        });
    }
    if let (Some(all), true) = (&mut all, unknown) {
        (all.sum.exact, all.sum.upper) = (false, None);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: i64) -> Option<BoundedValue> {
        Some(BoundedValue { value, exact: true, upper: Some(value) })
    }

    #[test]
    fn unknown_rank_is_no_minimum_and_makes_the_sum_inexact() {
        let between = Some(BoundedValue { value: 5, exact: false, upper: Some(9) });
        let ranks = [exact(7), None, between, exact(7)];
        let all = ranked(ranks.into_iter().enumerate()).unwrap();
        assert_eq!((all.greatest.1, all.least.1), (0, 2));
        assert_eq!(all.sum, BoundedValue { value: 19, exact: false, upper: None });
        let known = ranked([exact(7), between].into_iter().enumerate()).unwrap();
        assert_eq!(known.sum, BoundedValue { value: 12, exact: false, upper: Some(16) });
        assert_eq!(ranked([None, None].into_iter().enumerate()), None);
        assert!(!is_known(&BoundedValue { value: 0, exact: false, upper: None }));
        assert!(is_known(&BoundedValue { value: 0, exact: true, upper: Some(0) }));
    }
}
