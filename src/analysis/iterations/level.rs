//! One figure of one device in the iteration under way: its peak, what it is when the iteration ends, and how sure both are.

use std::collections::VecDeque;

use crate::model::{Nanos, Stat};

/// A level that was seen.
#[derive(Debug, Clone, Copy)]
struct ObservedLevel {
    time: Nanos,
    level: i64,
    /// Whether nothing higher was missed since the look before: the allocator's mark rose to it, or every allocation is seen.
    is_peak: bool,
}

/// The figure in an iteration that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::analysis) struct EndedFigure {
    pub(in crate::analysis) peak: i64,
    pub(in crate::analysis) peak_is_exact: bool,
    pub(in crate::analysis) at_end: i64,
    pub(in crate::analysis) at_end_is_exact: bool,
}

/// The figure so far.
#[derive(Debug, Clone, Default)]
pub(in crate::analysis) struct OpenLevel {
    /// That of this iteration for certain.
    peak: i64,
    is_exact: bool,
    /// What may have been reached unseen.
    unseen: i64,
    /// The last look at which something may have been reached unseen before it, and what.
    last_unseen: (Nanos, i64),
    /// Seen lately; the highest first, and none before a higher one.
    late: VecDeque<ObservedLevel>,
    /// As last looked at, with the allocator's mark.
    before: Option<Stat>,
    /// As last seen.
    now: i64,
    /// Looks that may be of the next iteration, and the last one that is not.
    looks: VecDeque<(Nanos, Stat)>,
    certain: Option<Stat>,
    /// The end of the iteration before, and the last look before it: the next one tells whether anything changed in between.
    awaited: Option<(Nanos, Stat)>,
    /// Whether levels come from events, not from looks.
    by_events: bool,
    /// Whether events tell of what it falls to, too.
    falls_are_seen: bool,
}

impl OpenLevel {
    /// About how many bytes its lists take.
    pub(in crate::analysis) fn memory(&self) -> u64 {
        let late = self.late.capacity() * size_of::<ObservedLevel>();
        (late + self.looks.capacity() * size_of::<(Nanos, Stat)>()) as u64
    }

    /// Takes a look at the counters. Whether nothing had changed since the last look before the end of the iteration before,
    /// if this is the look that tells.
    pub(in crate::analysis) fn on_counters(&mut self, time: Nanos, stat: Stat) -> Option<bool> {
        let before = self.before.replace(stat);
        if self.by_events {
            // The look may be a little older than the last event; what is given back has no event.
            if before.is_some_and(|before| before.freed != stat.freed) {
                self.now = stat.current;
            }
            return None;
        }
        self.now = stat.current;
        if let Some(before) = before.filter(|before| stat.peak < before.peak) {
            // The job put the mark back: before that it may have been as high as this.
            let most = stat.allocated.saturating_sub(before.allocated);
            let unseen = before.current.saturating_add(most);
            self.unseen = self.unseen.max(unseen);
            self.last_unseen = (time, unseen);
        }
        // It rose since the last look: what it rose to was reached in between.
        let is_peak = before.is_some_and(|before| before.peak < stat.peak);
        let level = if is_peak { stat.peak } else { stat.current };
        self.observe(ObservedLevel { time, level, is_peak });
        self.looks.push_back((time, stat));
        let (_, last) = self.awaited.take_if(|(end, _)| time >= *end)?;
        Some(is_unchanged(&last, &stat))
    }

    /// The level after an allocation, where every allocation is seen.
    pub(in crate::analysis) fn reached(&mut self, time: Nanos, level: i64) {
        self.by_events = true;
        self.now = level;
        self.observe(ObservedLevel { time, level, is_peak: true });
    }

    /// A level that a poll saw: there may have been higher ones.
    pub(in crate::analysis) fn saw(&mut self, time: Nanos, level: i64) {
        self.observe(ObservedLevel { time, level, is_peak: false });
    }

    /// The level after a free.
    pub(in crate::analysis) fn fell(&mut self, level: i64) {
        (self.now, self.falls_are_seen) = (level, true);
    }

    /// The level as a look tells, where frees have no events.
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

    /// What was seen before `time` is of this iteration.
    pub(in crate::analysis) fn settle(&mut self, time: Nanos) {
        while let Some(seen) = self.late.front().filter(|seen| seen.time < time) {
            if seen.level > self.peak {
                (self.peak, self.is_exact) = (seen.level, seen.is_peak);
            } else if seen.level == self.peak {
                self.is_exact |= seen.is_peak;
            }
            self.late.pop_front();
        }
        while let Some((_, stat)) = self.looks.pop_front_if(|(seen, _)| *seen < time) {
            self.certain = Some(stat);
        }
    }

    /// Ends the iteration between two events, and begins the next one.
    pub(in crate::analysis) fn end_between_events(&mut self) -> EndedFigure {
        let ended = self.end(Nanos(u64::MAX), Nanos(u64::MAX));
        self.awaited = None;
        let is_known = self.by_events && self.falls_are_seen;
        // It begins with the level that this one ended with, which may be its peak; or, where what was freed since the last
        // allocation is not known, with no more than that.
        (self.peak, self.is_exact, self.unseen) = match is_known {
            true => (self.now, true, 0),
            false => (0, false, self.now),
        };
        EndedFigure { at_end_is_exact: is_known, ..ended }
    }

    /// Ends the iteration somewhere after `from` and not after `until`, and begins the next one.
    pub(in crate::analysis) fn end(&mut self, from: Nanos, until: Nanos) -> EndedFigure {
        self.settle(from);
        let doubtful = self.late.front().map_or(0, |seen| seen.level);
        let last = self.certain.filter(|_| !self.by_events);
        let at_end = last.map_or(self.now, |last| last.current);
        // Also where it was not looked at: it is recorded whenever it changes.
        if !self.by_events || self.falls_are_seen {
            self.peak = self.peak.max(at_end);
        }
        let after = self.looks.iter().find(|(time, _)| *time >= until).map(|(_, stat)| *stat);
        self.awaited = last.filter(|_| after.is_none()).map(|last| (until, last));
        let ended = EndedFigure {
            peak: self.peak,
            peak_is_exact: self.is_exact && self.unseen.max(doubtful) <= self.peak,
            at_end,
            at_end_is_exact: last
                .zip(after)
                .is_some_and(|(last, after)| is_unchanged(&last, &after)),
        };
        self.unseen = match self.last_unseen {
            (time, unseen) if time >= from => doubtful.max(unseen),
            _ => doubtful,
        };
        self.late.clear();
        self.certain = self.looks.drain(..).next_back().map(|(_, stat)| stat).or(self.certain);
        (self.peak, self.is_exact) = (0, false);
        ended
    }

    /// Lets no peak of the iteration under way be certain: its begin was not seen.
    pub(in crate::analysis) fn began_unseen(&mut self) {
        self.unseen = i64::MAX;
    }
}

/// Whether nothing at all happened between two looks.
fn is_unchanged(before: &Stat, after: &Stat) -> bool {
    (before.allocated, before.freed, before.current)
        == (after.allocated, after.freed, after.current)
}
