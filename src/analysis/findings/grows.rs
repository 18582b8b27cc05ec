//! An owner grows.

use super::{Finding, FindingFacts, GpuFacts, MIN_BYTES};
use crate::analysis::owners::{OwnerFrees, OwnerGrowth, OwnerKind, raw_group_label};
use crate::model::{bytes, count};

/// In names of what `functools.lru_cache` keeps.
const RESULTS_OF_CACHE: &str = ".<cache>";
/// Part of an owner's bytes that a cause of its growth must keep.
const NEARLY_ALL: f64 = 0.8;
const MIN_GROWTH_A_MINUTE: f64 = MIN_BYTES as f64;

/// Adds what grows to the other findings, or to the one that says why.
pub(super) fn add(facts: &FindingFacts<'_>, all: &mut Vec<Finding>) {
    let fast = facts.growth.iter().filter(|g| g.rise.rate() * 60.0 >= MIN_GROWTH_A_MINUTE);
    // A full cache of results has as many as before, of other sizes.
    let is_full = |growth: &&OwnerGrowth| {
        growth.storages <= 0 && growth.group.owner.contains(RESULTS_OF_CACHE)
    };
    // A buffer that has room until it is full.
    let has_room = |growth: &&OwnerGrowth| {
        let gpu = facts.gpus.iter().find(|gpu| gpu.gpu == growth.group.device.gpu());
        gpu.and_then(GpuFacts::left).is_some_and(|left| growth.ends_within(left))
    };
    for growth in fast.filter(|growth| !is_full(growth) && !has_room(growth)) {
        match cause(all, growth).filter(|_| !growth.may_be_one_step()) {
            Some(cause) => cause.problem += &format!(", growing by {}", rate(growth)),
            None => all.push(finding(growth, may_be_a_cycle(facts, growth))),
        }
    }
}

/// The finding that says why it grows, if there is one.
fn cause<'a>(all: &'a mut [Finding], growth: &OwnerGrowth) -> Option<&'a mut Finding> {
    let (owner, size) = (&growth.group.owner, growth.group.size.bytes);
    let is_garbage = growth.group.kind == OwnerKind::Garbage;
    all.iter_mut().find(|cause| {
        let rest = cause.owner.strip_prefix(owner.as_str());
        let is_of_it = rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[']));
        (is_of_it || is_garbage && cause.kind == "garbage")
            && cause.weight() as f64 >= size as f64 * NEARLY_ALL
    })
}

/// Whether its GPU held more before memspy attached: it may be emptied again.
fn may_be_a_cycle(facts: &FindingFacts<'_>, growth: &OwnerGrowth) -> bool {
    facts.peak(growth.group.device.gpu()).is_some_and(|peak| peak.older().is_some())
}

fn finding(growth: &OwnerGrowth, may_be_a_cycle: bool) -> Finding {
    let (owner, rate) = (raw_group_label(&growth.group), rate(growth));
    let a_minute = (growth.rise.rate() * 60.0) as u64;
    let may_be_one_step = growth.may_be_one_step();
    let problem = match (may_be_one_step, growth.group.full_at) {
        (true, _) => format!("{owner} rose by {rate} while observed"),
        (false, Some(full)) => {
            format!("{owner} grows by {rate}, to about {} when its deque is full", bytes(full))
        }
        (false, None) => format!("{owner} grows by {rate}"),
    };
    let found = Finding::new("grows", a_minute, problem);
    let found = match may_be_one_step {
        true => found.change("one long step may do that"),
        false if may_be_a_cycle => {
            let change = remedy(growth);
            let or = if change.is_empty() { "perhaps " } else { ", unless " };
            found.change(format!(
                "{change}{or}it is emptied now and then (the peak was higher before)"
            ))
        }
        false => found.change(remedy(growth)),
    };
    // The command shows what keeps it alive, or first whether it grows.
    let found = match growth.group.example.as_ref().filter(|_| !may_be_one_step) {
        Some(name) => found.command("why", &[name]),
        None => found.command("growth", &["--for", "60s"]),
    };
    match growth.group.kind {
        OwnerKind::Variable | OwnerKind::Graph if !may_be_one_step => {
            let known = growth.group.frees.as_ref().map(OwnerFrees::all).filter(|all| *all > 0);
            found.frees(known.unwrap_or(growth.group.size.bytes))
        }
        _ => found,
    }
}

/// `2.00 MiB a second (+4.00 MiB in 2.0 s; +4 storages)`
pub fn rate(growth: &OwnerGrowth) -> String {
    let rise = &growth.rise;
    let sign = if growth.storages < 0 { "-" } else { "+" };
    format!(
        "{} a second (+{} in {:.1} s; {sign}{} storages)",
        bytes(rise.rate() as u64),
        bytes(rise.bytes),
        rise.seconds,
        count(growth.storages.unsigned_abs())
    )
}

fn remedy(growth: &OwnerGrowth) -> &'static str {
    match (growth.group.owner.as_str(), &growth.group.kind) {
        // transformers/trainer.py, `EvalLoopContainer`.
        ("evaluation_loop: all_preds.tensors", _) => {
            "transformers' Trainer keeps all predictions on the GPU until the evaluation ends; \
             eval_accumulation_steps=N in its TrainingArguments moves them to the CPU"
        }
        (_, OwnerKind::Variable) if growth.group.full_at.is_some() => {
            "lower its maxlen, or move what it keeps to the CPU"
        }
        (_, OwnerKind::Variable) => "give it a limit, or move what it keeps to the CPU",
        _ => "",
    }
}
