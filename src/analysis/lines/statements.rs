//! Statements of several lines: Python returns to their first line without an event.
//!
//! The parts of an expression have lines of their own; the first line then runs again for the
//! result. Its level is at most the greatest of the later lines.

use crate::analysis::lines::{BoundedValue, LineRow};
use crate::analysis::statements::StatementLines;
use crate::model::{SourceText, StatField};

/// Raises upper limits of lines to which a statement may return; without `source`, of all.
pub(in crate::analysis) fn widen(rows: &mut [LineRow], source: Option<&SourceText>) {
    rows.sort_unstable_by_key(|row| row.line);
    let statements = source.map(|source| StatementLines::new(&source.text, source.first_line));
    // One pass: only the trace limits the row count.
    let (mut all, mut of_statement, mut outside) =
        (ReachedLimits::default(), ReachedLimits::default(), ReachedLimits::default());
    let mut last_number = None;
    let mut rest = rows;
    while let Some(line) = rest.last().map(|row| row.line) {
        let count = match &statements {
            Some(_) => rest.iter().rev().take_while(|row| row.line == line).count(),
            None => 1,
        };
        let (before, here) = rest.split_at_mut(rest.len() - count);
        let number = statements.as_ref().and_then(|statements| statements.number(line));
        if number.is_none() || number != last_number {
            of_statement = ReachedLimits::default();
        }
        last_number = number;
        let reached: Vec<&ReachedLimits> = match number {
            Some(_) => vec![&of_statement, &outside],
            // May belong to any statement.
            None => vec![&all],
        };
        let raised: Vec<Vec<BoundedValue>> = here
            .iter()
            .map(|row| reached.iter().fold(values(row), |row, it| it.raise(row)))
            .collect();
        for row in here.iter() {
            all.add(row);
            match number {
                Some(_) => of_statement.add(row),
                None => outside.add(row),
            }
        }
        for (row, raised) in here.iter_mut().zip(raised) {
            for (cell, value) in row.cells.iter_mut().zip(raised) {
                if matches!(cell.key.field, StatField::Peak | StatField::Current) {
                    cell.value = value;
                }
            }
        }
        rest = before;
    }
}

fn values(row: &LineRow) -> Vec<BoundedValue> {
    row.cells.iter().map(|cell| cell.value).collect()
}

/// The greatest upper limit per cell; `None` if a row has none.
#[derive(Default)]
struct ReachedLimits(Vec<Option<i64>>);

impl ReachedLimits {
    fn add(&mut self, row: &LineRow) {
        if self.0.is_empty() {
            self.0 = row.cells.iter().map(|cell| cell.value.upper).collect();
        }
        for (reached, cell) in self.0.iter_mut().zip(&row.cells) {
            *reached = reached.zip(cell.value.upper).map(|(a, b)| a.max(b));
        }
    }

    fn raise(&self, mut values: Vec<BoundedValue>) -> Vec<BoundedValue> {
        for (value, reached) in values.iter_mut().zip(&self.0) {
            let least = value.upper;
            value.upper = value.upper.zip(*reached).map(|(a, b)| a.max(b));
            value.exact &= value.upper == least;
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::lines::LineCell;
    use crate::model::{FunctionId, Metric, Pool, StatKey};

    fn row(line: u32, upper: Option<i64>) -> LineRow {
        let key =
            StatKey { metric: Metric::AllocatedBytes, pool: Pool::All, field: StatField::Peak };
        let value = BoundedValue { value: 1, exact: true, upper };
        let cells = vec![LineCell { key, value, unknown: None, one_run: None }];
        let (allocated, freed) = (0, None);
        LineRow { line, cells, allocated, freed, live: 0, live_self: 0, samples: 0 }
    }

    fn widen_one_by_one(rows: &mut [LineRow], source: Option<&SourceText>) {
        rows.sort_unstable_by_key(|row| row.line);
        let statements = source.map(|it| StatementLines::new(&it.text, it.first_line));
        for at in 0..rows.len() {
            let (line, others) = (rows[at].line, rows[at + 1..].to_vec());
            let value = &mut rows[at].cells[0].value;
            for other in others {
                let comes_back = statements.as_ref().is_none_or(|statements| {
                    let numbers = [line, other.line].map(|line| statements.number(line));
                    let is_same = numbers.contains(&None) || numbers[0] == numbers[1];
                    line != other.line && is_same
                });
                if comes_back {
                    let least = value.upper;
                    value.upper = least.zip(other.cells[0].value.upper).map(|(a, b)| a.max(b));
                    value.exact &= value.upper == least;
                }
            }
        }
    }

    #[test]
    fn row_limit_rises_to_later_rows_of_its_statement() {
        let mut random = 7_u64;
        let mut next = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        for case in 0..2000 {
            let lines = ["x = (a,\n", "b)\n", "f()\n", "y = '''\n", "'''\n", "if \\\n"];
            let text: String = (0..next(12)).map(|_| lines[next(6) as usize]).collect();
            let source = SourceText { function: FunctionId(0), first_line: 3, text: text.into() };
            let source = (case % 4 > 0).then_some(&source);
            let mut rows: Vec<LineRow> = (0..next(20))
                .map(|_| row(next(18) as u32, (next(9) > 0).then(|| next(5) as i64)))
                .collect();
            rows.sort_by_key(|row| row.line);
            rows.dedup_by_key(|row| row.line);
            let mut expected = rows.clone();
            widen_one_by_one(&mut expected, source);
            widen(&mut rows, source);
            assert_eq!(rows, expected, "{source:?}");
        }
    }

    #[test]
    fn many_rows_of_one_function_do_not_take_quadratic_time() {
        // Less than 1 MiB of a trace; 2e10 comparisons would not end.
        let lines = 200_000;
        let text: String = (0..lines).map(|_| "x = (\n").collect();
        let source = SourceText { function: FunctionId(0), first_line: 0, text: text.into() };
        for source in [None, Some(&source)] {
            let mut rows: Vec<LineRow> =
                (0..lines).map(|line| row(line, Some(i64::from(line)))).collect();
            widen(&mut rows, source);
            let uppers: Vec<_> = rows.iter().filter_map(|row| row.cells[0].value.upper).collect();
            assert_eq!(uppers, vec![i64::from(lines) - 1; lines as usize]);
        }
    }
}
