//! Statistics of stack nodes and lines.

use crate::analysis::exact::{ANYTHING, NOTHING, UnknownReason};
use crate::model::{Metric, StatField, StatKey};

use super::{BoundedValue, LineCell, LineRow};

#[derive(Debug, Clone, Copy)]
pub(in crate::analysis) struct NodeStat {
    pub(in crate::analysis) current: i64,
    pub(in crate::analysis) lower: i64,
    pub(in crate::analysis) upper: i64,
    pub(in crate::analysis) allocated: i64,
    pub(in crate::analysis) freed: i64,
    /// Exact recordings: limits of the greatest level at an end.
    pub(in crate::analysis) ended: (i64, i64),
    /// The greatest possible level at an end.
    pub(in crate::analysis) again: i64,
    /// Limits of the greatest single execution: [allocated, freed].
    pub(in crate::analysis) least: [i64; 2],
    pub(in crate::analysis) most: [i64; 2],
}

impl NodeStat {
    pub(in crate::analysis) const NONE: NodeStat = NodeStat {
        current: NOTHING,
        lower: NOTHING,
        upper: NOTHING,
        allocated: 0,
        freed: 0,
        ended: (NOTHING, NOTHING),
        again: NOTHING,
        least: [0; 2],
        most: [0; 2],
    };

    /// Merges a callee, or the same line on another stack.
    pub(super) fn raise_to(&mut self, other: &NodeStat) {
        self.current = self.current.max(other.current);
        self.lower = self.lower.max(other.lower);
        self.upper = self.upper.max(other.upper);
        self.again = self.again.max(other.again);
        self.least = std::array::from_fn(|i| self.least[i].max(other.least[i]));
    }

    pub(super) fn end(&mut self, other: &NodeStat) {
        self.ended = (self.ended.0.max(other.ended.0), self.ended.1.max(other.ended.1));
        self.most = std::array::from_fn(|i| self.most[i].max(other.most[i]));
    }

    pub(super) fn add(&mut self, other: &NodeStat) {
        self.allocated += other.allocated;
        self.freed += other.freed;
    }

    fn bounded(&self, field: StatField, sure: SumAccuracy) -> BoundedValue {
        let sum =
            |value| BoundedValue { value, exact: sure.exact, upper: sure.exact.then_some(value) };
        match field {
            StatField::Peak => sure.between(self.lower, self.upper),
            StatField::Current if sure.events => {
                sure.between(self.ended.0, self.ended.1.max(self.again))
            }
            // At a sample, not at the line's end.
            StatField::Current => {
                let upper = (self.upper != ANYTHING).then_some(self.upper.max(self.current));
                BoundedValue { value: self.current, exact: false, upper }
            }
            StatField::Allocated => sum(self.allocated),
            StatField::Freed => sum(self.freed),
        }
    }

    fn one_run(&self, field: StatField, sure: SumAccuracy) -> Option<BoundedValue> {
        let which = match field {
            StatField::Allocated => 0,
            StatField::Freed => 1,
            StatField::Peak | StatField::Current => return None,
        };
        let run = BoundedValue {
            value: self.least[which],
            exact: self.least[which] == self.most[which],
            upper: Some(self.most[which]),
        };
        match sure.runs {
            true => Some(run),
            false => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(in crate::analysis) struct LineStats {
    pub(in crate::analysis) stats: Vec<NodeStat>,
    pub(in crate::analysis) live: u64,
    pub(in crate::analysis) live_self: u64,
    pub(in crate::analysis) samples: u64,
}

impl LineStats {
    pub(super) fn raise_to(&mut self, other: &LineStats) {
        for (a, b) in self.stats.iter_mut().zip(&other.stats) {
            a.raise_to(b);
        }
    }

    pub(super) fn end(&mut self, other: &LineStats) {
        for (a, b) in self.stats.iter_mut().zip(&other.stats) {
            a.end(b);
        }
    }

    pub(super) fn add(&mut self, other: &LineStats) {
        for (a, b) in self.stats.iter_mut().zip(&other.stats) {
            a.add(b);
        }
        self.live += other.live;
        self.samples += other.samples;
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::analysis) struct SumAccuracy {
    /// Sums are true: not estimated, and no event is in doubt.
    pub(in crate::analysis) exact: bool,
    /// Freed bytes are known.
    pub(in crate::analysis) frees: bool,
    /// Current values are from exact events, at a line's end; else from samples.
    pub(in crate::analysis) events: bool,
    /// Levels may be marked exact, and have upper limits.
    pub(in crate::analysis) levels: bool,
    /// The least and the most of one execution of a line are known.
    pub(in crate::analysis) runs: bool,
    /// No free was pending: active bytes fell with each.
    pub(in crate::analysis) active: bool,
}

impl SumAccuracy {
    pub(in crate::analysis) const OF_SAMPLES: SumAccuracy = SumAccuracy {
        exact: false,
        frees: true,
        events: false,
        levels: true,
        runs: false,
        active: true,
    };

    fn between(self, lower: i64, upper: i64) -> BoundedValue {
        match lower {
            NOTHING => UNKNOWN,
            _ => BoundedValue {
                value: lower,
                exact: lower == upper && self.levels,
                upper: (upper != ANYTHING && self.levels).then_some(upper),
            },
        }
    }
}

pub(super) const UNKNOWN: BoundedValue = BoundedValue { value: 0, exact: false, upper: None };

pub(super) fn row(
    line: u32,
    node: &LineStats,
    columns: &[StatKey],
    unknown: &[Option<UnknownReason>],
    sure: SumAccuracy,
) -> LineRow {
    let seen = node.stats[0].current != NOTHING;
    let cells = columns
        .iter()
        .zip(&node.stats[1..])
        .zip(unknown)
        .map(|((&key, sums), &unknown)| {
            let is_active = key.metric == Metric::ActiveBytes && !sure.active;
            let sure = SumAccuracy { levels: sure.levels && !is_active, ..sure };
            let is_level = matches!(key.field, StatField::Peak | StatField::Current);
            let value = match (unknown, is_level && !seen) {
                (None, false) => sums.bounded(key.field, sure),
                _ => UNKNOWN,
            };
            let one_run = sums.one_run(key.field, sure).filter(|_| unknown.is_none());
            LineCell { key, value, unknown, one_run }
        })
        .collect();
    LineRow {
        line,
        cells,
        allocated: node.stats[0].allocated,
        freed: sure.frees.then_some(node.stats[0].freed),
        live: node.live,
        live_self: node.live_self,
        samples: node.samples,
    }
}
