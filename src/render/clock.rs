//! Moments and lengths of time as text.

/// A moment as date and time of day: `2026-03-01 17:05:09 UTC`.
pub fn utc(unix_nanos: u64) -> String {
    let seconds = unix_nanos / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The date of a day since 1970-01-01, after Howard Hinnant's `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A length of time: `12.3 s`, from ten minutes on `3 d 04:05:06`.
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
    }

    #[test]
    fn long_times_are_in_days() {
        assert_eq!(length(12.34), "12.3 s");
        assert_eq!(length(601.0), "00:10:01");
        assert_eq!(length(2.0 * 86_400.0 + 3661.0), "2 d 01:01:01");
    }
}
