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

/// A part of one processor, in per cent, with the sign or without.
pub(super) fn processor_percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("a number of per cent greater than 0, at most 100".to_owned()),
    }
}

/// A number of seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(seconds),
        _ => Err("a number of seconds greater than 0".to_owned()),
    }
}

/// A length of time: `500ms`, `120s`, `10min` or `10m`, `2h`, `3d`; a number by itself is seconds.
pub fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 30s, 10min, 2h or 3d".to_owned();
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    match number * seconds {
        all if (1e-3..1e9).contains(&all) => Ok(Duration::from_secs_f64(all)),
        _ => Err(wrong()),
    }
}

/// A mode of a file, in octal: who may read and write it.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode & !0o666 == 0 => Ok(mode),
        _ => Err("a mode is rights to read and to write, in octal, such as 600 or 644".to_owned()),
    }
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
    fn modes_are_octal_and_only_of_reading_and_writing() {
        for (text, value) in [("600", 0o600), ("0644", 0o644), ("0o440", 0o440), ("0", 0)] {
            assert_eq!(mode(text), Ok(value), "{text}");
        }
        for wrong in ["", "-1", "800", "755", "4644", "rw"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("2", 2000),
            ("1.5s", 1500),
            ("10min", 600_000),
            ("10m", 600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(time(text).map(|t| t.as_millis()), Ok(millis), "{text}");
        }
        for wrong in ["", "s", "-1s", "3 weeks", "1e3s", "0s", "10 m", "NaN"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
