//! Maps instructions to lines, in CPython's three formats (3.8 to 3.15).

use crate::python::layouts::LineFormat;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::python) struct CodeLines {
    first_line: u32,
    /// First byte of each run, and its line or 0.
    runs: Vec<(u32, u32)>,
    last_line: u32,
}

impl CodeLines {
    /// A damaged table never fails, but gives wrong lines.
    pub(in crate::python) fn decode(
        format: LineFormat,
        table: &[u8],
        first_line: u32,
    ) -> CodeLines {
        let mut lines = CodeLines { first_line, runs: Vec::new(), last_line: first_line };
        match format {
            LineFormat::Increments => lines.increments(table),
            LineFormat::Ranges => lines.ranges(table),
            LineFormat::Locations => lines.locations(table),
        }
        lines
    }

    pub(in crate::python) fn unknown(first_line: u32) -> CodeLines {
        CodeLines { first_line, runs: vec![(0, 0)], last_line: first_line }
    }

    pub(in crate::python) fn bytes_held(&self) -> usize {
        self.runs.capacity() * size_of::<(u32, u32)>()
    }

    pub(in crate::python) fn last_line(&self) -> u32 {
        self.last_line
    }

    pub(in crate::python) fn all(&self) -> Vec<u32> {
        let mut lines: Vec<u32> = self.runs.iter().map(|&(_, line)| line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.retain(|line| *line > 0);
        lines
    }

    /// 0 if the instruction has no line.
    pub(in crate::python) fn at(&self, offset: i64) -> u32 {
        if offset < 0 {
            return self.first_line;
        }
        let after = self.runs.partition_point(|&(start, _)| i64::from(start) <= offset);
        match after.checked_sub(1).and_then(|i| self.runs.get(i)) {
            Some(&(_, line)) => line,
            None => self.first_line,
        }
    }

    fn push(&mut self, start: u32, line: i64) {
        let line = u32::try_from(line).unwrap_or(0);
        self.last_line = self.last_line.max(line);
        match self.runs.last_mut() {
            Some((at, old)) if *at == start => *old = line,
            Some((_, old)) if *old == line => {}
            _ => self.runs.push((start, line)),
        }
    }

    /// Byte and line increments (Objects/lnotab_notes.txt, 3.9).
    fn increments(&mut self, table: &[u8]) {
        let (mut start, mut line) = (0u32, i64::from(self.first_line));
        self.push(0, line);
        for pair in table.chunks_exact(2) {
            start = start.saturating_add(u32::from(pair[0]));
            line += i64::from(pair[1] as i8);
            self.push(start, line);
        }
    }

    /// Lengths in bytes and line increments, -128 for no line (Objects/lnotab_notes.txt, 3.10).
    fn ranges(&mut self, table: &[u8]) {
        let (mut start, mut line) = (0u32, i64::from(self.first_line));
        for pair in table.chunks_exact(2) {
            let increment = pair[1] as i8;
            if increment == -128 {
                self.push(start, 0);
            } else {
                line += i64::from(increment);
                if pair[0] != 0 {
                    self.push(start, line);
                }
            }
            start = start.saturating_add(u32::from(pair[0]));
        }
    }

    /// First byte `1 kkkk lll`: kind, length in code units less one (Objects/locations.md, 3.11).
    fn locations(&mut self, table: &[u8]) {
        let (mut start, mut line) = (0u32, i64::from(self.first_line));
        let mut at = 0;
        while let Some(&first) = table.get(at) {
            at += 1;
            let kind = first >> 3 & 15;
            let mut has_line = true;
            match kind {
                15 => has_line = false,
                14 => {
                    line = line.saturating_add(signed(table, &mut at));
                    for _ in 0..3 {
                        unsigned(table, &mut at);
                    }
                }
                13 => line = line.saturating_add(signed(table, &mut at)),
                10..=12 => {
                    line = line.saturating_add(i64::from(kind - 10));
                    at += 2;
                }
                _ => at += 1,
            }
            self.push(start, if has_line { line } else { 0 });
            start = start.saturating_add((u32::from(first & 7) + 1) * 2);
        }
    }
}

/// Six bits per byte, lowest first; bit 6 marks all but the last.
fn unsigned(table: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0u64, 0);
    while let Some(&byte) = table.get(*at) {
        *at += 1;
        if shift < 58 {
            value |= u64::from(byte & 63) << shift;
        }
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

fn signed(table: &[u8], at: &mut usize) -> i64 {
    let value = unsigned(table, at);
    let magnitude = (value >> 1) as i64;
    if value & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_lnotab_notes() {
        // From Objects/lnotab_notes.txt.
        let table = [6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1];
        let lines = CodeLines::decode(LineFormat::Increments, &table, 1);
        let at: Vec<u32> = [-1, 0, 6, 49, 50, 349, 350, 361].map(|o| lines.at(o)).to_vec();
        assert_eq!(at, [1, 1, 2, 2, 7, 7, 207, 208]);
        assert_eq!(lines.last_line(), 208);
    }

    #[test]
    fn a_range_without_a_line_has_none() {
        let table = [4, 0, 2, 0x80, 6, 2];
        let lines = CodeLines::decode(LineFormat::Ranges, &table, 10);
        assert_eq!([0, 4, 6, 11].map(|o| lines.at(o)), [10, 0, 12, 12]);
    }

    #[test]
    fn every_kind_of_location_is_decoded() {
        // RESUME without columns (+0), short, one-line (+1), long (-1), none.
        let table = [0xe8, 0x00, 0x80, 0x11, 0xd9, 1, 2, 0xf0, 0x03, 0, 1, 2, 0xf8];
        let lines = CodeLines::decode(LineFormat::Locations, &table, 5);
        assert_eq!([0, 2, 4, 6, 8, 10].map(|o| lines.at(o)), [5, 5, 6, 6, 5, 0]);
        assert_eq!(lines.last_line(), 6);
    }

    proptest! {
        #[test]
        fn any_line_table_can_be_decoded(table in proptest::collection::vec(any::<u8>(), 0..300), first in any::<u32>(), at in any::<i64>()) {
            for format in [LineFormat::Increments, LineFormat::Ranges, LineFormat::Locations] {
                let lines = CodeLines::decode(format, &table, first);
                let _ = (lines.at(at), lines.last_line());
            }
        }
    }
}
