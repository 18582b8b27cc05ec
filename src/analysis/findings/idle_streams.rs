//! Idle streams hold cache that other streams cannot use; reserved memory grows.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::blocks::IdleStreams;
use crate::model::{bytes, count};

/// One stream to copy and one to compute are usual.
const MIN_STREAMS: u64 = 3;
const MAX_LINES: usize = 2;

/// Growth of reserved memory while observed, and the lines that took memory from the driver.
struct ReservedIn {
    bytes: u64,
    text: String,
}

fn reserved_in(facts: &FindingFacts<'_>, gpu: u32) -> Option<ReservedIn> {
    let device = facts.devices.iter().find(|device| device.gpu == gpu)?;
    let grown = device.reserved?.bytes;
    let lines: Vec<&str> = device.taken_by.iter().take(MAX_LINES).map(String::as_str).collect();
    let by = match lines[..] {
        [] => String::new(),
        _ => format!(", taken by {}", lines.join(" and ")),
    };
    let text = format!("reserved grew by {} in {:.1} s{by}", bytes(grown), device.seconds);
    Some(ReservedIn { bytes: grown, text })
}

pub(super) fn many_idle(facts: &FindingFacts<'_>) -> Vec<(u32, IdleStreams)> {
    let maps = facts.snapshot.map_or(&[][..], |snapshot| &snapshot.blocks).iter();
    let idle = maps.map(|map| (map.device.0, IdleStreams::new(map)));
    idle.filter(|(_, idle)| idle.streams >= MIN_STREAMS && idle.bytes >= MIN_BYTES).collect()
}

/// New streams cannot use the cache of old ones.
pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = many_idle(facts).into_iter().map(|(gpu, idle)| {
        let grown = reserved_in(facts, gpu);
        let problem = format!(
            "GPU {gpu}: {} streams with nothing in use hold {} of cache ({} each) that work on another stream \
             cannot use{}",
            count(idle.streams),
            bytes(idle.bytes),
            bytes(idle.bytes / idle.streams.max(1)),
            grown.map_or_else(String::new, |grown| format!("; {}", grown.text))
        );
        Finding::new("idle streams", idle.bytes, problem)
            .change("create each stream only once")
            .frees(idle.bytes)
            .command("dump", &["--cache"])
    });
    found.collect()
}

/// Only growth that streams did not cause.
pub(super) fn reserved_grows(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let by_streams: Vec<u32> = many_idle(facts).into_iter().map(|(gpu, _)| gpu).collect();
    let others = facts.devices.iter().filter(|device| !by_streams.contains(&device.gpu));
    let grown = others.filter_map(|device| Some((device.gpu, reserved_in(facts, device.gpu)?)));
    let found = grown.map(|(gpu, grown)| {
        let problem = format!("GPU {gpu}: {}, while what is allocated does not grow", grown.text);
        Finding::new("reserved grows", grown.bytes, problem).command("dump", &["--cache"])
    });
    found.collect()
}
