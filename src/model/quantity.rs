//! Parses sizes and times.

use std::time::Duration;

/// Neither a size nor a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum QuantityError {
    #[error("expected a size in bytes: 512, 64K, 1.5G or 2T, in powers of 1024")]
    NotASize,
    #[error("a size has to be less than 1 EiB")]
    SizeTooLarge,
    #[error("expected a time: 250ms, 20s, 10min, 2h or 3d; a number without a unit is seconds")]
    NotATime,
    #[error("a time has to be from 1 ms to 30 years")]
    TimeOutOfRange,
    #[error("expected a time (120s, 10min, 2h) or a size (500M, 1.5G)")]
    NotATimeOrSize,
    #[error("'{number}m' may be {number} minutes or {number} MiB: write {number}min or {number}M")]
    Ambiguous { number: String },
}

/// A time or a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A time.
    Time(Duration),
    /// Bytes.
    Size(u64),
}

/// A size in powers of 1024: `512`, `64K`, `500M`, `1.5G`, `2T`. Either case; `B` or `iB` may
/// follow.
///
/// # Errors
///
/// No size, or too large.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" if unit == "IB" => return Err(QuantityError::NotASize),
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(QuantityError::NotASize),
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift).ok_or(QuantityError::SizeTooLarge)?,
        Err(_) if shift == 0 => return Err(QuantityError::NotASize),
        Err(_) => {
            let number: f64 = number.parse().map_err(|_| QuantityError::NotASize)?;
            (number * (1_u64 << shift) as f64) as u64
        }
    };
    if bytes < 1 << 60 { Ok(bytes) } else { Err(QuantityError::SizeTooLarge) }
}

/// A duration: `250ms`, `20s`, `10min` or `10m`, `2h`, `3d`; without unit: seconds.
///
/// # Errors
///
/// No time, below 1 ms, or above some 30 years.
pub fn parse_time(text: &str) -> Result<Duration, QuantityError> {
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| QuantityError::NotATime)?;
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(QuantityError::NotATime),
    };
    match number * seconds {
        all if (1e-3..1e9).contains(&all) => Ok(Duration::from_secs_f64(all)),
        _ => Err(QuantityError::TimeOutOfRange),
    }
}

/// A time or a size, with its unit; `m` alone is refused: minutes or MiB.
///
/// # Errors
///
/// Neither, or both.
pub fn parse_time_or_size(text: &str) -> Result<Quantity, QuantityError> {
    let (number, unit) = split(text);
    match (number.parse::<f64>(), unit) {
        (Err(_), _) | (_, "") => Err(QuantityError::NotATimeOrSize),
        (Ok(_), "m") => Err(QuantityError::Ambiguous { number: number.to_owned() }),
        (Ok(_), _) => match parse_time(text) {
            Err(QuantityError::NotATime) => match parse_size(text) {
                Err(QuantityError::NotASize) => Err(QuantityError::NotATimeOrSize),
                size => size.map(Quantity::Size),
            },
            time => time.map(Quantity::Time),
        },
    }
}

/// Leading number and unit.
fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    text.split_at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64K", 64 << 10),
            ("500M", 500 << 20),
            ("2m", 2 << 20),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("70GB", 70 << 30),
            ("70GiB", 70 << 30),
            ("16B", 16),
            ("9007199254740993", 9_007_199_254_740_993), // more digits than an f64 has
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", ".", "1.5", "1.5B", "-1", "1 G", "1e3", "NaN", "2P", "20s", "1iB"] {
            assert_eq!(parse_size(wrong), Err(QuantityError::NotASize), "{wrong}");
        }
        for large in ["1048576T", "18446744073709551615", "99999999999999999999G"] {
            assert_eq!(parse_size(large), Err(QuantityError::SizeTooLarge), "{large}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in [
            ("250ms", 250),
            ("2", 2000),
            ("0.5", 500),
            ("20s", 20_000),
            ("1.5s", 1500),
            ("10min", 600_000),
            ("10m", 600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse_time(text).map(|time| time.as_millis()), Ok(millis), "{text}");
        }
        for wrong in ["", "s", "-1s", "3 weeks", "1e3s", "10 m", "NaN", "500M", "1G"] {
            assert_eq!(parse_time(wrong), Err(QuantityError::NotATime), "{wrong}");
        }
        for wrong in ["0s", "0", "0.1ms", "99999d"] {
            assert_eq!(parse_time(wrong), Err(QuantityError::TimeOutOfRange), "{wrong}");
        }
    }

    #[test]
    fn an_ambiguous_quantity_is_refused_with_both_meanings() {
        let error = parse_time_or_size("500m").unwrap_err().to_string();
        assert!(error.contains("500 minutes") && error.contains("500 MiB"), "{error}");
        assert!(error.contains("500min") && error.contains("500M"), "{error}");
        for (text, meant) in [
            ("500ms", Quantity::Time(Duration::from_millis(500))),
            ("10min", Quantity::Time(Duration::from_secs(600))),
            ("2h", Quantity::Time(Duration::from_secs(7200))),
            ("500M", Quantity::Size(500 << 20)),
            ("1.5G", Quantity::Size(3 << 29)),
            ("2T", Quantity::Size(2 << 40)),
            ("900B", Quantity::Size(900)),
        ] {
            assert_eq!(parse_time_or_size(text), Ok(meant), "{text}");
        }
        for wrong in ["", "120", "m", "M", "3 days", "5x"] {
            assert_eq!(parse_time_or_size(wrong), Err(QuantityError::NotATimeOrSize), "{wrong}");
        }
    }
}
