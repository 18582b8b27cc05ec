//! A recording's summary: mode, losses, estimates.

use serde::Serialize;

use super::ReportedRecording;
use super::names::sentence;
use crate::analysis::peak;
use crate::model::{AllocatorBackend, CudaIndex};
use crate::render::shared::{
    certainty_at_peak, end_text, events_line, exact_notes as notes, following_line, job_cost_line,
    one_line, sampling_line, utc,
};

/// The precision of allocation sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SummarySharpness {
    /// Every allocation has its stack.
    Exact,
    /// A sample of the allocations has stacks.
    Estimated,
    /// The allocator's counters were followed.
    Followed,
    /// Stacks were sampled independently of the allocator.
    Sampled,
}

pub(super) fn sharpness(recording: &ReportedRecording<'_>) -> SummarySharpness {
    match recording.profile.exact() {
        Some(exact) if exact.is_estimated() => SummarySharpness::Estimated,
        Some(_) => SummarySharpness::Exact,
        None if recording.profile.followed_changes() > 0 => SummarySharpness::Followed,
        None => SummarySharpness::Sampled,
    }
}

pub(super) fn facts(
    recording: &ReportedRecording<'_>,
    redact: bool,
) -> Vec<(&'static str, String)> {
    let profile = recording.profile;
    let mut facts = Vec::new();
    if let Some(start) = profile.start() {
        if !redact {
            facts.push(("Command", one_line(&start.command.join(" "))));
            facts.push(("Process", format!("{} on {}", start.pid, one_line(&start.host))));
        }
        facts.push(("Began", utc(start.unix_nanos)));
    }
    if let Some(runtime) = profile.runtime() {
        let version = |name: &str, version: &Option<String>| {
            version.as_ref().map(|version| format!("{name} {}", one_line(version)))
        };
        let versions = [version("Python", &runtime.python), version("PyTorch", &runtime.torch)];
        let mut text = versions.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if let AllocatorBackend::Pluggable(_) | AllocatorBackend::CudaMallocAsync =
            runtime.allocator
        {
            text += ", not PyTorch's own allocator";
        }
        facts.push(("Runs", text));
    }
    match profile.exact() {
        Some(exact) => {
            facts.push(("Recording", events_line(profile, exact, peak::main_gpu(profile))));
            for note in notes(exact) {
                facts.push(("Note", note));
            }
        }
        None => {
            facts.push(("Recording", sampling_line(profile)));
            if let Some(followed) = profile.end().and_then(|end| end.totals.follow) {
                facts.push(("Following", following_line(profile, &followed)));
            }
        }
    }
    if let Some(cost) = profile.end().and_then(|end| end.totals.cost) {
        facts.push(("Cost", job_cost_line(&cost)));
    }
    facts.push(("Ended", end_text(profile)));
    let made_by = profile.start().map_or("", |start| &start.memspy);
    facts.push(("Recorded by", format!("memspy {}", one_line(made_by))));
    facts.into_iter().map(|(name, text)| (name, sentence(&text, redact))).collect()
}

pub(super) fn certainty(recording: &ReportedRecording<'_>, device: CudaIndex) -> Option<String> {
    certainty_at_peak(recording.profile, device)
}

/// Bytes, and the nanoseconds between which it was reached.
pub(super) fn counted_peak(
    recording: &ReportedRecording<'_>,
    device: CudaIndex,
) -> Option<(u64, (u64, u64))> {
    let peak = peak::of(recording.profile, device)?;
    let (from, to) = peak.mark.seen;
    Some((peak.bytes(), (from.0, to.0)))
}
