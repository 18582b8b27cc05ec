//! Which names each statement of a function assigns, read once from its source text.

use rustc_hash::FxHashMap;

use crate::analysis::statements::StatementLines;
use crate::model::SourceText;

/// Names of one statement that are told apart.
pub(super) const MAX_NAMES: usize = 15;

/// The statements of a function and their names. As large as its text, whatever stands in that.
#[derive(Debug)]
pub(super) struct AssignmentIndex {
    statements: StatementLines,
    /// For each statement, where its names end in `names`.
    ends: Vec<usize>,
    /// The numbers of names, statement by statement; of each statement from left to right, and none twice.
    names: Vec<u32>,
    /// How many statements assign each name.
    uses: Vec<u32>,
}

impl AssignmentIndex {
    /// Reads the text.
    pub(super) fn new(source: &SourceText) -> AssignmentIndex {
        let statements = StatementLines::new(&source.text, source.first_line);
        let mut numbers: FxHashMap<&str, u32> = FxHashMap::default();
        let (mut ends, mut names, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        for first in statements.first_lines(&source.text) {
            let begin = names.len();
            for name in assigned_names(first) {
                let next = uses.len() as u32;
                let number = *numbers.entry(name).or_insert(next);
                if number == next {
                    uses.push(0);
                }
                if !names[begin..].contains(&number) {
                    names.push(number);
                    uses[number as usize] += 1;
                }
            }
            ends.push(names.len());
        }
        AssignmentIndex { statements, ends, names, uses }
    }

    /// The number of the statement at `line`, and its first and last line.
    pub(super) fn statement(&self, line: u32) -> Option<(usize, (u32, u32))> {
        Some((self.statements.number(line)?, self.statements.range(line)?))
    }

    /// The names that a statement assigns or deletes.
    pub(super) fn names_of(&self, statement: usize) -> &[u32] {
        let begin = statement.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(statement).copied().unwrap_or(0);
        self.names.get(begin.copied().unwrap_or(0)..end).unwrap_or_default()
    }

    /// Those of them that other statements assign as well.
    pub(super) fn names_shared_with_others(&self, statement: usize) -> Vec<u32> {
        let is_shared = |name: &u32| self.uses.get(*name as usize).is_some_and(|uses| *uses > 1);
        self.names_of(statement).iter().copied().filter(is_shared).collect()
    }
}

/// The names that a statement beginning with this line assigns or deletes, from left to right.
fn assigned_names(line: &str) -> Vec<&str> {
    let line = line.trim();
    let targets = if let Some(rest) = line.strip_prefix("del ") {
        Some(rest)
    } else if let Some(rest) = line.strip_prefix("for ") {
        rest.split_once(" in ").map(|(targets, _)| targets)
    } else {
        before_assignment(line)
    };
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
    };
    let targets = targets.unwrap_or_default();
    let of_target =
        |target: &str| target.split_once(':').map_or(target.len(), |(name, _)| name.len());
    targets
        .trim_matches(|c| matches!(c, ' ' | '(' | ')' | '[' | ']'))
        .split(',')
        .map(|target| target[..of_target(target)].trim().trim_start_matches('*'))
        .filter(is_name)
        .take(MAX_NAMES)
        .collect()
}

/// What stands before the `=` of an assignment, or before its operator (`+=`).
fn before_assignment(line: &str) -> Option<&str> {
    let mut depth = 0usize;
    let bytes = line.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'\'' | b'"' | b'#' => return None,
            b'=' if depth == 0 => {
                let before = at.checked_sub(1).and_then(|at| bytes.get(at));
                if bytes.get(at + 1) == Some(&b'=') || matches!(before, Some(b'=' | b'!' | b':')) {
                    return None;
                }
                let target = line[..at].trim_end_matches(|c| "+-*/%&|^@<>".contains(c));
                // `a <= b` compares, `a <<= b` assigns.
                let operator = &line[target.len()..at];
                return (!matches!(operator, "<" | ">")).then_some(target);
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FunctionId;

    /// First and last line of statements.
    type Lines = (u32, u32);

    fn source(text: &str) -> SourceText {
        SourceText { function: FunctionId(0), first_line: 1, text: text.into() }
    }

    /// The lines of the statement at `line`, and for each name that it shares with others those of the others.
    fn other_assignments(text: &str, line: u32) -> Option<(Lines, Vec<Vec<Lines>>)> {
        let index = AssignmentIndex::new(&source(text));
        let (here, lines) = index.statement(line)?;
        let mut all: Vec<(usize, Lines)> =
            (1..=text.lines().count() as u32).filter_map(|at| index.statement(at)).collect();
        all.dedup();
        let of_name = |name: &u32| {
            let others = all.iter().filter(|(it, _)| *it != here);
            let others = others.filter(|(it, _)| index.names_of(*it).contains(name));
            others.map(|(_, lines)| *lines).collect()
        };
        Some((lines, index.names_shared_with_others(here).iter().map(of_name).collect()))
    }

    #[test]
    fn the_other_statements_that_assign_the_same_names() {
        let text = concat!(
            "def forward(self, x):\n", // 1
            "    q = self.q(x)\n",     // 2
            "    k = self.k(\n",       // 3
            "        x)\n",            // 4
            "    v = self.v(x)\n",     // 5
            "    q, k = rotate(q,\n",  // 6
            "        k)\n",            // 7
            "    return q @ k @ v\n",  // 8
        );
        let at_rotate = Some(((6, 7), vec![vec![(2, 2)], vec![(3, 4)]]));
        assert_eq!(other_assignments(text, 6), at_rotate);
        assert_eq!(other_assignments(text, 7), at_rotate);
        assert_eq!(other_assignments(text, 5), Some(((5, 5), Vec::new())));
        assert_eq!(other_assignments(text, 8), Some(((8, 8), Vec::new())));
        assert_eq!(other_assignments(text, 9), None);
        // A name that stands twice in one statement is shared with no other.
        assert_eq!(other_assignments("x, x = f()\n", 1), Some(((1, 1), Vec::new())));
    }

    #[test]
    fn the_names_that_a_statement_assigns() {
        let names = |line| assigned_names(line).join(" ");
        assert_eq!(names("    q, k = rotate(q, k, cos=c)"), "q k");
        assert_eq!(names("x += f(y)"), "x");
        assert_eq!(names("x <<= 2"), "x");
        assert_eq!(names("(a, *b) = f("), "a b");
        assert_eq!(names("x: torch.Tensor = f(x)"), "x");
        assert_eq!(names("self.cache = f(a == b)"), "self.cache");
        assert_eq!(names("del q, k"), "q k");
        assert_eq!(names("for x, y in zip(a, b):"), "x y");
        for other in ["if x == y:", "x <= y", "f(a=b)", "return f(x)", "h[0] = x", "# x = y"] {
            assert_eq!(names(other), "", "{other}");
        }
    }
}
