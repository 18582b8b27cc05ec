//! Moments and durations as text.

use chrono::DateTime;

use crate::analysis::TimeToFull;

/// A moment: `2026-03-01 17:05:09 UTC`.
pub fn utc(unix_nanos: u64) -> String {
    // A u64 of nanoseconds ends in 2554, chrono's calendar later.
    let time = DateTime::from_timestamp((unix_nanos / 1_000_000_000) as i64, 0);
    time.map_or_else(String::new, |time| time.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// A duration: `12.3 s`; from ten minutes on `3 d 04:05:06`.
pub fn length(seconds: f64) -> String {
    if seconds < 600.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds as u64;
    let days = match whole / 86_400 {
        0 => String::new(),
        days => format!("{days} d "),
    };
    format!("{days}{:02}:{:02}:{:02}", whole / 3600 % 24, whole / 60 % 60, whole % 60)
}

/// A duration in words: `29 minutes`.
pub(crate) fn rough_length(seconds: f64) -> String {
    match seconds {
        few if few < 120.0 => format!("{few:.0} seconds"),
        some if some < 7200.0 => format!("{:.0} minutes", some / 60.0),
        many if many < 172_800.0 => format!("{:.0} hours", many / 3600.0),
        days => format!("{:.0} days", days / 86_400.0),
    }
}

/// When memory is full: `full in 29 minutes (21 minutes to 2 hours)`.
pub fn full_in(full: &TimeToFull) -> String {
    let [seconds, least] = [full.seconds, full.at_least].map(rough_length);
    match full.at_most.map(rough_length) {
        Some(most) if (&least, &most) == (&seconds, &seconds) => format!("full in {seconds}"),
        Some(most) => format!("full in {seconds} ({least} to {most})"),
        None => format!("full in {least} at the soonest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_772_384_709, "2026-03-01 17:05:09 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
        assert_eq!(utc(u64::MAX), "2554-07-21 23:34:33 UTC");
    }

    #[test]
    fn long_times_are_in_days() {
        assert_eq!(length(12.34), "12.3 s");
        assert_eq!(length(601.0), "00:10:01");
        assert_eq!(length(2.0 * 86_400.0 + 3661.0), "2 d 01:01:01");
    }
}
