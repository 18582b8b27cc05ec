//! Maps a file's numbers to dense ones: after lost definitions, later ones move up.
//!
//! [`crate::model::StackTable`] takes definitions without gaps. An undamaged trace keeps its
//! numbers.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
struct IdRun {
    to: u32,
    length: u32,
}

/// Runs of numbers moved equally, by first number. A damaged file may bring a million in any order.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdMap {
    runs: BTreeMap<u32, IdRun>,
    next: u32,
}

impl IdMap {
    /// `None`: its definition was lost.
    pub(crate) fn get(&self, file: u32) -> Option<u32> {
        let (from, run) = self.runs.range(..=file).next_back()?;
        let offset = file - from;
        (offset < run.length).then(|| run.to + offset)
    }

    /// Gives `file` the next number. `None` if it has one.
    pub(crate) fn define(&mut self, file: u32) -> Option<u32> {
        if self.get(file).is_some() {
            return None;
        }
        let to = self.next;
        self.next = to.checked_add(1)?;
        if let Some((from, run)) = self.runs.range_mut(..=file).next_back()
            && from + run.length == file
            && run.to + run.length == to
        {
            run.length += 1;
        } else {
            self.runs.insert(file, IdRun { to, length: 1 });
        }
        Some(to)
    }

    pub(crate) fn len(&self) -> usize {
        self.next as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_the_same_without_loss() {
        let mut numbering = IdMap::default();
        for number in 0..10 {
            assert_eq!(numbering.get(number), None);
            assert_eq!(numbering.define(number), Some(number));
            assert_eq!(numbering.define(number), None, "defined twice");
            assert_eq!(numbering.get(number), Some(number));
        }
        assert_eq!(numbering.runs.len(), 1);
    }

    #[test]
    fn numbers_stay_dense_when_definitions_are_lost() {
        let mut numbering = IdMap::default();
        for (next, number) in (0..).zip([0, 1, 5, 6, 9, 3]) {
            assert_eq!(numbering.define(number), Some(next));
        }
        let all: Vec<_> = (0..11).map(|n| numbering.get(n)).collect();
        let expected = [0, 1, 99, 5, 99, 2, 3, 99, 99, 4, 99].map(|n| (n != 99).then_some(n));
        assert_eq!(all, expected);
    }
}
