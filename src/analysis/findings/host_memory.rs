//! The host's side: PyTorch's own recorders, and the rounding of page-locked memory.

use super::{Finding, FindingFacts};
use crate::model::{bytes, count};

/// Of a bounded history.
const UNBOUNDED: u64 = 1 << 32;
const MIN_ENTRIES: u64 = 10_000;
const MIN_ROUNDED: u64 = 64 << 20;

pub(super) fn history(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(host) = facts.host else { return Vec::new() };
    let Some(history) = host.history.filter(|it| it.is_on && it.max_entries >= UNBOUNDED) else {
        return Vec::new();
    };
    if history.entries < MIN_ENTRIES {
        return Vec::new();
    }
    let growth = match host.growth_a_second() {
        Some(rate) if rate > 0 => {
            format!(", which grows by {} a second", bytes(rate))
        }
        _ => String::new(),
    };
    let problem = format!(
        "PyTorch's memory history is on without limit, {} entries on the host{growth}",
        count(history.entries)
    );
    let found = Finding::new("memory history", history.bytes, problem)
        .change("_record_memory_history(enabled=None), or max_entries=100000")
        .frees(history.bytes);
    vec![found.command("doctor", &[])]
}

/// It keeps its events until it stops.
pub(super) fn profiler(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(host) = facts.host.filter(|host| host.is_profiled) else { return Vec::new() };
    let Some(rate) = host.growth_a_second() else { return Vec::new() };
    let problem = format!(
        "PyTorch's profiler is on, and the host's memory grows by {} a second",
        bytes(rate)
    );
    let found = Finding::new("profiler", rate.saturating_mul(60), problem)
        .change("stop it after some steps, or pass it a schedule");
    vec![found.command("doctor", &[])]
}

pub(super) fn rounding(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(pinned) = facts.host.and_then(|host| host.page_locked) else { return Vec::new() };
    let (taken, asked) = (pinned.in_use, pinned.asked);
    let rounded = taken.saturating_sub(asked);
    if rounded < MIN_ROUNDED || rounded < taken / 4 {
        return Vec::new();
    }
    let problem = format!(
        "{} page-locked for {} of tensors, as PyTorch rounds up to a power of two",
        bytes(taken),
        bytes(asked)
    );
    let found = Finding::new("page-locked rounding", rounded, problem)
        .change("pin plain tensors with torch.cuda.cudart().cudaHostRegister()")
        .frees(rounded);
    vec![found]
}
