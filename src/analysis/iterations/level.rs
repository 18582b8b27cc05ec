//! One counter in the current iteration.

use std::collections::VecDeque;

use crate::model::{Nanos, Stat};

/// Older frees are forgotten: the end of an iteration is known to some milliseconds.
const MAX_FREES: usize = 1 << 12;

#[derive(Debug, Clone, Copy)]
struct ObservedLevel {
    time: Nanos,
    level: i64,
    /// Nothing higher was missed since the previous poll.
    is_peak: bool,
    /// The level then: a peak may be over.
    current: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::analysis) struct EndLevel {
    pub(in crate::analysis) peak: i64,
    pub(in crate::analysis) peak_is_exact: bool,
    pub(in crate::analysis) at_end: i64,
    pub(in crate::analysis) at_end_is_exact: bool,
}

#[derive(Debug, Clone, Default)]
pub(in crate::analysis) struct OpenLevel {
    /// Proven for this iteration.
    peak: i64,
    is_exact: bool,
    /// The most that may have been missed.
    unseen: i64,
    /// The last poll that may have missed a level, and that level.
    last_unseen: (Nanos, i64),
    /// Recent levels, the highest first.
    late: VecDeque<ObservedLevel>,
    /// The last level that certainly belongs to this iteration or an earlier one.
    settled: (Nanos, i64),
    /// Recent frees, with the level after each.
    frees: VecDeque<(Nanos, i64)>,
    /// The last poll, with the allocator's peak.
    before: Option<Stat>,
    now: i64,
    /// Polls perhaps of the next iteration, and the last that is not.
    polls: VecDeque<(Nanos, Stat)>,
    certain: Option<Stat>,
    /// The previous iteration's end and last poll, until a poll shows if anything changed.
    awaited: Option<(Nanos, Stat)>,
    by_events: bool,
    falls_are_seen: bool,
}

impl OpenLevel {
    pub(in crate::analysis) fn memory(&self) -> u64 {
        let late = self.late.capacity() * size_of::<ObservedLevel>();
        let frees = self.frees.capacity() * size_of::<(Nanos, i64)>();
        (late + frees + self.polls.capacity() * size_of::<(Nanos, Stat)>()) as u64
    }

    /// At the first poll after the previous iteration's end, returns whether nothing changed since
    /// its last poll.
    pub(in crate::analysis) fn on_counters(&mut self, time: Nanos, stat: Stat) -> Option<bool> {
        let before = self.before.replace(stat);
        if self.by_events {
            // A poll may precede the last event; releases have no event.
            if before.is_some_and(|before| before.freed != stat.freed) {
                self.now = stat.current;
            }
            return None;
        }
        self.now = stat.current;
        if let Some(before) = before.filter(|before| stat.peak < before.peak) {
            // The job reset the peak, which may have been this high.
            let most = stat.allocated.saturating_sub(before.allocated);
            let unseen = before.current.saturating_add(most);
            self.unseen = self.unseen.max(unseen);
            self.last_unseen = (time, unseen);
        }
        // The new peak was reached since the previous poll.
        let is_peak = before.is_some_and(|before| before.peak < stat.peak);
        let level = if is_peak { stat.peak } else { stat.current };
        self.observe(ObservedLevel { time, level, is_peak, current: stat.current });
        self.polls.push_back((time, stat));
        let (_, last) = self.awaited.take_if(|(end, _)| time >= *end)?;
        Some(is_unchanged(&last, &stat))
    }

    /// For recordings of all allocations.
    pub(in crate::analysis) fn reached(&mut self, time: Nanos, level: i64) {
        self.by_events = true;
        self.now = level;
        self.observe(ObservedLevel { time, level, is_peak: true, current: level });
    }

    /// Higher levels may be missed.
    pub(in crate::analysis) fn on_poll(&mut self, time: Nanos, level: i64) {
        self.observe(ObservedLevel { time, level, is_peak: false, current: level });
    }

    pub(in crate::analysis) fn on_free(&mut self, time: Nanos, level: i64) {
        (self.now, self.falls_are_seen) = (level, true);
        if self.frees.len() == MAX_FREES {
            self.frees.pop_front();
        }
        self.frees.push_back((time, level));
    }

    /// The level at `time`, or a higher one of the last allocation before.
    fn level_at(&mut self, time: Nanos) -> i64 {
        let last = self.frees.partition_point(|(freed, _)| *freed < time).checked_sub(1);
        let freed = last.and_then(|last| self.frees.get(last).copied());
        self.frees.clear();
        match freed {
            Some((freed, level)) if freed >= self.settled.0 => level,
            _ => self.settled.1,
        }
    }

    /// By a poll, if frees have no events.
    pub(in crate::analysis) fn correct(&mut self, level: i64) {
        self.now = level;
    }

    fn observe(&mut self, mut seen: ObservedLevel) {
        while let Some(last) = self.late.back().filter(|last| last.level <= seen.level) {
            seen.is_peak |= last.is_peak && last.level == seen.level;
            self.late.pop_back();
        }
        self.late.push_back(seen);
    }

    /// Levels before `time` belong to this iteration.
    pub(in crate::analysis) fn settle(&mut self, time: Nanos) {
        while let Some(seen) = self.late.front().filter(|seen| seen.time < time) {
            if seen.level > self.peak {
                (self.peak, self.is_exact) = (seen.level, seen.is_peak);
            } else if seen.level == self.peak {
                self.is_exact |= seen.is_peak;
            }
            self.settled = (seen.time, seen.current);
            self.late.pop_front();
        }
        while let Some((_, stat)) = self.polls.pop_front_if(|(seen, _)| *seen < time) {
            self.certain = Some(stat);
        }
    }

    pub(in crate::analysis) fn end_between_events(&mut self) -> EndLevel {
        let ended = self.end(Nanos(u64::MAX), Nanos(u64::MAX));
        self.awaited = None;
        let is_known = self.by_events && self.falls_are_seen;
        // The next iteration starts at this level, or below if frees are unseen.
        (self.peak, self.is_exact, self.unseen) = match is_known {
            true => (self.now, true, 0),
            false => (0, false, self.now),
        };
        EndLevel { at_end_is_exact: is_known, ..ended }
    }

    /// The end lies in `(from, until]`.
    pub(in crate::analysis) fn end(&mut self, from: Nanos, until: Nanos) -> EndLevel {
        self.settle(from);
        let doubtful = self.late.front().map_or(0, |seen| seen.level);
        let last = self.certain.filter(|_| !self.by_events);
        let at_end = last.map_or(self.now, |last| last.current);
        // Recorded at every change, so also known without a poll.
        if !self.by_events || self.falls_are_seen {
            self.peak = self.peak.max(at_end);
        }
        let after = self.polls.iter().find(|(time, _)| *time >= until).map(|(_, stat)| *stat);
        self.awaited = last.filter(|_| after.is_none()).map(|last| (until, last));
        let ended = EndLevel {
            peak: self.peak,
            peak_is_exact: self.is_exact && self.unseen.max(doubtful) <= self.peak,
            at_end,
            at_end_is_exact: last
                .zip(after)
                .is_some_and(|(last, after)| is_unchanged(&last, &after)),
        };
        // The next iteration may begin before anything is freed.
        let at_begin = doubtful.max(self.level_at(from));
        self.unseen = match self.last_unseen {
            (time, unseen) if time >= from => at_begin.max(unseen),
            _ => at_begin,
        };
        self.late.clear();
        self.certain = self.polls.drain(..).next_back().map(|(_, stat)| stat).or(self.certain);
        (self.peak, self.is_exact) = (0, false);
        ended
    }

    pub(in crate::analysis) fn doubt_peaks(&mut self) {
        self.unseen = i64::MAX;
    }
}

fn is_unchanged(before: &Stat, after: &Stat) -> bool {
    (before.allocated, before.freed, before.current)
        == (after.allocated, after.freed, after.current)
}
