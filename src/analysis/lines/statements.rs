//! Statements of several lines: Python returns to their first line without an event.
//!
//! The parts of an expression have lines of their own; the first line then runs again for the
//! result. Its level is at most the greatest of the later lines.

use crate::analysis::lines::{BoundedValue, LineRow};
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

#[derive(Debug)]
pub(in crate::analysis) struct StatementLines {
    first_line: u32,
    /// Statement number by line.
    numbers: Vec<usize>,
}

impl StatementLines {
    /// Splits into logical lines: brackets, triple quotes and backslashes continue one.
    pub(in crate::analysis) fn new(text: &str, first_line: u32) -> StatementLines {
        let mut numbers = Vec::new();
        let (mut number, mut depth) = (0, 0usize);
        let mut quotes: Option<&str> = None;
        for line in text.lines() {
            numbers.push(number);
            let mut rest = line;
            let mut goes_on = false;
            while let Some(next) = rest.chars().next() {
                if let Some(end) = quotes {
                    if let Some(after) = rest.strip_prefix(end) {
                        (quotes, rest) = (None, after);
                        continue;
                    }
                    let skipped = if next == '\\' { 2 } else { 1 };
                    goes_on = next == '\\' && rest.len() == 1;
                    rest = skip(rest, skipped);
                    continue;
                }
                match next {
                    '#' => break,
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    '\\' => goes_on = rest.len() == 1,
                    '"' | '\'' => {
                        let marks = ["\"\"\"", "'''", "\"", "'"];
                        quotes = marks.into_iter().find(|mark| rest.starts_with(mark));
                        rest = skip(rest, quotes.map_or(1, str::len));
                        continue;
                    }
                    _ => {}
                }
                rest = skip(rest, 1);
            }
            // Only a backslash continues a single-quoted string.
            if quotes.is_some_and(|quotes| quotes.len() == 1) && !goes_on {
                quotes = None;
            }
            if depth == 0 && quotes.is_none() && !goes_on {
                number += 1;
            }
        }
        StatementLines { first_line, numbers }
    }

    /// Its statement's first and last line.
    pub(in crate::analysis) fn range(&self, line: u32) -> Option<(u32, u32)> {
        let number = *self.numbers.get(line.checked_sub(self.first_line)? as usize)?;
        let first = self.numbers.partition_point(|other| *other < number);
        let end = self.numbers.partition_point(|other| *other <= number);
        // A trace may say `u32::MAX`.
        let line = |index: usize| self.first_line.saturating_add(index as u32);
        Some((line(first), line(end.saturating_sub(1))))
    }

    pub(in crate::analysis) fn number(&self, line: u32) -> Option<usize> {
        self.numbers.get(line.checked_sub(self.first_line)? as usize).copied()
    }

    /// The first line of each statement.
    pub(in crate::analysis) fn first_lines<'a>(
        &self,
        text: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let mut next = 0;
        text.lines().zip(&self.numbers).filter_map(move |(line, number)| {
            let is_first = *number == next;
            next += usize::from(is_first);
            is_first.then_some(line)
        })
    }
}

fn skip(text: &str, count: usize) -> &str {
    let mut chars = text.chars();
    chars.by_ref().take(count).for_each(drop);
    chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::lines::LineCell;
    use crate::model::{FunctionId, Metric, Pool, StatKey};

    #[test]
    fn logical_lines_end_without_a_continuation() {
        let text = concat!(
            "def f(a,\n",           // 10
            "      b):\n",          // 11
            "    x = (g(a), # (\n", // 12
            "         ')',\n",      // 13
            "         h(b))\n",     // 14
            "    y = a + \\\n",     // 15
            "        b\n",          // 16
            "    z = '''(\n",       // 17
            "    \"'''\n",          // 18
            "    t = 'it\\'s ['\n", // 19
            "    return t\n",       // 20
        );
        let statements = StatementLines::new(text, 10);
        let lines: Vec<Vec<u32>> = (10..=20)
            .map(|line| {
                (10..=20)
                    .filter(|other| statements.number(line) == statements.number(*other))
                    .collect()
            })
            .collect();
        let mut different = lines.clone();
        different.dedup();
        let expected: [&[u32]; 6] = [&[10, 11], &[12, 13, 14], &[15, 16], &[17, 18], &[19], &[20]];
        assert_eq!(different, expected);
    }

    fn row(line: u32, upper: Option<i64>) -> LineRow {
        let key =
            StatKey { metric: Metric::AllocatedBytes, pool: Pool::All, field: StatField::Peak };
        let value = BoundedValue { value: 1, exact: true, upper };
        let cells = vec![LineCell { key, value, untold: None, one_run: None }];
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

    #[test]
    fn source_starting_at_the_last_possible_line_does_not_overflow() {
        let statements = StatementLines::new("x = (\n1)\n", u32::MAX);
        assert_eq!(statements.range(u32::MAX), Some((u32::MAX, u32::MAX)));
    }
}
