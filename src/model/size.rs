//! Sizes in binary units, and numbers, as text.

/// `1.50 GiB`
pub fn bytes(value: u64) -> String {
    let (number, unit) = scaled(value);
    format!("{number} {unit}")
}

pub(crate) fn scaled(value: u64) -> (String, &'static str) {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if value < 1024 {
        return (value.to_string(), "B");
    }
    let mut size = value as f64 / 1024.0;
    let mut unit = 0;
    // 1023.996 MiB would print as 1024.00 MiB.
    while size >= 1023.995 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    (format!("{size:.2}"), units[unit])
}

/// Three figures, for narrow tables: `384 MiB`, `1.53 GiB`.
pub(crate) fn short_bytes(value: u64) -> String {
    let (number, unit) = scaled(value);
    let decimals = match number.split_once('.').map_or(0, |(whole, _)| whole.len()) {
        0 | 1 => return format!("{number} {unit}"),
        2 => 1,
        _ => 0,
    };
    let rounded = number.parse::<f64>().map_or(number, |size| format!("{size:.decimals$}"));
    format!("{rounded} {unit}")
}

pub(crate) fn short_signed_bytes(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", short_bytes(value.unsigned_abs()))
}

/// A counter's value, below 0 after a reset by the job.
pub fn signed_bytes(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(value.unsigned_abs()))
}

/// A size that may be unknown.
pub fn optional_bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "unknown".to_owned(), bytes)
}

/// A number with thousands separators.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 block`, `2,000 blocks`
pub fn number(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// 0 if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_say_their_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(40_960), "40.00 KiB");
        assert_eq!(bytes((1 << 30) - 1), "1.00 GiB");
        assert_eq!(bytes(3 << 40), "3.00 TiB");
        assert_eq!(bytes(5000 << 40), "5000.00 TiB");
        assert_eq!(short_bytes(512), "512 B");
        assert_eq!(short_bytes(1_572_864), "1.50 MiB");
        assert_eq!(short_bytes(99_950 << 10), "97.6 MiB");
        assert_eq!(short_bytes(384 << 20), "384 MiB");
        assert_eq!(short_signed_bytes(-(12 << 30)), "-12.0 GiB");
        assert_eq!(signed_bytes(-2048), "-2.00 KiB");
        assert_eq!(optional_bytes(None), "unknown");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
