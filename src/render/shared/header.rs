//! The head of every report.

use super::clock::length;
use super::exact;
use super::job_cost::job_cost_line;
use super::label::one_line;
use super::warnings::warnings;
use crate::analysis::{HighWater, PeakTime, Profile, peak};
use crate::model::{CudaIndex, EndReason, FollowTotals, ReaderKind};
use crate::model::{count, percent, signed_bytes};

/// From this percentage of older memory, reports say how to find its owners.
pub(crate) const MUCH_BEFORE: f64 = 10.0;

/// The head of a report on one device.
pub fn header(profile: &Profile, device: CudaIndex) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(start) = profile.start() {
        let (host, command) = (one_line(&start.host), one_line(&start.command.join(" ")));
        lines.push(format!("Process {} on {host}: {command}", start.pid));
    }
    lines.push(gpu_line(profile, device));
    match profile.exact() {
        Some(exact) => {
            lines.push(exact::events_line(profile, exact, Some(device)));
            lines.extend(exact::exact_notes(exact));
        }
        None => lines.push(sampling_line(profile)),
    }
    let cost = profile.end().and_then(|end| end.totals.cost);
    lines.extend(cost.as_ref().map(job_cost_line));
    lines.extend(warnings(profile).iter().map(|w| format!("warning: {}", one_line(w))));
    lines
}

/// `GPU 0 (name): peak allocated …, peak reserved …`.
pub(crate) fn gpu_line(profile: &Profile, device: CudaIndex) -> String {
    let reserved = mark(profile, profile.peak_reserved(device));
    format!("{}; peak reserved {reserved}", allocated_line(profile, device))
}

pub(crate) fn allocated_line(profile: &Profile, device: CudaIndex) -> String {
    let name = profile
        .devices()
        .iter()
        .find(|d| d.cuda_index == Some(device))
        .and_then(|d| d.name.as_deref())
        .map_or_else(String::new, |name| format!(" ({})", one_line(name)));
    let allocated = mark(profile, peak::allocated(profile, device));
    format!("GPU {}{name}: peak allocated {allocated}", device.0)
}

fn mark(profile: &Profile, high: Option<HighWater>) -> String {
    let before = match profile.begins() {
        None => "the recording",
        Some(_) => "what is kept",
    };
    high.map_or_else(|| "unknown".to_owned(), |high| mark_text(high, before))
}

fn mark_text(high: HighWater, before: &str) -> String {
    if high.within == 0 && matches!(high.reached, PeakTime::Between(..)) {
        return signed_bytes(0); // At no moment in particular.
    }
    let (from, to) = high.seen;
    let mut when = match from == to {
        // A read peak or an exact event gives the moment itself.
        true => format!("reached at {:.3} s", to.seconds()),
        false => format!("reached at {:.3}-{:.3} s", from.seconds(), to.seconds()),
    };
    if let Some(older) = high.older() {
        let older = signed_bytes(older);
        when += &format!("; the allocator's own peak, {older}, is from before {before}");
    }
    if high.resets > 0 {
        when += &format!(", reset {} times by the job", high.resets);
    }
    format!("{} ({when})", signed_bytes(high.within))
}

pub(crate) fn sampling_line(profile: &Profile) -> String {
    let seconds = covered(profile);
    let samples = profile.samples();
    let rate = if seconds > 0.0 {
        format!(", {:.1} per second", samples as f64 / seconds)
    } else {
        String::new()
    };
    let wanted = match profile.start().map_or(0, |s| s.rate) {
        0 => String::new(),
        rate => format!(" of {rate} wanted"),
    };
    let (time, missed) = (time_range(profile), missed(profile));
    format!("{time}, {} samples{rate}{wanted}; {missed}", count(samples))
}

pub(crate) fn following_line(profile: &Profile, totals: &FollowTotals) -> String {
    if totals.polls == 0 {
        return "the allocator was not followed, as nothing used it: the lines are from samples"
            .to_owned();
    }
    let micros = |nanos: f64| format!("{:.1} µs", nanos / 1e3);
    let mut text = format!(
        "followed: {} polls, {} apart while polling (1 in 100 took more than {}), {:.0} % of a processor",
        count(totals.polls),
        micros(totals.polling_nanos as f64 / totals.polls as f64),
        micros(totals.slow_poll_nanos as f64),
        100.0 * totals.cpu_nanos as f64 / (profile.duration().0.max(1)) as f64,
    );
    if totals.changes > 0 {
        text += &format!(
            "; {} counter deltas, {:.1} % seen one by one, {:.1} % with the same stack before and after",
            count(totals.changes),
            percent(totals.single_changes, totals.changes),
            percent(totals.steady_changes, totals.changes),
        );
    }
    if totals.held_back > 0 {
        let times = count(totals.held_back);
        text += &format!("; polls paused {times} times, by --cpu or to spare the job");
    }
    text
}

/// Seconds that the recording covers completely.
fn covered(profile: &Profile) -> f64 {
    profile.duration().seconds() - profile.begins().unwrap_or_default().seconds()
}

pub(crate) fn time_range(profile: &Profile) -> String {
    match profile.begins() {
        None => format!("{:.1} s", covered(profile)),
        Some(_) => {
            let whole = length(profile.duration().seconds());
            format!("the last {} of {whole}", length(covered(profile)))
        }
    }
}

/// In per cent.
fn missed(profile: &Profile) -> String {
    let losses = profile.losses();
    let totals = profile.end().map(|e| e.totals).filter(|t| t.ticks > 0);
    let (late, ticks, torn, stacks) = match totals {
        Some(t) => (t.late, t.ticks, t.torn, t.stacks + t.torn),
        None => {
            let late = losses.late(ReaderKind::Stacks);
            let torn = losses.torn(ReaderKind::Stacks);
            (late, profile.ticks() + late, torn, profile.stacks_read() + torn)
        }
    };
    let mut text = format!(
        "missed {:.2} % late, {:.2} % of stacks torn",
        percent(late, ticks),
        percent(torn, stacks)
    );
    for (reader, name) in [
        (ReaderKind::Stacks, "stacks"),
        (ReaderKind::Counters, "counters"),
        (ReaderKind::Snapshots, "snapshots"),
        (ReaderKind::Gpu, "NVML"),
    ] {
        let failed = losses.failed(reader);
        if failed > 0 {
            text += &format!(", {} failed reads of {name}", count(failed));
        }
    }
    text
}

pub(crate) fn end_text(profile: &Profile) -> String {
    match profile.end().map(|e| &e.reason) {
        None => "the recording ended abruptly".to_owned(),
        Some(EndReason::Duration) => "the requested time was over".to_owned(),
        Some(EndReason::Interrupted) => "interrupted".to_owned(),
        Some(EndReason::TargetExited) => "the process exited".to_owned(),
        Some(EndReason::TargetExecuted) => "the process became another program".to_owned(),
        Some(EndReason::Failed(why)) => format!("failed: {}", one_line(why)),
        Some(EndReason::Condition(what)) => format!("'{}' was met", one_line(what)),
        Some(EndReason::OtherProcess { condition, process }) => {
            format!("'{}' was met in {}", one_line(condition), one_line(process))
        }
    }
}
