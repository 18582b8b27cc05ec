//! Bytes as proven, probable and unattributed.

use serde::{Deserialize, Serialize};

use crate::analysis::{Profile, TimeResolution, flame};
use crate::model::CudaIndex;
use crate::model::percent;

/// The bytes of a moment that were allocated while recording, by how their line is known: each is
/// proven, probable or unattributed. Bytes allocated before the recording are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AttributionJson {
    /// Bytes whose line is proven.
    pub proven: u64,
    /// Bytes whose line is probable.
    pub probable: u64,
    /// All other bytes: the sum of the three below.
    pub unattributed: u64,
    /// Bytes whose line is known only from samples.
    pub unattributed_sampled: u64,
    /// Bytes that several lines may have allocated.
    pub unattributed_shared: u64,
    /// Bytes for which no possible line was seen.
    pub unattributed_not_seen: u64,
}

impl From<TimeResolution> for AttributionJson {
    fn from(resolution: TimeResolution) -> AttributionJson {
        AttributionJson {
            proven: resolution.proven(),
            probable: resolution.probable,
            unattributed: resolution.unattributed(),
            unattributed_sampled: resolution.sampled,
            unattributed_shared: resolution.shared(),
            unattributed_not_seen: resolution.not_seen,
        }
    }
}

/// `None` if no allocation was seen.
pub(crate) fn certainty_at_peak(profile: &Profile, device: CudaIndex) -> Option<String> {
    let told = evidence(flame::peak_resolution(profile, device)?)?;
    Some(format!("Of the bytes allocated while recording, at the peak: {told}."))
}

/// The certainty of a moment, for one line of a terminal or a picture.
pub fn certainty_in_short(resolution: TimeResolution) -> Option<String> {
    Some(format!("lines: {}", parts(resolution)?))
}

/// `None` if no allocation was seen.
pub(crate) fn evidence(resolution: TimeResolution) -> Option<String> {
    let told = parts(resolution)?;
    // Lines of sampled bytes are guesses.
    let is_guess = resolution.certain.is_none() && resolution.probable == 0;
    Some(match resolution.p95 {
        _ if !is_guess => told,
        0 => format!("{told} (lines are a guess from samples)"),
        apart => {
            format!("{told} (lines are a guess from samples {:.1} ms apart)", apart as f64 / 1e6)
        }
    })
}

fn parts(resolution: TimeResolution) -> Option<String> {
    let TimeResolution { seen, probable, .. } = resolution;
    let share = |part: u64| share(part, seen);
    (seen > 0).then(|| {
        format!(
            "proven {}, probable {}, unattributed {}",
            share(resolution.proven()),
            share(probable),
            share(resolution.unattributed())
        )
    })
}

/// 0 and 100 only where exact.
fn share(part: u64, whole: u64) -> String {
    match percent(part, whole) {
        much if part < whole && much > 99.0 => format!("{:.1} %", (much * 10.0).floor() / 10.0),
        little if part > 0 && little < 0.05 => "below 0.1 %".to_owned(),
        little if part > 0 && little < 0.5 => format!("{little:.1} %"),
        some => format!("{some:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_has_the_same_words_in_every_mode() {
        let followed = TimeResolution {
            seen: 1000,
            one_stack: 940,
            certain: Some(310),
            probable: 600,
            sampled: 30,
            not_seen: 10,
            ..TimeResolution::default()
        };
        assert_eq!(evidence(followed).unwrap(), "proven 31 %, probable 60 %, unattributed 9 %");
        assert_eq!(
            certainty_in_short(followed).unwrap(),
            "lines: proven 31 %, probable 60 %, unattributed 9 %"
        );
        assert_eq!(followed.shared(), 50);
        let sampled = TimeResolution {
            seen: 1000,
            one_stack: 998,
            sampled: 998,
            not_seen: 2,
            p95: 5_000_000,
            ..TimeResolution::default()
        };
        assert_eq!(
            evidence(sampled).unwrap(),
            "proven 0 %, probable 0 %, unattributed 100 % (lines are a guess from samples 5.0 ms apart)"
        );
        let exact =
            TimeResolution { seen: 10_000, certain: Some(9_999), ..TimeResolution::default() };
        assert_eq!(
            evidence(exact).unwrap(),
            "proven 99.9 %, probable 0 %, unattributed below 0.1 %"
        );
        assert_eq!(evidence(TimeResolution::default()), None);
    }
}
