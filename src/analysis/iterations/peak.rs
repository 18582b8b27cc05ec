//! The levels of one device in the current iteration, and whether they are proven.
//!
//! An iteration ends between two reads of its clock, or exactly between two events. A level in
//! between is no peak, but makes lower peaks of both iterations uncertain.

use crate::analysis::iterations::iteration::IterationLevels;
use crate::analysis::iterations::level::{EndLevel, OpenLevel};
use crate::model::{CounterSnapshot, Nanos, Stat};

/// Whether the end levels, which the previous iteration's last poll read, are proven: nothing
/// changed until the next poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::analysis) struct EndConfirmation {
    pub(in crate::analysis) allocated: Option<bool>,
    pub(in crate::analysis) reserved: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub(in crate::analysis) struct OpenLevels {
    allocated: OpenLevel,
    reserved: OpenLevel,
    /// Every free, or every allocation, is seen.
    frees_seen: bool,
    all_seen: bool,
    /// Released bytes, and since when they are unchanged.
    released: Option<i64>,
    nothing_released_since: Option<Nanos>,
}

impl OpenLevels {
    pub(in crate::analysis) fn memory(&self) -> u64 {
        size_of::<OpenLevels>() as u64 + self.allocated.memory() + self.reserved.memory()
    }

    pub(in crate::analysis) fn on_counters(
        &mut self,
        time: Nanos,
        allocated: Stat,
        reserved: Stat,
    ) -> EndConfirmation {
        if self.released.replace(reserved.freed) != Some(reserved.freed) {
            self.nothing_released_since = Some(time);
        }
        let reserved = self.reserved.on_counters(time, reserved);
        // With all events seen, a poll could lie on either side of one.
        let allocated = match self.all_seen {
            true if self.frees_seen => None,
            true => {
                self.allocated.correct(allocated.current);
                None
            }
            false => self.allocated.on_counters(time, allocated),
        };
        EndConfirmation { allocated, reserved }
    }

    pub(in crate::analysis) fn nothing_released_since(&self) -> Option<Nanos> {
        self.nothing_released_since
    }

    pub(in crate::analysis) fn reserved_is_known_since(&self) -> Option<Nanos> {
        self.nothing_released_since.filter(|_| self.all_seen)
    }

    pub(in crate::analysis) fn allocated(&mut self, time: Nanos, now: CounterSnapshot) {
        self.all_seen = true;
        self.allocated.reached(time, now.allocated);
        self.reserved.reached(time, now.reserved);
    }

    pub(in crate::analysis) fn freed(&mut self, time: Nanos, level: i64) {
        self.frees_seen = true;
        self.allocated.on_free(time, level);
    }

    pub(in crate::analysis) fn on_poll(&mut self, time: Nanos, level: i64) {
        self.allocated.on_poll(time, level);
    }

    pub(in crate::analysis) fn settle(&mut self, time: Nanos) {
        self.allocated.settle(time);
        self.reserved.settle(time);
    }

    pub(in crate::analysis) fn end_between_events(&mut self) -> IterationLevels {
        levels(self.allocated.end_between_events(), self.reserved.end_between_events())
    }

    pub(in crate::analysis) fn end(&mut self, from: Nanos, until: Nanos) -> IterationLevels {
        levels(self.allocated.end(from, until), self.reserved.end(from, until))
    }

    pub(in crate::analysis) fn doubt_peaks(&mut self) {
        self.allocated.doubt_peaks();
        self.reserved.doubt_peaks();
    }
}

fn levels(allocated: EndLevel, reserved: EndLevel) -> IterationLevels {
    IterationLevels {
        peak_allocated: allocated.peak,
        exact: allocated.peak_is_exact,
        allocated: allocated.at_end,
        allocated_is_exact: allocated.at_end_is_exact,
        // Too high after an unseen release, which the next poll shows.
        peak_reserved: reserved.peak.max(reserved.at_end),
        peak_reserved_is_exact: reserved.peak_is_exact,
        reserved: reserved.at_end,
        reserved_is_exact: reserved.at_end_is_exact,
        intermediate: None,
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
    fn peak_is_exact_if_the_allocators_peak_rose() {
        let mut open = OpenLevels::default();
        open.on_counters(Nanos(1), stat(40, 100, 0), Stat::default());
        open.on_counters(Nanos(2), stat(20, 100, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(3), Nanos(3))), (40, false));
        open.on_counters(Nanos(4), stat(30, 150, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(5), Nanos(5))), (150, true));
        assert_eq!(peak(open.end(Nanos(6), Nanos(6))), (30, false));
    }

    #[test]
    fn levels_near_the_end_belong_to_neither_iteration() {
        let mut open = OpenLevels::default();
        open.on_counters(Nanos(1), stat(10, 10, 0), Stat::default());
        open.on_counters(Nanos(2), stat(10, 50, 0), Stat::default());
        open.settle(Nanos(8)); // As every sample does.
        open.on_counters(Nanos(8), stat(20, 70, 0), Stat::default());
        assert_eq!(peak(open.end(Nanos(8), Nanos(8))), (50, false));
        open.on_counters(Nanos(12), stat(20, 90, 0), Stat::default());
        open.on_counters(Nanos(19), stat(20, 90, 0), Stat::default());
        // 70 may be its own, but 90 came later.
        assert_eq!(peak(open.end(Nanos(19), Nanos(19))), (90, true));
    }

    #[test]
    fn reset_peak_stays_exact_only_after_few_allocations() {
        for (allocated, exact) in [(1040, true), (1090, false)] {
            let mut open = OpenLevels::default();
            open.on_counters(Nanos(1), stat(10, 100, 1000), Stat::default());
            open.end(Nanos(2), Nanos(2));
            open.on_counters(Nanos(3), stat(20, 30, allocated), Stat::default());
            open.on_counters(Nanos(4), stat(20, 50, allocated + 30), Stat::default());
            assert_eq!(peak(open.end(Nanos(5), Nanos(5))), (50, exact));
        }
    }

    #[test]
    fn an_iteration_that_may_begin_high_has_no_exact_peak() {
        let allocated = |level| CounterSnapshot { allocated: level, ..CounterSnapshot::default() };
        // The iteration before ended after the allocation, perhaps before the free.
        for (freed, first, exact) in [(3, 60, false), (3, 80, true), (2, 60, true)] {
            let mut open = OpenLevels::default();
            open.allocated(Nanos(1), allocated(75));
            open.freed(Nanos(freed), 50);
            open.end(Nanos(3), Nanos(4));
            open.allocated(Nanos(5), allocated(first));
            assert_eq!(peak(open.end_between_events()), (first, exact));
        }
    }

    #[test]
    fn between_two_events_all_peaks_are_exact() {
        for frees_seen in [true, false] {
            let mut open = OpenLevels::default();
            let allocated =
                |level| CounterSnapshot { allocated: level, ..CounterSnapshot::default() };
            let mut time = 0;
            let mut allocate = |open: &mut OpenLevels, level| {
                time += 1;
                open.allocated(Nanos(time), allocated(level));
            };
            allocate(&mut open, 30);
            if frees_seen {
                open.freed(Nanos(1), 10);
            }
            assert_eq!(peak(open.end_between_events()), (30, true));
            allocate(&mut open, 20);
            // The start was 10, or up to 30.
            assert_eq!(peak(open.end_between_events()), (20, frees_seen));
            allocate(&mut open, 50);
            allocate(&mut open, 40);
            assert_eq!(peak(open.end_between_events()), (50, true));
            if frees_seen {
                open.freed(Nanos(5), 35);
                let begun = open.end_between_events();
                assert_eq!((peak(begun), begun.allocated), ((40, true), 35));
            }
        }
    }

    #[test]
    fn with_every_allocation_seen_the_peak_is_exact() {
        let mut open = OpenLevels::default();
        for (time, allocated) in [(1, 10), (2, 30), (3, 20)] {
            open.allocated(
                Nanos(time),
                CounterSnapshot { allocated, ..CounterSnapshot::default() },
            );
        }
        assert_eq!(peak(open.end(Nanos(4), Nanos(4))), (30, true));
    }

    #[test]
    fn level_at_the_end_is_from_the_last_poll_before() {
        let poll = |current, freed| Stat { current, peak: 700, allocated: current + freed, freed };
        for (first, exact) in
            [(poll(555, 90), true), (poll(555, 95), false), (poll(620, 90), false)]
        {
            let mut open = OpenLevels::default();
            let reserved = Stat { current: 800, peak: 800, allocated: 800, freed: 0 };
            open.on_counters(Nanos(1), poll(600, 40), reserved);
            open.on_counters(Nanos(5), poll(555, 90), reserved);
            // Counted between 6 and 10; the next iteration then allocated.
            open.on_counters(Nanos(9), poll(630, 90), reserved);
            let ended = open.end(Nanos(6), Nanos(10));
            assert_eq!((ended.allocated, ended.allocated_is_exact), (555, false));
            assert_eq!((ended.reserved, ended.reserved_is_exact), (800, false));
            let confirmed = open.on_counters(Nanos(11), first, reserved);
            assert_eq!(confirmed, EndConfirmation { allocated: Some(exact), reserved: Some(true) });
            let none = EndConfirmation::default();
            assert_eq!(
                open.on_counters(Nanos(12), first, reserved),
                none,
                "only the first one tells"
            );
        }
    }
}
