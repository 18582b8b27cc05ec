//! How sure it is which line allocated the bytes of a moment: the same words in every report.

use super::size::percent;
use crate::analysis::{Profile, TimeResolution};
use crate::model::CudaIndex;

/// How sure it is which line allocated the bytes at a device's peak, in a sentence; `None` where nothing was seen being allocated.
pub(super) fn certainty_at_peak(profile: &Profile, device: CudaIndex) -> Option<String> {
    if let Some(text) = of_exact(profile) {
        return Some(text.to_owned());
    }
    let resolution = profile.peak_resolution(device)?;
    let how = if resolution.certain.is_some() { "Followed" } else { "Sampled" };
    Some(format!("{how}, at the peak: {}.", evidence(resolution)?))
}

/// How sure the lines of a moment are, on one line of a terminal; `None` where nothing was seen being allocated.
pub fn certainty_in_short(profile: &Profile, resolution: TimeResolution) -> Option<String> {
    match of_exact(profile) {
        Some(text) => Some(text.to_owned()),
        None => evidence_in_short(resolution),
    }
}

/// What holds for all lines of an exact recording; `None` for any other.
fn of_exact(profile: &Profile) -> Option<&'static str> {
    let exact = profile.exact()?;
    Some(if exact.stacks_are_guessed() {
        "Exact sizes: the lines are a guess from samples."
    } else if exact.is_estimated() {
        "Exact totals: a sample of the allocations has lines, and stands for the others."
    } else {
        "Exact: every allocation that was seen is on the line that made it."
    })
}

/// On which evidence the bytes allocated while recording are on their lines; `None` where there are none.
pub(super) fn evidence(resolution: TimeResolution) -> Option<String> {
    let TimeResolution { seen, one_stack, not_seen, .. } = resolution;
    let shared = (shared(resolution), "shared between candidates");
    let unseen = (not_seen, "not seen");
    let Some(certain) = resolution.certain else {
        let apart = resolution.p95 as f64 / 1e6;
        let begin = format!("a guess from samples {apart:.1} ms apart: ");
        let first = (one_stack, " of the bytes had one candidate");
        return in_parts(&begin, first, &[shared, unseen], seen);
    };
    let rest = [
        (likely(resolution, certain), "most likely so"),
        (resolution.from_samples, "a guess from samples"),
        shared,
        unseen,
    ];
    in_parts("", (certain, " of the bytes are on the line that allocated them"), &rest, seen)
}

/// The same in a few words, where one line has to hold it with other figures: below the title of a picture.
pub(super) fn evidence_in_short(resolution: TimeResolution) -> Option<String> {
    let TimeResolution { seen, not_seen, from_samples, .. } = resolution;
    let Some(certain) = resolution.certain else {
        let unseen = match not_seen {
            0 => String::new(),
            _ => format!(", {} not seen", share(not_seen, seen)),
        };
        return (seen > 0).then(|| format!("lines are a guess from samples{unseen}"));
    };
    let guessed = from_samples + shared(resolution);
    let rest =
        [(likely(resolution, certain), "likely"), (guessed, "guessed"), (not_seen, "not seen")];
    in_parts("lines: ", (certain, " certain"), &rest, seen)
}

/// Bytes for which the polls speak of one stack only, without being certain of it.
fn likely(resolution: TimeResolution, certain: u64) -> u64 {
    resolution.one_stack.saturating_sub(certain).saturating_sub(resolution.from_samples)
}

/// Bytes with several candidates.
fn shared(resolution: TimeResolution) -> u64 {
    let TimeResolution { seen, one_stack, not_seen, .. } = resolution;
    seen.saturating_sub(one_stack).saturating_sub(not_seen)
}

/// The first part in any case, and those of the others that there are; `None` of nothing.
fn in_parts(
    begin: &str,
    (bytes, what): (u64, &str),
    rest: &[(u64, &str)],
    whole: u64,
) -> Option<String> {
    let mut text = format!("{begin}{}{what}", share(bytes, whole));
    for (bytes, what) in rest.iter().filter(|(bytes, _)| *bytes > 0) {
        text += &format!(", {} {what}", share(*bytes, whole));
    }
    (whole > 0).then_some(text)
}

/// A part in per cent, which is 0 or 100 only where that is so.
fn share(part: u64, whole: u64) -> String {
    match percent(part, whole) {
        much if part < whole && much > 99.0 => format!("{:.1} %", (much * 10.0).floor() / 10.0),
        little if part > 0 && little < 0.5 => format!("{little:.1} %"),
        some => format!("{some:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_followed_and_sampled_bytes_in_words() {
        let followed = TimeResolution {
            seen: 1000,
            one_stack: 940,
            certain: Some(310),
            from_samples: 30,
            not_seen: 10,
            ..TimeResolution::default()
        };
        assert_eq!(
            evidence(followed).unwrap(),
            "31 % of the bytes are on the line that allocated them, 60 % most likely so, 3 % a guess from samples, \
             5 % shared between candidates, 1 % not seen"
        );
        assert_eq!(
            evidence_in_short(followed).unwrap(),
            "lines: 31 % certain, 60 % likely, 8 % guessed, 1 % not seen"
        );
        let sampled = TimeResolution {
            seen: 1000,
            one_stack: 998,
            not_seen: 2,
            p95: 5_000_000,
            ..TimeResolution::default()
        };
        assert_eq!(
            evidence(sampled).unwrap(),
            "a guess from samples 5.0 ms apart: 99.8 % of the bytes had one candidate, 0.2 % not seen"
        );
        assert_eq!(evidence(TimeResolution::default()), None);
    }
}
