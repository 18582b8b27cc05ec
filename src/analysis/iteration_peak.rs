//! The levels of one device in the iteration under way, and how sure its peak is.
//!
//! Where an iteration ends is known to within the time between two looks at its clock, or exactly, between two events. In the
//! first case a level seen in that time may be of either iteration: it gives none of them a peak, but makes a lower one
//! uncertain in both.

use std::collections::VecDeque;

use super::iterations::IterationLevels;
use crate::model::{Levels, Nanos, Stat};

/// A level that was seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time: Nanos,
    level: i64,
    /// Whether nothing higher was missed since the look before: the allocator's mark rose to it, or every allocation is seen.
    is_peak: bool,
}

/// The levels so far.
#[derive(Debug, Default)]
pub(super) struct OpenLevels {
    /// Those of this iteration for certain.
    levels: IterationLevels,
    /// What may have been reached unseen.
    unseen: i64,
    /// The last look at which something may have been reached unseen before it, and what.
    last_unseen: (Nanos, i64),
    /// Seen lately; the highest first, and none before a higher one.
    late: VecDeque<Seen>,
    /// `allocated_bytes` as last seen, with the allocator's mark.
    before: Option<Stat>,
    /// Whether every allocation is seen: counters then tell nothing more.
    all_seen: bool,
    /// Whether every free is, too.
    frees_seen: bool,
}

impl OpenLevels {
    /// About how many bytes it takes.
    pub(super) fn memory(&self) -> u64 {
        (size_of::<OpenLevels>() + self.late.capacity() * size_of::<Seen>()) as u64
    }

    /// Counters that were looked at.
    pub(super) fn look(&mut self, time: Nanos, allocated: Stat, reserved: Stat) {
        self.levels.reserved = reserved.current;
        self.levels.peak_reserved = self.levels.peak_reserved.max(reserved.current);
        if self.all_seen && self.frees_seen {
            return; // Read a moment before or after the event that it stands beside.
        }
        self.levels.allocated = allocated.current;
        if self.all_seen {
            return;
        }
        let before = self.before.replace(allocated);
        if let Some(before) = before.filter(|before| allocated.peak < before.peak) {
            // The job put the mark back: before that it may have been as high as this.
            let most = allocated.allocated.saturating_sub(before.allocated);
            let unseen = before.current.saturating_add(most);
            self.unseen = self.unseen.max(unseen);
            self.last_unseen = (time, unseen);
        }
        // It rose since the last look: what it rose to was reached in between.
        let is_peak = before.is_some_and(|before| before.peak < allocated.peak);
        let level = if is_peak { allocated.peak } else { allocated.current };
        self.see(Seen { time, level, is_peak });
    }

    /// The levels after an allocation, where every allocation is seen.
    pub(super) fn allocated(&mut self, time: Nanos, now: Levels) {
        self.all_seen = true;
        self.levels.allocated = now.allocated;
        self.levels.reserved = now.reserved;
        self.levels.peak_reserved = self.levels.peak_reserved.max(now.reserved);
        self.see(Seen { time, level: now.allocated, is_peak: true });
    }

    /// The level once memory has been given up, where every free is seen.
    pub(super) fn freed(&mut self, level: i64) {
        self.frees_seen = true;
        if self.all_seen {
            self.levels.allocated = level;
        }
    }

    fn see(&mut self, mut seen: Seen) {
        while let Some(last) = self.late.back().filter(|last| last.level <= seen.level) {
            seen.is_peak |= last.is_peak && last.level == seen.level;
            self.late.pop_back();
        }
        self.late.push_back(seen);
    }

    /// What was seen before `time` is of this iteration.
    pub(super) fn settle(&mut self, time: Nanos) {
        while let Some(seen) = self.late.front().filter(|seen| seen.time < time) {
            let levels = &mut self.levels;
            if seen.level > levels.peak_allocated {
                (levels.peak_allocated, levels.exact) = (seen.level, seen.is_peak);
            } else if seen.level == levels.peak_allocated {
                levels.exact |= seen.is_peak;
            }
            self.late.pop_front();
        }
    }

    /// Ends the iteration between two events, and begins the next one.
    pub(super) fn end_between_events(&mut self) -> IterationLevels {
        let ended = self.end(Nanos(u64::MAX));
        // It begins with the level that this one ended with, which may be its peak.
        self.unseen = 0;
        self.levels.exact = self.all_seen && self.frees_seen;
        if !self.frees_seen {
            // What was freed since the last allocation is not known: it began with no more than that.
            self.unseen = self.levels.allocated;
            self.levels.peak_allocated = 0;
        }
        ended
    }

    /// Ends the iteration somewhere after `from`, and begins the next one.
    pub(super) fn end(&mut self, from: Nanos) -> IterationLevels {
        self.settle(from);
        let doubtful = self.late.front().map_or(0, |seen| seen.level);
        let mut ended = self.levels;
        ended.exact &= self.unseen.max(doubtful) <= ended.peak_allocated;
        // It was at least as high as where it ended; between two looks, that is.
        self.unseen = match self.last_unseen {
            (time, unseen) if time >= from => doubtful.max(unseen),
            _ => doubtful,
        };
        self.late.clear();
        self.levels.peak_allocated = self.levels.allocated;
        self.levels.peak_reserved = self.levels.reserved;
        self.levels.exact = false;
        ended
    }

    /// Lets no peak of the iteration under way be certain: its begin was not seen.
    pub(super) fn began_unseen(&mut self) {
        self.unseen = i64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(current: i64, peak: i64, allocated: i64) -> Stat {
        Stat { current, peak, allocated, freed: 0 }
    }

    fn peak(levels: IterationLevels) -> (i64, bool) {
        (levels.peak_allocated, levels.exact)
    }

    #[test]
    fn a_peak_is_exact_where_the_mark_rose_to_it() {
        let mut open = OpenLevels::default();
        open.look(Nanos(1), stat(40, 100, 0), Stat::default());
        open.look(Nanos(2), stat(20, 100, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(3))), (40, false));
        open.look(Nanos(4), stat(30, 150, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(5))), (150, true));
        // Nothing happened: the level it began with.
        assert_eq!(peak(open.end(Nanos(6))), (30, false));
    }

    #[test]
    fn what_was_seen_around_the_end_is_of_neither() {
        let mut open = OpenLevels::default();
        open.look(Nanos(1), stat(10, 10, 0), Stat::default());
        open.look(Nanos(2), stat(10, 50, 0), Stat::default());
        open.settle(Nanos(8)); // As every sample does.
        open.look(Nanos(8), stat(20, 70, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(8))), (50, false));
        open.look(Nanos(12), stat(20, 90, 0), Stat::default());
        open.look(Nanos(19), stat(20, 90, 0), Stat::default());
        // 70 may have been its own, but it came to 90.
        assert_eq!(peak(open.end(Nanos(19))), (90, true));
    }

    #[test]
    fn a_mark_put_back_leaves_a_peak_exact_only_where_little_was_allocated() {
        for (allocated, exact) in [(1040, true), (1090, false)] {
            let mut open = OpenLevels::default();
            open.look(Nanos(1), stat(10, 100, 1000), Stat::default());
            open.end(Nanos(2));
            open.look(Nanos(3), stat(20, 30, allocated), Stat::default());
            open.look(Nanos(4), stat(20, 50, allocated + 30), Stat::default());
            assert_eq!(peak(open.end(Nanos(5))), (50, exact));
        }
    }

    #[test]
    fn between_two_events_all_peaks_are_exact() {
        for frees_seen in [true, false] {
            let mut open = OpenLevels::default();
            let allocated = |level| Levels { allocated: level, ..Levels::default() };
            let mut time = 0;
            let mut allocate = |open: &mut OpenLevels, level| {
                time += 1;
                open.allocated(Nanos(time), allocated(level));
            };
            allocate(&mut open, 30);
            if frees_seen {
                open.freed(10);
            }
            assert_eq!(peak(open.end_between_events()), (30, true));
            allocate(&mut open, 20);
            // It began with 10, or with anything up to 30.
            assert_eq!(peak(open.end_between_events()), (20, frees_seen));
            allocate(&mut open, 50);
            allocate(&mut open, 40);
            assert_eq!(peak(open.end_between_events()), (50, true));
            if frees_seen {
                open.freed(35);
                // Nothing was allocated in it: the level it began with.
                let begun = open.end_between_events();
                assert_eq!((peak(begun), begun.allocated), ((40, true), 35));
            }
        }
    }

    #[test]
    fn with_every_allocation_seen_the_peak_is_exact() {
        let mut open = OpenLevels::default();
        for (time, allocated) in [(1, 10), (2, 30), (3, 20)] {
            open.allocated(Nanos(time), Levels { allocated, ..Levels::default() });
        }
        assert_eq!(peak(open.end(Nanos(4))), (30, true));
    }
}
