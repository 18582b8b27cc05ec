//! The allocator's own high-water mark, and whether the recording saw it being reached.

use crate::model::Nanos;

/// When a high-water mark was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeakTime {
    /// Before the first look: the counter stood there already.
    BeforeRecording,
    /// Between two looks of the recording.
    Between(Nanos, Nanos),
}

/// Bytes that the allocator had at some moment between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenLevel {
    pub(crate) bytes: i64,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// The greatest value of a `peak` counter over a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighWater {
    /// Bytes.
    pub bytes: i64,
    /// When it was reached.
    pub reached: PeakTime,
    /// The greatest value reached since the recording began: equal to `bytes` unless that was reached before.
    pub within: i64,
    /// When that was reached: not before the first moment, not after the second.
    pub seen: (Nanos, Nanos),
    /// How often the job reset the counter (`reset_peak_memory_stats`), as far as it could be seen.
    pub resets: u32,
}

impl HighWater {
    /// The mark as of the first look, at `time`.
    pub(crate) fn first(current: i64, peak: i64, time: Nanos) -> HighWater {
        HighWater {
            bytes: peak,
            reached: PeakTime::BeforeRecording,
            within: current,
            seen: (time, time),
            resets: 0,
        }
    }

    /// The mark of a counter that counted nothing up to `time`.
    pub(crate) fn from_zero(time: Nanos) -> HighWater {
        HighWater::of_level(SeenLevel { bytes: 0, from: time, to: time })
    }

    /// The mark where nothing but a level is known.
    pub(crate) fn of_level(level: SeenLevel) -> HighWater {
        HighWater {
            bytes: level.bytes,
            reached: PeakTime::Between(level.from, level.to),
            within: level.bytes,
            seen: (level.from, level.to),
            resets: 0,
        }
    }

    /// The same with a level that was seen besides the readings of the counters.
    pub(crate) fn with_level(mut self, level: SeenLevel) -> HighWater {
        // A level that was seen tells the moment better than a mark that rose to it.
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

    /// The same where it is known to have been as high as `bytes` while it was recorded, but not
    /// when.
    pub(crate) fn at_least(self, bytes: i64) -> HighWater {
        let within = self.within.max(bytes);
        HighWater { within, bytes: self.bytes.max(within), ..self }
    }

    /// The mark that the counter had before the recording, where nothing as high was seen since.
    pub fn older(&self) -> Option<i64> {
        (self.reached == PeakTime::BeforeRecording && self.bytes > self.within)
            .then_some(self.bytes)
    }

    /// The mark of a counter, if there is one, and the greatest value that events told, with its time. `is_event` is given
    /// the event's bytes and the mark's and says whose moment it is.
    pub(crate) fn with_event(
        counted: Option<HighWater>,
        (time, bytes): (Nanos, i64),
        is_event: fn(i64, i64) -> bool,
    ) -> HighWater {
        match counted {
            // What the counters saw before the events may have been higher.
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

    /// Takes the counter's next value; `old` is its value at the look before.
    pub(crate) fn next(&mut self, old: i64, peak: i64, current: i64, from: Nanos, to: Nanos) {
        if current > self.within {
            (self.within, self.seen) = (current, (to, to));
        }
        if peak == old {
            return;
        }
        // A counter that rose or fell was set in this interval, so the value was reached in it.
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
