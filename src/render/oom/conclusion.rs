//! The conclusions of an OOM report.

use std::io::{self, Write};

use super::accounting::largest_holder;
use super::report::live_rows;
use crate::analysis::{
    AllocatorCache, ExactProfile, FoldedProfile, FreeFit, OomDevice, OomReport, Profile,
    PseudoFrame, StackLabel, UnusableReason, free_on_device, requested_bytes,
};
use crate::model::{MemoryKind, ProcessUsage, RaisedError};
use crate::render::shared::{FrameLabels, bytes, number, percent};

/// Whether a refusal by the driver would be recorded.
pub(super) fn sees_refusals(profile: &Profile) -> bool {
    let probed = |exact: &ExactProfile| {
        exact.exact().probes.iter().any(|probe| probe.starts_with("cuMemAlloc"))
    };
    profile.exact().is_some_and(probed)
}

fn errors(report: &OomReport) -> impl Iterator<Item = &RaisedError> {
    report.oom_exception.iter().rev().filter_map(|oom| oom.error.as_ref())
}

/// Refused by the driver, or in PyTorch's message.
fn last_request(report: &OomReport) -> Option<u64> {
    let words = || errors(report).find_map(|error| requested_bytes(&error.text));
    match report.refused.first() {
        // Expandable segments ask the driver piece by piece.
        Some(last) if matches!(last.memory_kind, MemoryKind::Physical(_)) => {
            words().or(Some(last.size))
        }
        Some(last) => Some(last.size),
        None => words(),
    }
}

/// How the cache fits the request; `None` without OOM, request or snapshot.
pub(super) fn fit(report: &OomReport, device: &OomDevice) -> Option<FreeFit> {
    let asked = last_request(report).filter(|_| report.out_of_memory)?;
    let most = device.counters.as_ref().and_then(|counters| counters.max_split_size);
    let most = most.and_then(|most| u64::try_from(most).ok()).filter(|most| *most > 0);
    Some(FreeFit::new(device.snapshot.as_ref()?, asked, most))
}

pub(super) fn free_fit_text(out: &mut dyn Write, fit: &FreeFit) -> io::Result<()> {
    let (needed, usable) = (bytes(fit.needed), bytes(fit.largest_usable));
    if fit.large_enough.is_empty() {
        return writeln!(
            out,
            "  no free block had the {needed} needed; the largest that the request could use: {usable}"
        );
    }
    writeln!(out, "  free blocks of at least the {needed} needed, and why they were not used:")?;
    for sum in &fit.large_enough {
        let why = match sum.reason {
            UnusableReason::EventsPending => {
                "freed, but work of another stream may still use them".to_owned()
            }
            UnusableReason::PrivatePool(pool) => {
                format!("of private pool ({}, {}): a CUDA graph or a MemPool", pool.0, pool.1)
            }
            UnusableReason::OtherPool(true) => "of the pool for requests up to 1 MiB".to_owned(),
            UnusableReason::OtherPool(false) => "of the pool for requests above 1 MiB".to_owned(),
            UnusableReason::OtherStream(stream) => {
                format!("of stream {stream:#x}: a block serves only the stream it was made for")
            }
            UnusableReason::NotSplit => {
                "too large to be cut (max_split_size_mb of PYTORCH_CUDA_ALLOC_CONF)".to_owned()
            }
            UnusableReason::None => {
                "this snapshot shows no reason: it is from another moment, or the request from another stream"
                    .to_owned()
            }
        };
        let (size, largest) = (bytes(sum.bytes), bytes(sum.largest));
        let blocks = number(sum.blocks, "block");
        writeln!(out, "    {size:>12} in {blocks}, the largest {largest}: {why}")?;
    }
    let served = fit.large_enough.iter().any(|sum| sum.reason == UnusableReason::None);
    match served {
        true => Ok(()),
        false => writeln!(out, "    the largest that the request could use: {usable}"),
    }
}

/// What failed, who holds the memory, what to do.
pub(super) fn conclusion(
    profile: &Profile,
    report: &OomReport,
    labels: FrameLabels<'_>,
) -> Vec<String> {
    let mut sentences = Vec::new();
    if !report.out_of_memory {
        return sentences;
    }
    let asked = last_request(report);
    for device in &report.devices {
        // The last allocation site need not be the largest holder.
        let holder = largest_holder(report, device);
        let has_owners = report.owners.is_some();
        sentences.extend(holder.or_else(|| growth(profile, device, labels, has_owners)));
        sentences.extend(reasons(profile, report, device, asked));
    }
    sentences
}

/// The line with most live bytes allocated while recording.
fn growth(
    profile: &Profile,
    device: &OomDevice,
    labels: FrameLabels<'_>,
    has_owners: bool,
) -> Option<String> {
    let live = device.live.as_ref()?;
    let rows = live_rows(labels, live);
    let most = rows.iter().find(|row| row.own.is_some())?;
    let line = labels.frame(most.own?, true);
    let whole = live.total + live.left_out;
    let (size, share) = (bytes(most.bytes), percent(most.bytes, whole));
    let about = if profile.exact().is_some() { "" } else { "about " };
    let since = match profile.begins() {
        None => format!("in the {:.1} s recorded", live.snapshot.time.seconds()),
        Some(_) => "while recording".to_owned(),
    };
    let on = format!("GPU {}", device.device.0);
    let held = format!("{about}{size}, {share:.0} % of the {} allocated", bytes(whole));
    let (grown, unknown) = grown(live);
    // The largest known line need not be the largest.
    if unknown > most.bytes {
        let exact = match profile.exact() {
            Some(_) => String::new(),
            None => "; 'record --exact' (as root) shows each line".to_owned(),
        };
        return Some(format!(
            "{on}: the line of {} of the {} that grew {since} is unknown{exact}. The largest known line is {line}: {held}.",
            bytes(unknown),
            bytes(grown)
        ));
    }
    let part = if most.bytes >= grown / 2 { "most" } else { "the largest part" };
    let holder = match has_owners {
        true => "Its owner is unknown: it came after the last snapshot of the owners.",
        false => "'record --owners' shows its owner.",
    };
    Some(format!("{on}: {part} of what grew {since} was allocated by {line}: {held}. {holder}"))
}

/// Allocated while recording: live bytes, and those without a line.
fn grown(live: &FoldedProfile) -> (u64, u64) {
    let (mut grown, mut unknown) = (0, 0);
    for stack in &live.stacks {
        let is = |what| stack.path.contains(&StackLabel::Pseudo(what));
        if !is(PseudoFrame::BeforeRecording) {
            grown += stack.bytes;
            let is_line = |label: &StackLabel| matches!(label, StackLabel::Frame(_));
            unknown += if stack.path.iter().any(is_line) { 0 } else { stack.bytes };
        }
    }
    (grown, unknown)
}

/// After PyTorch returned what it could; only in exact recordings.
fn free_at_refusal(report: &OomReport, device: &OomDevice) -> Option<u64> {
    let live = device.live.as_ref().filter(|_| !report.refused.is_empty())?;
    let is_then = report.refused.iter().any(|refused| refused.time == live.snapshot.time);
    let reserved = u64::try_from(device.counters.as_ref()?.reserved()).ok()?;
    is_then.then(|| reserved.saturating_sub(live.total + live.left_out))
}

fn reasons(
    profile: &Profile,
    report: &OomReport,
    device: &OomDevice,
    asked: Option<u64>,
) -> Vec<String> {
    let mut reasons: Vec<String> = other_processes(device).into_iter().collect();
    if let (Some(cache), Some(asked)) = (&device.cache, asked) {
        reasons.extend(unfit_cache(report, device, cache, asked));
        reasons.extend(emptying_is_useless(report, device));
    }
    reasons.extend(own_limit(profile, report, device));
    let on = format!("GPU {}: ", device.device.0);
    reasons.into_iter().map(|reason| on.clone() + &reason).collect()
}

fn other_processes(device: &OomDevice) -> Option<String> {
    let usage = device.usage.as_ref()?;
    let ProcessUsage::Bytes(own) = usage.process else { return None };
    let is_much = usage.used.saturating_sub(own) > usage.total / 20;
    is_much.then(|| format!("other processes use {} of the device.", bytes(usage.used - own)))
}

fn unfit_cache(
    report: &OomReport,
    device: &OomDevice,
    cache: &AllocatorCache,
    asked: u64,
) -> Option<String> {
    let size = bytes(asked);
    let free = free_at_refusal(report, device).unwrap_or(cache.cut.all.free);
    if free < asked {
        Some(format!(
            "the cache had {} free in all, less than the {size} asked for: the memory is in use. \
             Keep less of it, or ask for less at once (a smaller batch).",
            bytes(free)
        ))
    } else if cache.cut.largest_free < asked {
        Some(format!(
            "{} were free in the cache, but no block had {size}: the cache is fragmented \
             (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often helps).",
            bytes(free)
        ))
    } else if fit(report, device).is_some_and(|fit| fit.largest_usable < fit.needed) {
        Some(format!(
            "{} were free in the cache, with a block of {}, but none that a request of {size} may use (below).",
            bytes(free),
            bytes(cache.cut.largest_free)
        ))
    } else {
        None
    }
}

fn emptying_is_useless(report: &OomReport, device: &OomDevice) -> Option<String> {
    let retries = device.counters.as_ref().map_or(0, |counters| counters.num_alloc_retries);
    if retries <= 0 {
        return None;
    }
    // Only a snapshot of that moment gives the amount.
    let rest = match free_at_refusal(report, device) {
        Some(free) => format!("; {} stayed free between blocks in use", bytes(free)),
        None => String::new(),
    };
    Some(format!(
        "torch.cuda.empty_cache() before would have changed nothing: PyTorch returns what is wholly free \
         itself before it gives up{rest}."
    ))
}

/// The device had memory: a limit of the job refused the request.
fn own_limit(profile: &Profile, report: &OomReport, device: &OomDevice) -> Option<String> {
    let usage = device.usage.as_ref().filter(|_| device.cache.is_some())?;
    // NVML's figure may be older; PyTorch asked when the request failed.
    let free_then = errors(report).find_map(|error| free_on_device(&error.text));
    let is_much = free_then.unwrap_or(usage.free).min(usage.free) > usage.total / 20;
    if !report.refused.is_empty() || !is_much {
        return None;
    }
    let why = match sees_refusals(profile) {
        true => "and the driver refused nothing",
        false => "as last seen",
    };
    Some(format!(
        "the device had {} free, {why}: a limit of the job's own \
         (torch.cuda.set_per_process_memory_fraction) or a request larger than that.",
        bytes(usage.free)
    ))
}
