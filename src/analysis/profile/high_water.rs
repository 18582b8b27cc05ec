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

/// The greatest value of a `peak` counter over a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighWater {
    /// Bytes.
    pub bytes: i64,
    /// When it was reached.
    pub reached: PeakTime,
    /// The greatest value reached since the recording began: equal to `bytes` unless that was reached before.
    pub within: i64,
    /// How often the job reset the counter (`reset_peak_memory_stats`), as far as it could be seen.
    pub resets: u32,
}

impl HighWater {
    /// The mark as of the first look.
    pub(crate) fn first(current: i64, peak: i64) -> HighWater {
        HighWater { bytes: peak, reached: PeakTime::BeforeRecording, within: current, resets: 0 }
    }

    /// The mark of a counter that counted nothing up to `time`.
    pub(crate) fn from_zero(time: Nanos) -> HighWater {
        HighWater { bytes: 0, reached: PeakTime::Between(time, time), within: 0, resets: 0 }
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
                HighWater { within: counted.within.max(bytes), ..counted }
            }
            counted => HighWater {
                bytes,
                reached: PeakTime::Between(time, time),
                within: bytes,
                resets: counted.map_or(0, |counted| counted.resets),
            },
        }
    }

    /// Takes the counter's next value; `old` is its value at the look before.
    pub(crate) fn next(&mut self, old: i64, peak: i64, current: i64, from: Nanos, to: Nanos) {
        self.within = self.within.max(current);
        if peak == old {
            return;
        }
        // A counter that rose or fell was set in this interval, so the value was reached in it.
        self.within = self.within.max(peak);
        if peak < old {
            self.resets += 1;
        }
        if peak > self.bytes {
            self.bytes = peak;
            self.reached = PeakTime::Between(from, to);
        }
    }
}
