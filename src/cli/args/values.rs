//! Values of the command line: pids, sizes, times.

use std::time::Duration;

use crate::analysis::MarkerLine;

/// A process id, decimal or hexadecimal.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(pid) if (1..=i32::MAX as u32).contains(&pid) => Ok(pid),
        _ => Err("a process id is a number from 1 on, decimal or 0x…".to_owned()),
    }
}

/// A number of bytes: `512`, `64K`, `2M`, `1G`, in powers of 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let unit = unit.trim().trim_end_matches("iB").trim_end_matches('B');
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected a number of bytes such as 512, 64K or 2M".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "expected a number of bytes such as 512".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than any GPU has".to_owned())
}

/// A part of the time, in per cent.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent),
        _ => Err("a number of per cent greater than 0, at most 50".to_owned()),
    }
}

/// A number of seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err("a number of seconds greater than 0".to_owned()),
    }
}

/// A time: seconds, or a number with `s`, `m` or `h` after it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3600.0),
        _ => (text, 1.0),
    };
    let wrong = || "a time such as 30s, 10m or 1h".to_owned();
    let seconds = seconds(number).map_err(|_| wrong())? * factor;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// A line of a file.
pub(super) fn marker(text: &str) -> Result<MarkerLine, String> {
    let parsed = text.rsplit_once(':').and_then(|(file, line)| {
        let line = line.parse().ok().filter(|line| *line > 0)?;
        (!file.is_empty()).then(|| MarkerLine { file: file.to_owned(), line })
    });
    parsed.ok_or_else(|| "a file and the number of a line in it, such as train.py:42".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [("90", 90.0), ("2.5s", 2.5), ("10m", 600.0), ("1h", 3600.0)] {
            assert_eq!(duration(text).unwrap().as_secs_f64(), expected, "{text}");
        }
        for wrong in ["", "m", "0", "-1s", "1d", "1e300h", "10 m", "NaN"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
