//! How much of a recording is kept, as a word of the command line.

use super::values::{bytes, time};
use crate::trace::Retention;

/// How much of a recording is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionArgs(pub Retention);

impl std::str::FromStr for RetentionArgs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MIN_BYTES: u64 = 64 << 10;
        let is_size = text.ends_with(['K', 'M', 'G', 'T', 'B']);
        let is_number = text.ends_with(|c: char| c.is_ascii_digit());
        if is_size {
            return match bytes(text)? {
                bytes if bytes >= MIN_BYTES => Ok(RetentionArgs(Retention::Bytes(bytes))),
                _ => Err("less than 64K does not hold a second of a recording".to_owned()),
            };
        }
        match time(text) {
            Ok(time) if !is_number => Ok(RetentionArgs(Retention::Time(time))),
            _ => Err("expected a time (120s, 10min, 2h) or a size (500M, 2G)".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_kept_is_a_time_or_a_size() {
        assert_eq!("120s".parse(), Ok(RetentionArgs(Retention::Time(Duration::from_secs(120)))));
        assert_eq!("500M".parse(), Ok(RetentionArgs(Retention::Bytes(500 << 20))));
        assert_eq!("10m".parse(), Ok(RetentionArgs(Retention::Time(Duration::from_secs(600)))));
        let both = Retention::Time(Duration::from_secs(9)).and(Retention::Bytes(1 << 20));
        assert_eq!(both, Retention::Either(Duration::from_secs(9), 1 << 20));
        assert_eq!(
            both.and(Retention::Bytes(1 << 19)),
            Retention::Either(Duration::from_secs(9), 1 << 19)
        );
        for wrong in ["120", "1K", "M", ""] {
            assert!(wrong.parse::<RetentionArgs>().is_err(), "{wrong}");
        }
    }
}
