//! Rows of numbers and a name, sorted.

use std::cmp::Ordering;

use crate::analysis::BoundedValue;
use crate::render;
use rustc_hash::FxHashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableColumn {
    pub(super) name: &'static str,
    /// In characters, with the space before it.
    pub(super) width: u16,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TableCell {
    Bytes(u64),
    /// Bytes relative to a mark.
    Change(i64),
    Count(u64),
    /// An identifier, without separators.
    Number(u64),
    Share(f64),
    Bounded(BoundedValue),
    Unknown,
}

impl TableCell {
    pub(super) fn text(&self) -> String {
        match self {
            TableCell::Bytes(bytes) => size(*bytes),
            TableCell::Change(0) => "0 B".to_owned(),
            TableCell::Change(bytes) => {
                let sign = if *bytes < 0 { "-" } else { "+" };
                format!("{sign}{}", size(bytes.unsigned_abs()))
            }
            TableCell::Count(count) => render::count(*count),
            TableCell::Number(number) => number.to_string(),
            TableCell::Share(share) => format!("{share:.1} %"),
            TableCell::Bounded(value) => {
                let sign = if value.exact { "" } else { "~" };
                format!("{sign}{}", size(value.value.max(0) as u64))
            }
            TableCell::Unknown => "-".to_owned(),
        }
    }

    fn key(&self) -> f64 {
        match self {
            TableCell::Bytes(value) | TableCell::Count(value) | TableCell::Number(value) => {
                *value as f64
            }
            TableCell::Change(change) => *change as f64,
            TableCell::Share(share) => *share,
            TableCell::Bounded(value) => value.value as f64,
            TableCell::Unknown => -1.0,
        }
    }
}

/// At most ten characters.
fn size(bytes: u64) -> String {
    let text = render::bytes(bytes);
    match text.split_once('.') {
        // 1023.99 MiB loses its last digit.
        Some((whole, rest)) if text.len() > 10 => format!("{whole}.{}{}", &rest[..1], &rest[2..]),
        _ => text,
    }
}

/// At most eight characters: three or four digits.
pub(super) fn short_size(bytes: u64) -> String {
    let text = render::bytes(bytes);
    let Some((number, unit)) = text.split_once(' ') else { return text };
    let digits = number.find('.').unwrap_or(number.len());
    let keep = match digits {
        1 => number.len(),
        2 => (digits + 2).min(number.len()),
        _ => digits,
    };
    format!("{} {unit}", &number[..keep])
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RowName {
    pub(super) text: String,
    pub(super) place: Option<(String, u32)>,
    /// Shown if there is room.
    pub(super) callers: Vec<(String, Option<(String, u32)>)>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct TableRow {
    pub(super) cells: Vec<TableCell>,
    pub(super) name: RowName,
    /// For the row's window; empty while that is closed.
    pub(super) detail: Vec<String>,
    /// Identifies the row in all pictures.
    pub(super) key: u64,
    pub(super) group: usize,
    pub(super) is_head: bool,
    /// Ended, so shown grey.
    pub(super) is_dim: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ViewTable {
    pub(super) title: String,
    pub(super) certainty: Option<String>,
    pub(super) columns: Vec<TableColumn>,
    pub(super) names: &'static str,
    /// Columns of numbers are dropped before names get narrower.
    pub(super) min_name_width: u16,
    pub(super) rows: Vec<TableRow>,
}

/// Shown after the bytes.
const SINCE_MARK: TableColumn = TableColumn { name: "SINCE m", width: 12 };

impl ViewTable {
    pub(super) fn mark(&self) -> FxHashMap<u64, u64> {
        let bytes = self.rows.iter().filter_map(|row| match row.cells.first() {
            Some(TableCell::Bytes(bytes)) => Some((row.key, *bytes)),
            _ => None,
        });
        bytes.collect()
    }

    /// Rows missing in `mark` had 0 bytes.
    pub(super) fn since(&self, mark: &FxHashMap<u64, u64>) -> ViewTable {
        let mut table = self.clone();
        table.columns.insert(1.min(table.columns.len()), SINCE_MARK);
        for row in &mut table.rows {
            let change = match row.cells.first() {
                Some(TableCell::Bytes(now)) => {
                    let before = mark.get(&row.key).copied().unwrap_or(0);
                    TableCell::Change(*now as i64 - before as i64)
                }
                _ => TableCell::Unknown,
            };
            row.cells.insert(1.min(row.cells.len()), change);
        }
        table
    }
}

/// The column after the last is the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SortOrder {
    pub(super) column: usize,
    pub(super) reversed: bool,
}

impl ViewTable {
    /// Numbers sort descending, names ascending; a group stays together after its head.
    pub(super) fn sorted(&self, sort: SortOrder) -> Vec<&TableRow> {
        let mut rows: Vec<&TableRow> = self.rows.iter().collect();
        let mut heads: Vec<Option<&TableRow>> = Vec::new();
        for row in self.rows.iter().filter(|row| row.is_head) {
            heads.resize(heads.len().max(row.group + 1), None);
            heads[row.group] = Some(row);
        }
        let of = |row: &TableRow| heads.get(row.group).copied().flatten();
        let by = |a: &TableRow, b: &TableRow| {
            let number = |row: &TableRow| row.cells.get(sort.column).map(TableCell::key);
            let natural = match (number(a), number(b)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                _ => Ordering::Equal,
            };
            // Other columns break ties.
            let rest = || {
                let pairs = a.cells.iter().zip(&b.cells);
                pairs.map(|(a, b)| b.key().total_cmp(&a.key())).find(|o| o.is_ne())
            };
            let names = || (&a.name.text, &a.name.place).cmp(&(&b.name.text, &b.name.place));
            match (sort.column < self.columns.len(), sort.reversed) {
                (true, false) => natural.then_with(|| rest().unwrap_or_else(names)),
                (true, true) => natural.reverse().then_with(|| rest().unwrap_or_else(names)),
                (false, false) => names(),
                (false, true) => names().reverse(),
            }
        };
        rows.sort_by(|a, b| {
            if a.group == b.group {
                return b.is_head.cmp(&a.is_head).then_with(|| by(a, b));
            }
            match (of(a), of(b)) {
                (Some(head), Some(other)) => by(head, other).then(a.group.cmp(&b.group)),
                _ => a.group.cmp(&b.group),
            }
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: u64, name: &str, group: usize, is_head: bool) -> TableRow {
        TableRow {
            cells: vec![TableCell::Bytes(bytes)],
            name: RowName { text: name.into(), ..RowName::default() },
            detail: Vec::new(),
            group,
            is_head,
            ..TableRow::default()
        }
    }

    fn names(rows: Vec<TableRow>, column: usize, reversed: bool) -> Vec<String> {
        let columns = vec![TableColumn { name: "BYTES", width: 11 }];
        let table = ViewTable {
            title: String::new(),
            certainty: None,
            columns,
            names: "NAME",
            min_name_width: 28,
            rows,
        };
        let sorted = table.sorted(SortOrder { column, reversed });
        sorted.iter().map(|row| row.name.text.clone()).collect()
    }

    #[test]
    fn numbers_sort_descending_and_names_ascending() {
        let rows = || vec![row(1, "c", 0, false), row(3, "b", 0, false), row(2, "a", 0, false)];
        assert_eq!(names(rows(), 0, false), ["b", "a", "c"]);
        assert_eq!(names(rows(), 0, true), ["c", "a", "b"]);
        assert_eq!(names(rows(), 1, false), ["a", "b", "c"]);
        assert_eq!(names(rows(), 1, true), ["c", "b", "a"]);
    }

    #[test]
    fn a_group_stays_behind_its_head() {
        let rows = vec![
            row(5, "small", 0, true),
            row(5, "s1", 0, false),
            row(8, "large", 1, true),
            row(2, "l2", 1, false),
            row(6, "l6", 1, false),
        ];
        assert_eq!(names(rows.clone(), 0, false), ["large", "l6", "l2", "small", "s1"]);
        assert_eq!(names(rows, 0, true), ["small", "s1", "large", "l2", "l6"]);
    }

    #[test]
    fn sizes_fit_their_columns() {
        for (bytes, long, short) in [
            (0, "0 B", "0 B"),
            (1023, "1023 B", "1023 B"),
            (1_048_000_000, "999.45 MiB", "999 MiB"),
            (1_073_000_000, "1023.2 MiB", "1023 MiB"),
            (1_638_075_392, "1.53 GiB", "1.53 GiB"),
            (77 << 30, "77.00 GiB", "77.0 GiB"),
        ] {
            assert_eq!((&*size(bytes), &*short_size(bytes)), (long, short));
        }
    }
}
