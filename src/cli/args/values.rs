//! Parses argument values: pids, sizes, times, file modes.

use std::time::Duration;

use crate::analysis::MarkerLine;
use crate::flight::PrintInterval;
use crate::model::{parse_size, parse_time};
use crate::render::DeviceChoice;

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

/// A requested device: `1`, `cuda:1` or `cpu`.
pub(super) fn device(text: &str) -> Result<DeviceChoice, String> {
    let number = text.strip_prefix("cuda:").unwrap_or(text);
    match (text, number.parse()) {
        ("cpu", _) => Ok(DeviceChoice::Cpu),
        (_, Ok(gpu)) => Ok(DeviceChoice::Gpu(gpu)),
        (_, Err(_)) => {
            Err("a device is the number of a GPU as the job counts them, or cpu".to_owned())
        }
    }
}

/// The number of a GPU.
pub(super) fn gpu(text: &str) -> Result<u32, String> {
    match device(text) {
        Ok(DeviceChoice::Gpu(gpu)) => Ok(gpu),
        Ok(DeviceChoice::Cpu) => Err(
            "this is about GPUs only; 'memspy tensors -p PID --gpu cpu' lists what is on the CPU"
                .to_owned(),
        ),
        Err(_) => Err("a GPU is a number as the job counts them, from 0 on".to_owned()),
    }
}

/// A size in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// A duration.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    parse_time(text).map_err(|error| error.to_string())
}

/// When tables are printed: an interval, or a function and a number of its calls.
pub(super) fn print_interval(text: &str) -> Result<PrintInterval, String> {
    let Some((function, calls)) = text.rsplit_once(':') else {
        return time(text).map(PrintInterval::Time);
    };
    match calls.parse() {
        Ok(every) if every > 0 && !function.is_empty() => {
            Ok(PrintInterval::Calls { function: function.to_owned(), every })
        }
        _ => Err("a time (10s), or a function and after how many of its calls (train_step:20)"
            .to_owned()),
    }
}

/// A part of the time, in per cent.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent),
        _ => Err("a number of per cent greater than 0, at most 50".to_owned()),
    }
}

/// A thousand processors.
const MAX_PROCESSOR_PERCENT: f64 = 100_000.0;

/// A share of processors in per cent, 100 for one; the sign is optional.
pub(super) fn processor_percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= MAX_PROCESSOR_PERCENT => Ok(percent),
        _ => Err("a number of per cent greater than 0, at most 100,000 (100 is one processor)"
            .to_owned()),
    }
}

/// A share of the job's time: `2%` is 0.02, `none` is infinite.
pub(super) fn max_slowdown(text: &str) -> Result<f64, String> {
    if text == "none" {
        return Ok(f64::INFINITY);
    }
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("per cent of the job's time (2, 0.5%), or none".to_owned()),
    }
}

/// A file mode in octal, for reading and writing.
pub(super) fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode & !0o666 == 0 => Ok(mode),
        _ => Err("a mode is rights to read and to write, in octal, such as 600 or 644".to_owned()),
    }
}

/// `FILE:LINE`.
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
    fn file_modes_are_octal_and_not_executable() {
        for (text, value) in [("600", 0o600), ("0644", 0o644), ("0o440", 0o440), ("0", 0)] {
            assert_eq!(file_mode(text), Ok(value), "{text}");
        }
        for wrong in ["", "-1", "800", "755", "4644", "rw"] {
            assert!(file_mode(wrong).is_err(), "{wrong}");
        }
    }
}
