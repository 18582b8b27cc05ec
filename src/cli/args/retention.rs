//! How much of a recording is kept, as an argument.

use crate::model::{Quantity, parse_time_or_size};
use crate::trace::Retention;

/// How much of a recording is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionArgs(pub Retention);

impl std::str::FromStr for RetentionArgs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MIN_BYTES: u64 = 64 << 10;
        match parse_time_or_size(text) {
            Ok(Quantity::Time(time)) => Ok(RetentionArgs(Retention::Time(time))),
            Ok(Quantity::Size(bytes)) if bytes >= MIN_BYTES => {
                Ok(RetentionArgs(Retention::Bytes(bytes)))
            }
            Ok(Quantity::Size(_)) => {
                Err("less than 64K does not hold a second of a recording".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn retention_is_a_time_or_a_size() {
        assert_eq!("120s".parse(), Ok(RetentionArgs(Retention::Time(Duration::from_secs(120)))));
        assert_eq!("500M".parse(), Ok(RetentionArgs(Retention::Bytes(500 << 20))));
        assert_eq!("10min".parse(), Ok(RetentionArgs(Retention::Time(Duration::from_secs(600)))));
        assert_eq!("1.5G".parse(), Ok(RetentionArgs(Retention::Bytes(3 << 29))));
        let both = Retention::Time(Duration::from_secs(9)).and(Retention::Bytes(1 << 20));
        assert_eq!(both, Retention::Either(Duration::from_secs(9), 1 << 20));
        assert_eq!(
            both.and(Retention::Bytes(1 << 19)),
            Retention::Either(Duration::from_secs(9), 1 << 19)
        );
        for wrong in ["120", "1K", "M", "", "500m", "10m"] {
            assert!(wrong.parse::<RetentionArgs>().is_err(), "{wrong}");
        }
    }
}
