//! Lines of a summary about a device.

use super::text::{JobSummary, MIN_RATE};
use crate::analysis::{FailureCount, GpuFacts, GrowthWatch, ObservedDevice, OddRank, OwnerGrowth};
use crate::render::shared::{bytes, count, percent, rough_length};

const MAX_DEVICES: usize = 3;
/// Later than a month is not reported.
pub(super) const MAX_SECONDS: f64 = 30.0 * 86_400.0;

/// In short, without what the part of the device is counted from.
pub(super) fn peaks(summary: &JobSummary<'_>, is_short: bool) -> Vec<String> {
    let mut lines = Vec::new();
    // A rank sees the GPUs of all, and uses one.
    let is_used = |device: &&ObservedDevice| device.peak.is_none_or(|peak| peak.bytes > 0);
    let used: Vec<&ObservedDevice> = summary.devices.iter().filter(is_used).collect();
    for device in used.iter().take(MAX_DEVICES) {
        let gpu = summary.gpus.iter().find(|gpu| gpu.gpu == device.gpu);
        lines.extend(peak(device, gpu, used.len() > 1, is_short));
        lines.extend(failures(device));
    }
    lines
}

fn peak(
    device: &ObservedDevice,
    gpu: Option<&GpuFacts>,
    is_one_of_several: bool,
    is_short: bool,
) -> Option<String> {
    let peak = device.peak?;
    let (highest, when) = match peak.older() {
        Some(older) => (older, "before memspy attached".to_owned()),
        None => {
            let ago = device.until.seconds() - peak.seen.1.seconds();
            (peak.within, format!("{:.1} s ago", ago.max(0.0)))
        }
    };
    let highest = highest.max(0) as u64;
    let of = gpu.and_then(GpuFacts::capacity).map_or(String::new(), |whole| {
        let of = format!(", {:.1} % of", percent(highest, whole));
        match is_short {
            true => format!("{of} {}", bytes(whole)),
            false => format!("{of} the {} that PyTorch can have", bytes(whole)),
        }
    });
    let on = if is_one_of_several { format!(" on GPU {}", device.gpu) } else { String::new() };
    Some(format!("peak{on}: {} allocated ({when}){of}", bytes(highest)))
}

fn failures(device: &ObservedDevice) -> Option<String> {
    let text = |times: FailureCount, one: &str, many: &str| {
        let what = if times.all == 1 { one } else { many };
        let meanwhile = match times.meanwhile {
            0 => String::new(),
            n => format!(" ({} while observed)", count(n)),
        };
        (times.all > 0).then(|| format!("{} {what}{meanwhile}", count(times.all)))
    };
    let ooms =
        text(device.ooms, "out-of-memory error was caught", "out-of-memory errors were caught");
    let retries = text(
        device.retries,
        "allocation was tried again after freeing the cache",
        "allocations were tried again after freeing the cache",
    );
    let told: Vec<String> = [ooms, retries].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("GPU {}: {}", device.gpu, told.join(", ")))
}

pub(super) fn reserved(summary: &JobSummary<'_>) -> Vec<String> {
    let row = |device: &ObservedDevice| {
        let growth = device.reserved?;
        Some(format!(
            "{:>11}  in {:.1} s: reserved by PyTorch on GPU {}, while what is allocated does not grow",
            bytes(growth.bytes),
            device.seconds,
            device.gpu
        ))
    };
    summary.devices.iter().filter_map(row).collect()
}

/// At the owners' present growth; `None` without growth.
pub(super) fn seconds_to_full(gpu: &GpuFacts, growth: &GrowthWatch) -> Option<f64> {
    let left = gpu.left()?;
    let on_it = |device: crate::model::TensorDevice| device.is_cuda() && device.gpu() == gpu.gpu;
    let grown = growth.owners();
    let lasts = |it: &&OwnerGrowth| !it.may_be_one_step() && !it.ends_within(left);
    let grown = grown.iter().filter(|it| on_it(it.group.device)).filter(lasts);
    let rate: f64 = grown.map(|growth| growth.rise.rate()).sum();
    (rate >= MIN_RATE).then(|| left as f64 / rate)
}

pub(super) fn when_full(summary: &JobSummary<'_>) -> Vec<String> {
    let line = |gpu: &GpuFacts| {
        let seconds = seconds_to_full(gpu, summary.growth).filter(|time| *time <= MAX_SECONDS)?;
        let left = gpu.left()?;
        Some(format!(
            "at this rate GPU {} is full in {} ({} are left)",
            gpu.gpu,
            rough_length(seconds),
            bytes(left)
        ))
    };
    summary.gpus.iter().take(MAX_DEVICES).filter_map(line).collect()
}

/// Names the rank that holds more.
pub fn odd_rank_text(odd: &OddRank, ranks: usize) -> String {
    let than = if ranks == 2 { "the other" } else { "the others" };
    let what = match &odd.owner {
        Some((owner, by)) if *by >= odd.more => format!(": {owner}"),
        Some((owner, by)) => format!(": {} of it in {owner}", bytes(*by)),
        None => ", in no single owner".to_owned(),
    };
    format!("{} holds {} more than {than}{what}", odd.label, bytes(odd.more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::HighWater;
    use crate::model::Nanos;

    fn device() -> ObservedDevice {
        ObservedDevice {
            gpu: 0,
            peak: None,
            until: Nanos(9_000_000_000),
            ooms: FailureCount::default(),
            retries: FailureCount::default(),
            reserved: None,
            full: None,
            seconds: 2.0,
            taken_by: Vec::new(),
            least: None,
        }
    }

    #[test]
    fn the_peak_shows_its_time_and_distance_to_the_limit() {
        let gpu = GpuFacts { reserved: Some(3 << 30), free: Some(1 << 30), ..GpuFacts::default() };
        let mark = HighWater::first(1 << 30, 3 << 30, Nanos(1));
        let observed = ObservedDevice { peak: Some(mark), ..device() };
        assert_eq!(
            peak(&observed, Some(&gpu), false, false).unwrap(),
            "peak: 3.00 GiB allocated (before memspy attached), 75.0 % of the 4.00 GiB that PyTorch can have"
        );
        let mut mark = mark;
        mark.next(3 << 30, 7 << 29, 1 << 30, Nanos(1), Nanos(2_500_000_000));
        let observed = ObservedDevice { peak: Some(mark), ..device() };
        assert_eq!(
            peak(&observed, None, true, false).unwrap(),
            "peak on GPU 0: 3.50 GiB allocated (6.5 s ago)"
        );
    }

    #[test]
    fn failures_are_shown_only_if_any() {
        assert_eq!(failures(&device()), None);
        let ooms = FailureCount { all: 1, meanwhile: 0 };
        let retries = FailureCount { all: 5, meanwhile: 2 };
        let text = failures(&ObservedDevice { ooms, retries, ..device() }).unwrap();
        assert_eq!(
            text,
            "GPU 0: 1 out-of-memory error was caught, 5 allocations were tried again after freeing the cache \
             (2 while observed)"
        );
    }

    #[test]
    fn the_odd_rank_is_named_with_its_memory() {
        let owner = Some(("seen[*]".to_owned(), 1 << 30));
        let odd = OddRank { label: "rank 1".into(), more: 1 << 30, owner };
        assert_eq!(odd_rank_text(&odd, 4), "rank 1 holds 1.00 GiB more than the others: seen[*]");
        let odd = OddRank { more: 2 << 30, ..odd };
        assert_eq!(
            odd_rank_text(&odd, 2),
            "rank 1 holds 2.00 GiB more than the other: 1.00 GiB of it in seen[*]"
        );
    }
}
