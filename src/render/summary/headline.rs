//! The sentence of a summary that matters most: what holds the memory, and where that leads.

use super::color::HeadlineTone;
use super::device_lines::{MAX_SECONDS, seconds_to_full};
use super::owner_table::SummaryOwners;
use super::text::{JobSummary, MIN_RATE, MIN_SNAPSHOTS};
use crate::analysis::{GpuFacts, OwnerGrowth};
use crate::render::owners::group_label;
use crate::render::shared::{bytes, percent, rough_length};

/// `server: sessions holds 82.9 % of 2.68 GiB and grows by 168.34 MiB a second: GPU 0 is full in 14
/// minutes`; `None` while nothing is known of the owners.
pub(super) fn headline(
    summary: &JobSummary<'_>,
    owners: Option<&SummaryOwners<'_>>,
) -> Option<String> {
    let owners = owners.filter(|owners| owners.all > 0)?;
    let largest = owners.rows(1).into_iter().next()?;
    let of_all = format!("{:.1} % of {}", percent(largest.bytes, owners.all), bytes(owners.all));
    // Memory without an owner stands in brackets.
    let unowned = largest.text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let mut text = match unowned {
        Some((what, "")) => format!("{of_all} is {what}"),
        _ => format!("{} holds {of_all}", largest.text),
    };
    match grown(summary).first() {
        Some(growth) => {
            let rate = format!("grows by {} a second", bytes(growth.rise.rate() as u64));
            let label = group_label(&growth.group);
            text += &match label == largest.text {
                true => format!(" and {rate}"),
                false => format!("; {label} {rate}"),
            };
            if let Some(full) = growth.group.full_at {
                text += &format!(" until its deque is full, at about {}", bytes(full));
            }
            if let Some((gpu, seconds)) = soonest_full(summary) {
                text += &format!(": GPU {gpu} is full in {}", rough_length(seconds));
            }
        }
        None if summary.growth.snapshots() >= MIN_SNAPSHOTS && !summary.is_partial => {
            text += "; no owner grows";
        }
        None => {}
    }
    Some(text)
}

/// A GPU that is full sooner is urgent, in seconds.
const SOON: f64 = 3_600.0;

/// How urgent the sentence is.
pub(super) fn tone(summary: &JobSummary<'_>) -> HeadlineTone {
    let fails = summary.devices.iter().any(|device| device.ooms.meanwhile > 0);
    let is_full_soon = soonest_full(summary).is_some_and(|(_, seconds)| seconds <= SOON);
    match grown(summary).is_empty() {
        _ if fails || is_full_soon => HeadlineTone::Urgent,
        false => HeadlineTone::Grows,
        true => HeadlineTone::Calm,
    }
}

/// The fastest first.
pub(super) fn grown(summary: &JobSummary<'_>) -> Vec<OwnerGrowth> {
    let mut grown = summary.growth.owners();
    grown.retain(|growth| growth.rise.rate() >= MIN_RATE);
    grown
}

fn soonest_full(summary: &JobSummary<'_>) -> Option<(u32, f64)> {
    let of = |gpu: &GpuFacts| {
        let seconds = seconds_to_full(gpu, summary.growth).filter(|time| *time <= MAX_SECONDS)?;
        Some((gpu.gpu, seconds))
    };
    summary.gpus.iter().filter_map(of).min_by(|a, b| a.1.total_cmp(&b.1))
}
