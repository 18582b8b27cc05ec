//! `memspy flame --at T`, `--at oom` and `--from T --to T`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::analysis::{OomMoment, Profile, TimeRange, peak};
use crate::model::Nanos;

use crate::cli::args::{FlameArgs, FlameMoment};
use crate::cli::ranks::RankTrace;
use crate::cli::replay::{self, StoredRecording};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordingPart {
    At(Duration),
    AtOom,
    Window(Duration, Option<Duration>),
}

/// Reads and names the requested part of the recordings.
pub(super) fn cut(
    args: &FlameArgs,
    ranks: &mut [RankTrace],
    empty: &dyn Fn() -> Profile,
) -> Result<Option<String>> {
    let part = match (args.from, args.at) {
        (Some(from), _) => RecordingPart::Window(from, args.to),
        (None, FlameMoment::Time(at)) => RecordingPart::At(at),
        (None, FlameMoment::Oom) => RecordingPart::AtOom,
        (None, FlameMoment::Peak | FlameMoment::End) => return Ok(None),
    };
    let mut name = String::new();
    for rank in ranks {
        name = one(part, args.total_allocated, rank, empty)
            .with_context(|| rank.trace.display().to_string())?;
    }
    if part == RecordingPart::AtOom {
        name = "when the job ran out of memory".to_owned();
    }
    Ok(Some(name))
}

fn one(
    part: RecordingPart,
    churn: bool,
    rank: &mut RankTrace,
    empty: &dyn Fn() -> Profile,
) -> Result<String> {
    let recording = StoredRecording::trace(&rank.trace)?;
    let end = rank.profile.duration();
    let inside = |time| inside(&rank.profile, time);
    let (from, to) = match part {
        RecordingPart::At(time) => (None, Some(inside(time)?)),
        RecordingPart::AtOom => {
            let time = oom_time(&recording)?;
            let time =
                time.context("the recording has no out-of-memory error: --at oom has no moment")?;
            (None, Some(time))
        }
        RecordingPart::Window(from, to) => {
            if rank.profile.exact().is_none() && !churn {
                bail!(
                    "what was allocated between two moments and is live is known only in exact recordings (record with \
                     --exact); --total-allocated shows what was allocated between them, freed or not"
                );
            }
            let from = inside(from)?;
            let to = to.map_or(Ok(end), inside)?;
            if to < from {
                bail!("--from {:.3} s is after --to {:.3} s", from.seconds(), to.seconds());
            }
            (Some(from), Some(to))
        }
    };
    // Live bytes depend on everything before.
    let first = from.filter(|_| churn);
    let profile = read_part(&recording, &rank.trace, empty(), (first, to))?;
    if let Some(to) = to
        && peak::main_gpu(&profile).is_none()
        && peak::main_gpu(&rank.profile).is_some()
    {
        bail!("at {:.3} s, nothing had been read of the allocator yet", to.seconds());
    }
    rank.profile = profile;
    let to = to.unwrap_or(end).seconds();
    Ok(match from {
        None => format!("at {to:.3} s"),
        Some(from) if churn => {
            format!("allocated in all from {:.3} s to {to:.3} s", from.seconds())
        }
        Some(from) => format!("allocated from {:.3} s to {to:.3} s and live then", from.seconds()),
    })
}

pub(in crate::cli) fn inside(profile: &Profile, time: Duration) -> Result<Nanos> {
    let (begin, end) = (profile.begins().unwrap_or_default(), profile.duration());
    let nanos = Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    if nanos < begin || nanos > end {
        bail!(
            "{:.3} s is outside of the recording, which is from {:.3} s to {:.3} s",
            time.as_secs_f64(),
            begin.seconds(),
            end.seconds()
        );
    }
    Ok(nanos)
}

pub(in crate::cli) fn oom_time(recording: &StoredRecording<'_>) -> Result<Option<Nanos>> {
    let mut oom = OomMoment::default();
    recording.reread(&mut oom)?;
    Ok(oom.time())
}

pub(in crate::cli) fn read_part(
    recording: &StoredRecording<'_>,
    trace: &Path,
    mut profile: Profile,
    (first, last): (Option<Nanos>, Option<Nanos>),
) -> Result<Profile> {
    replay::limit(&mut profile, std::fs::metadata(trace).map_or(0, |file| file.len()));
    recording.reread(&mut TimeRange::new(&mut profile, first, last))?;
    profile.finish();
    profile.check_work().with_context(|| format!("cannot read {}", trace.display()))?;
    Ok(profile)
}
