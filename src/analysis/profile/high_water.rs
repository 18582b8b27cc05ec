//! Peaks, and when they were reached.

use crate::model::Nanos;

/// When a peak was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeakTime {
    /// Before the first reading.
    BeforeRecording,
    /// Between two readings.
    Between(Nanos, Nanos),
}

/// A level at some moment between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenLevel {
    pub(crate) bytes: i64,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// The greatest value of a `peak` counter, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighWater {
    /// Including a value older than the recording.
    pub bytes: i64,
    /// When that was reached.
    pub reached: PeakTime,
    /// Greatest value during the recording.
    pub within: i64,
    /// Earliest and latest time of `within`.
    pub seen: (Nanos, Nanos),
    /// Observed `reset_peak_memory_stats`.
    pub resets: u32,
}

impl HighWater {
    pub(crate) fn first(current: i64, peak: i64, time: Nanos) -> HighWater {
        HighWater {
            bytes: peak,
            reached: PeakTime::BeforeRecording,
            within: current,
            seen: (time, time),
            resets: 0,
        }
    }

    pub(crate) fn from_zero(time: Nanos) -> HighWater {
        HighWater::of_level(SeenLevel { bytes: 0, from: time, to: time })
    }

    pub(crate) fn of_level(level: SeenLevel) -> HighWater {
        HighWater {
            bytes: level.bytes,
            reached: PeakTime::Between(level.from, level.to),
            within: level.bytes,
            seen: (level.from, level.to),
            resets: 0,
        }
    }

    /// Adds a level that is not a counter's value.
    pub(crate) fn with_level(mut self, level: SeenLevel) -> HighWater {
        // It gives a better time than a risen peak counter.
        if level.bytes >= self.within {
            (self.within, self.seen) = (level.bytes, (level.from, level.to));
        }
        let is_older = self.reached == PeakTime::BeforeRecording;
        if level.bytes > self.bytes || level.bytes == self.bytes && !is_older {
            self.bytes = level.bytes;
            self.reached = PeakTime::Between(level.from, level.to);
        }
        self
    }

    /// Raises it, at an unknown time of the recording.
    pub(crate) fn at_least(self, bytes: i64) -> HighWater {
        let within = self.within.max(bytes);
        HighWater { within, bytes: self.bytes.max(within), ..self }
    }

    /// The value, if older than the recording and not reached again.
    pub fn older(&self) -> Option<i64> {
        (self.reached == PeakTime::BeforeRecording && self.bytes > self.within)
            .then_some(self.bytes)
    }

    /// `is_event(event bytes, mark)`: whether the event gives the time.
    pub(crate) fn with_event(
        counted: Option<HighWater>,
        (time, bytes): (Nanos, i64),
        is_event: fn(i64, i64) -> bool,
    ) -> HighWater {
        match counted {
            // The counters may have been higher before the events.
            Some(counted) if !is_event(bytes, counted.bytes) => {
                let within = match bytes >= counted.within {
                    true => (bytes, (time, time)),
                    false => (counted.within, counted.seen),
                };
                HighWater { within: within.0, seen: within.1, ..counted }
            }
            counted => HighWater {
                resets: counted.map_or(0, |counted| counted.resets),
                ..HighWater::of_level(SeenLevel { bytes, from: time, to: time })
            },
        }
    }

    pub(crate) fn next(&mut self, old: i64, peak: i64, current: i64, from: Nanos, to: Nanos) {
        if current > self.within {
            (self.within, self.seen) = (current, (to, to));
        }
        if peak == old {
            return;
        }
        // A changed counter was set in this interval.
        if peak > self.within {
            (self.within, self.seen) = (peak, (from, to));
        }
        if peak < old {
            self.resets += 1;
        }
        if peak > self.bytes {
            self.bytes = peak;
            self.reached = PeakTime::Between(from, to);
        }
    }
}
