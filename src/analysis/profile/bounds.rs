//! Bounds on every counter while a stack was on a thread.
//!
//! A stack in two successive samples is assumed to have stayed. The maximum is then at least both
//! values or a risen peak counter, at most start + allocated, end + freed and the peak counter.

use crate::analysis::attribution::{FEW_ALLOCATIONS, was_reset};
use crate::model::{AllocatorCounters, Metric, Pool, Stat};

pub(crate) const STATS: usize = 27;

pub(crate) fn stat_index(metric: Metric, pool: Pool) -> usize {
    metric as usize * 3 + pool as usize
}

fn stats(counters: &AllocatorCounters) -> impl Iterator<Item = Stat> + '_ {
    counters.stats.iter().flatten().copied()
}

#[derive(Debug, Clone)]
pub(crate) struct IntervalBounds {
    /// For stacks seen at both ends.
    lower: [i64; STATS],
    upper: [i64; STATS],
    begin: [i64; STATS],
    end: [i64; STATS],
    /// Sums over the interval.
    pub(crate) allocated: [i64; STATS],
    pub(crate) freed: [i64; STATS],
}

impl IntervalBounds {
    pub(crate) fn between(old: &AllocatorCounters, new: &AllocatorCounters) -> IntervalBounds {
        let mut step = IntervalBounds::at(new);
        for (i, (a, b)) in stats(old).zip(stats(new)).enumerate() {
            step.begin[i] = a.current;
            if a == b {
                continue;
            }
            let mut lower = a.current.max(b.current);
            let mut upper = i64::MAX;
            if was_reset(a, b) {
                let risen = b.current.saturating_sub(a.current);
                step.allocated[i] = b.allocated.max(risen).max(0);
                step.freed[i] = step.allocated[i].saturating_sub(risen).max(0);
            } else {
                step.allocated[i] = b.allocated.saturating_sub(a.allocated);
                step.freed[i] = b.freed.saturating_sub(a.freed);
                upper = a.current.saturating_add(step.allocated[i]);
                upper = upper.min(b.current.saturating_add(step.freed[i]));
            }
            if b.peak != a.peak {
                // Risen or reset: set in this interval either way.
                lower = lower.max(b.peak);
            }
            if b.peak >= a.peak {
                upper = upper.min(b.peak);
            }
            step.lower[i] = lower;
            // An inconsistent copy of the counters must not swap the limits.
            step.upper[i] = upper.max(lower);
        }
        step
    }

    /// Too many allocations: the stacks at its ends do not show their sites.
    pub(crate) fn has_many(&self) -> bool {
        self.allocated[stat_index(Metric::Allocation, Pool::All)] > FEW_ALLOCATIONS
    }

    pub(crate) fn at(counters: &AllocatorCounters) -> IntervalBounds {
        let mut current = [0; STATS];
        for (value, stat) in current.iter_mut().zip(stats(counters)) {
            *value = stat.current;
        }
        IntervalBounds {
            lower: current,
            upper: current,
            begin: current,
            end: current,
            allocated: [0; STATS],
            freed: [0; STATS],
        }
    }

    /// Extends the interval to the instants at which the stacks were read.
    pub(crate) fn widen(&mut self, first: Option<&CounterBracket>, last: Option<&CounterBracket>) {
        if let Some(first) = first {
            self.begin = first.at;
        }
        if let Some(last) = last {
            self.end = last.at;
        }
        for around in first.into_iter().chain(last) {
            for (upper, other) in self.upper.iter_mut().zip(around.upper) {
                *upper = (*upper).max(other);
            }
        }
    }
}

/// Limits at one sample, from counters read right before and after its stacks.
#[derive(Debug, Clone)]
pub(crate) struct CounterBracket {
    at: [i64; STATS],
    upper: [i64; STATS],
}

impl CounterBracket {
    pub(crate) fn between(before: &IntervalBounds, around: &IntervalBounds) -> CounterBracket {
        let mut at = [0; STATS];
        for (i, at) in at.iter_mut().enumerate() {
            // No limit: the sums were reset.
            if around.upper[i] != i64::MAX {
                let all_freed_before = before.end[i] - around.freed[i];
                let all_born_after = around.end[i] - around.allocated[i];
                *at = all_freed_before.max(all_born_after);
            }
        }
        CounterBracket { at, upper: around.upper }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StackBounds {
    /// The counters' version when the stack was last seen.
    pub(crate) version: u64,
    pub(crate) current: [i64; STATS],
    pub(crate) lower: [i64; STATS],
    pub(crate) upper: [i64; STATS],
    pub(crate) allocated: [i64; STATS],
    pub(crate) freed: [i64; STATS],
}

impl StackBounds {
    fn new() -> StackBounds {
        StackBounds {
            version: 0,
            current: [i64::MIN; STATS],
            lower: [i64::MIN; STATS],
            upper: [i64::MIN; STATS],
            allocated: [0; STATS],
            freed: [0; STATS],
        }
    }
}

/// One device's bounds, by stack number.
#[derive(Debug, Default)]
pub(crate) struct BoundsTable {
    stacks: Vec<Option<Box<StackBounds>>>,
    kept: usize,
}

impl BoundsTable {
    pub(crate) fn get(&self, stack: u32) -> Option<&StackBounds> {
        self.stacks.get(stack as usize)?.as_deref()
    }

    pub(crate) fn memory(&self) -> u64 {
        let kept = self.kept * size_of::<StackBounds>();
        (kept + self.stacks.len() * size_of::<usize>()) as u64
    }

    pub(crate) fn version(&self, stack: u32) -> u64 {
        self.get(stack).map_or(0, |b| b.version)
    }

    fn entry(&mut self, stack: u32) -> &mut StackBounds {
        let i = stack as usize;
        if i >= self.stacks.len() {
            self.stacks.resize(i + 1, None);
        }
        self.stacks[i].get_or_insert_with(|| {
            self.kept += 1;
            Box::new(StackBounds::new())
        })
    }

    /// Seen at both ends of `step`.
    pub(crate) fn stayed(&mut self, stack: u32, step: &IntervalBounds, version: u64) {
        let bounds = self.entry(stack);
        bounds.version = version;
        for i in 0..STATS {
            let seen = step.begin[i].max(step.end[i]);
            bounds.current[i] = bounds.current[i].max(seen);
            bounds.lower[i] = bounds.lower[i].max(step.lower[i]);
            bounds.upper[i] = bounds.upper[i].max(step.upper[i]);
        }
    }

    /// Seen only at the start of `step`: the lower limit is the value there.
    pub(crate) fn left(&mut self, stack: u32, step: &IntervalBounds) {
        let bounds = self.entry(stack);
        for i in 0..STATS {
            bounds.current[i] = bounds.current[i].max(step.begin[i]);
            bounds.lower[i] = bounds.lower[i].max(step.begin[i]);
            bounds.upper[i] = bounds.upper[i].max(step.upper[i]);
        }
    }

    /// Seen only at the end of `step`: likewise.
    pub(crate) fn came(&mut self, stack: u32, step: &IntervalBounds, version: u64) {
        let bounds = self.entry(stack);
        bounds.version = version;
        for i in 0..STATS {
            bounds.current[i] = bounds.current[i].max(step.end[i]);
            bounds.lower[i] = bounds.lower[i].max(step.end[i]);
            bounds.upper[i] = bounds.upper[i].max(step.upper[i]);
        }
    }

    pub(crate) fn charge(&mut self, step: &IntervalBounds, seen: &[(u32, u64)]) {
        let whole: u64 = seen.iter().map(|s| s.1).sum();
        if whole == 0 {
            return;
        }
        let mut done = 0;
        let part = |value: i64, upto: u64| match value.checked_mul(upto as i64) {
            Some(product) => product / whole as i64,
            None => (i128::from(value) * i128::from(upto) / i128::from(whole)) as i64,
        };
        for &(stack, weight) in seen {
            let bounds = self.entry(stack);
            for i in 0..STATS {
                if step.allocated[i] | step.freed[i] == 0 {
                    continue;
                }
                // Running portions add up to the whole.
                let (from, to) = (done, done + weight);
                bounds.allocated[i] += part(step.allocated[i], to) - part(step.allocated[i], from);
                bounds.freed[i] += part(step.freed[i], to) - part(step.freed[i], from);
            }
            done += weight;
        }
    }
}
