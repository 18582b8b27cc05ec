//! Which lines form one statement.

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

    pub(in crate::analysis) fn number(&self, line: u32) -> Option<usize> {
        self.numbers.get(line.checked_sub(self.first_line)? as usize).copied()
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

    #[test]
    fn source_starting_at_the_last_possible_line_does_not_overflow() {
        let statements = StatementLines::new("x = (\n1)\n", u32::MAX);
        assert_eq!(statements.number(u32::MAX), Some(0));
    }
}
