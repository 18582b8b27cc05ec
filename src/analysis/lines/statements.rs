//! Statements of several lines: Python comes back to an earlier line of a statement without an event.
//!
//! The parts of an expression stand on lines of their own, and what is made of them (a tuple, the result of a call) belongs
//! to the line where it begins: that is executed again when its parts are done. The level then is at most what the
//! later lines of the statement reached.

use crate::analysis::lines::{BoundedValue, LineRow};
use crate::model::{SourceText, StatField};

/// Raises the upper limits of lines to which a statement may have come back. Without `source` that may be any line.
pub(in crate::analysis) fn widen(rows: &mut [LineRow], source: Option<&SourceText>) {
    rows.sort_unstable_by_key(|row| row.line);
    let statements = source.map(|source| StatementLines::new(&source.text, source.first_line));
    for first in 0..rows.len() {
        let Some((row, later)) = rows.get_mut(first..).and_then(<[LineRow]>::split_first_mut)
        else {
            continue;
        };
        let line = row.line;
        let comes_back = |other: &&LineRow| match &statements {
            Some(statements) => other.line != line && statements.same(line, other.line),
            None => true,
        };
        for (i, cell) in row.cells.iter_mut().enumerate() {
            if !matches!(cell.key.field, StatField::Peak | StatField::Current) {
                continue;
            }
            let others = later.iter().filter(comes_back).filter_map(|other| other.cells.get(i));
            for other in others {
                raise(&mut cell.value, other.value);
            }
        }
    }
}

fn raise(value: &mut BoundedValue, other: BoundedValue) {
    let least = value.upper;
    value.upper = match (value.upper, other.upper) {
        (Some(upper), Some(other)) => Some(upper.max(other)),
        _ => None,
    };
    value.exact &= value.upper == least;
}

/// The lines of a source by statement.
pub(in crate::analysis) struct StatementLines {
    first_line: u32,
    /// For each line, the number of its statement.
    numbers: Vec<usize>,
}

impl StatementLines {
    /// Cuts the text of a function into logical lines: a bracket, a string of three quotes and a backslash carry one on.
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
            // A string of one quote ends with its line, unless a backslash carries it on.
            if quotes.is_some_and(|quotes| quotes.len() == 1) && !goes_on {
                quotes = None;
            }
            if depth == 0 && quotes.is_none() && !goes_on {
                number += 1;
            }
        }
        StatementLines { first_line, numbers }
    }

    /// The first and the last line of the statement that this line belongs to.
    pub(in crate::analysis) fn range(&self, line: u32) -> Option<(u32, u32)> {
        let number = *self.numbers.get(line.checked_sub(self.first_line)? as usize)?;
        let first = self.numbers.partition_point(|other| *other < number);
        let end = self.numbers.partition_point(|other| *other <= number);
        Some((self.first_line + first as u32, self.first_line + end as u32 - 1))
    }

    fn same(&self, a: u32, b: u32) -> bool {
        let number = |line: u32| self.numbers.get(line.checked_sub(self.first_line)? as usize);
        // What is not in the source may be anywhere.
        number(a).zip(number(b)).is_none_or(|(a, b)| a == b)
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

    #[test]
    fn logical_lines_end_where_nothing_carries_them_on() {
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
            .map(|line| (10..=20).filter(|other| statements.same(line, *other)).collect())
            .collect();
        let mut different = lines.clone();
        different.dedup();
        let expected: [&[u32]; 6] = [&[10, 11], &[12, 13, 14], &[15, 16], &[17, 18], &[19], &[20]];
        assert_eq!(different, expected);
    }
}
