//! Levels over time, in bounded memory, without losing a maximum.

use crate::model::Nanos;

const MAX_POINTS: usize = 4096;

/// Greatest levels, in bytes, in a stretch of time that begins at `time`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelinePoint {
    pub time: Nanos,
    pub allocated: i64,
    pub reserved: i64,
}

/// Points in time order; each holds until the next.
#[derive(Debug, Default)]
pub struct Timeline {
    points: Vec<TimelinePoint>,
    /// Length of a stretch in nanoseconds; doubles when there are too many points.
    width: u64,
}

impl Timeline {
    /// At most 4,096 points, earliest first.
    pub fn points(&self) -> &[TimelinePoint] {
        &self.points
    }

    pub(crate) fn raise(&mut self, time: Nanos, allocated: i64) {
        let Some(last) = self.points.last_mut() else { return };
        let point = TimelinePoint { time, allocated, reserved: last.reserved };
        // A late point, by milliseconds at most, joins the last stretch.
        match point.time < last.time {
            true => merge(last, &point),
            false => self.add(point),
        }
    }

    pub(crate) fn add(&mut self, point: TimelinePoint) {
        if let Some(last) = self.points.last_mut()
            && same_stretch(self.width, last, &point)
        {
            merge(last, &point);
            return;
        }
        self.points.push(point);
        while self.points.len() > MAX_POINTS {
            // Terminates: at the greatest width there is one stretch.
            self.width = self.width.saturating_mul(2).max(1_000_000);
            let width = self.width;
            self.points.dedup_by(|later, earlier| {
                let same = same_stretch(width, earlier, later);
                if same {
                    merge(earlier, later);
                }
                same
            });
        }
    }
}

fn same_stretch(width: u64, a: &TimelinePoint, b: &TimelinePoint) -> bool {
    width == u64::MAX || width > 0 && a.time.0 / width == b.time.0 / width
}

fn merge(into: &mut TimelinePoint, from: &TimelinePoint) {
    into.allocated = into.allocated.max(from.allocated);
    into.reserved = into.reserved.max(from.reserved);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_recording_keeps_its_maximum_in_bounded_memory() {
        let mut timeline = Timeline::default();
        for i in 0..100_000u64 {
            timeline.add(TimelinePoint {
                time: Nanos(i * 1_000_000),
                allocated: if i == 77_777 { 5_000 } else { (i % 100) as i64 },
                reserved: 9,
            });
        }
        assert!(timeline.points().len() <= MAX_POINTS && timeline.points().len() > MAX_POINTS / 4);
        let top = timeline.points().iter().map(|p| p.allocated).max();
        assert_eq!(top, Some(5_000));
    }

    #[test]
    fn alternating_times_stay_within_the_limit() {
        let mut timeline = Timeline::default();
        for i in 0..20_000u64 {
            let time = Nanos(if i % 2 == 0 { 0 } else { u64::MAX });
            timeline.add(TimelinePoint { time, allocated: i as i64, reserved: 0 });
        }
        assert!(timeline.points().len() <= MAX_POINTS);
        assert_eq!(timeline.points().iter().map(|p| p.allocated).max(), Some(19_999));
    }
}
