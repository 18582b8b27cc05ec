//! How much of a recording is kept, as a word of the command line.

use super::values::{bytes, time};
use crate::trace::Keep;

/// How much of a recording is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept(pub Keep);

impl std::str::FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const LEAST: u64 = 64 << 10;
        let is_size = text.ends_with(['K', 'M', 'G', 'T', 'B']);
        let is_number = text.ends_with(|c: char| c.is_ascii_digit());
        if is_size {
            return match bytes(text)? {
                bytes if bytes >= LEAST => Ok(Kept(Keep::Bytes(bytes))),
                _ => Err("less than 64K does not hold a second of a recording".to_owned()),
            };
        }
        match time(text) {
            Ok(time) if !is_number => Ok(Kept(Keep::Time(time))),
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
        assert_eq!("120s".parse(), Ok(Kept(Keep::Time(Duration::from_secs(120)))));
        assert_eq!("500M".parse(), Ok(Kept(Keep::Bytes(500 << 20))));
        assert_eq!("10m".parse(), Ok(Kept(Keep::Time(Duration::from_secs(600)))));
        let both = Keep::Time(Duration::from_secs(9)).and(Keep::Bytes(1 << 20));
        assert_eq!(both, Keep::Either(Duration::from_secs(9), 1 << 20));
        assert_eq!(both.and(Keep::Bytes(1 << 19)), Keep::Either(Duration::from_secs(9), 1 << 19));
        for wrong in ["120", "1K", "M", ""] {
            assert!(wrong.parse::<Kept>().is_err(), "{wrong}");
        }
    }
}
