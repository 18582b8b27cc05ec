//! Levels over time, in columns that lose no maximum.

use crate::model::Nanos;

/// Extremes of allocated bytes, and the most reserved bytes if any, in one column.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelColumn {
    pub highest: u64,
    pub lowest: u64,
    pub reserved: Option<u64>,
}

/// Allocated and reserved bytes over time.
#[derive(Debug, Clone)]
pub struct LevelHistory {
    from: u64,
    width: u64,
    /// Extremes and last value; `None` if nothing changed.
    columns: Vec<Option<(LevelColumn, LevelColumn)>>,
    now: Option<LevelColumn>,
}

impl LevelHistory {
    pub(crate) fn new(from: Nanos, to: Nanos, columns: usize) -> LevelHistory {
        let length = to.0.saturating_sub(from.0).max(1);
        let width = length.div_ceil(columns.max(1) as u64).max(1);
        let count = length.div_ceil(width).max(1) as usize;
        LevelHistory { from: from.0, width, columns: vec![None; count], now: None }
    }

    pub(crate) fn column_of(&self, time: Nanos) -> usize {
        let column = time.0.saturating_sub(self.from) / self.width;
        usize::try_from(column).unwrap_or(usize::MAX).min(self.columns.len() - 1)
    }

    pub(crate) fn add(&mut self, time: Nanos, allocated: u64, reserved: Option<u64>) {
        let column = self.column_of(time);
        let seen = LevelColumn { highest: allocated, lowest: allocated, reserved };
        // The previous value belongs here, too.
        let before = self.columns[column].map(|column| column.0).or(self.now).unwrap_or(seen);
        let whole = LevelColumn {
            highest: before.highest.max(allocated),
            lowest: before.lowest.min(allocated),
            reserved: before.reserved.max(reserved),
        };
        self.columns[column] = Some((whole, seen));
        self.now = Some(seen);
    }

    pub(crate) fn now(&self) -> Option<LevelColumn> {
        self.now
    }

    /// Its start, and a column's length.
    pub fn scale(&self) -> (Nanos, Nanos) {
        (Nanos(self.from), Nanos(self.width))
    }

    /// `None` before the first value.
    pub fn columns(&self) -> Vec<Option<LevelColumn>> {
        let mut held = None;
        let column = |seen: &Option<(LevelColumn, LevelColumn)>| {
            let shown = seen.map(|(whole, _)| whole).or(held);
            held = seen.map(|(_, last)| last).or(held);
            shown
        };
        self.columns.iter().map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_holds_until_the_next_and_maxima_are_kept() {
        let mut levels = LevelHistory::new(Nanos(100), Nanos(1100), 10);
        for (time, bytes) in [(250, 5), (260, 90), (270, 7), (600, 3)] {
            levels.add(Nanos(time), bytes, None);
        }
        let columns = levels.columns();
        let of = |column: &Option<LevelColumn>| column.map(|c| (c.lowest, c.highest));
        let seen: Vec<_> = columns.iter().map(of).collect();
        let held = Some((7, 7));
        let after = Some((3, 3));
        assert_eq!(
            seen,
            [None, Some((5, 90)), held, held, held, Some((3, 7)), after, after, after, after]
        );
    }
}
