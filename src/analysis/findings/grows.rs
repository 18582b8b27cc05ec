//! An owner grows, or adds up results.

use super::{Finding, FindingFacts, GpuFacts, MIN_BYTES, added_results};
use crate::analysis::owners::{OwnerGrowth, OwnerKind, raw_group_label};
use crate::model::{bytes, count};

/// In names of what `functools.lru_cache` keeps.
const RESULTS_OF_CACHE: &str = ".<cache>";
const MIN_GROWTH_A_MINUTE: f64 = MIN_BYTES as f64;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let fast = facts.growth.iter().filter(|g| g.rise.rate() * 60.0 >= MIN_GROWTH_A_MINUTE);
    // A full cache of results has as many as before, of other sizes.
    let is_full = |growth: &&OwnerGrowth| {
        growth.storages <= 0 && growth.group.owner.contains(RESULTS_OF_CACHE)
    };
    // The finding on a sum says more.
    let sums = added_results::sums(facts);
    let of_sums = sums.iter().map(|(group, added)| added_results::finding(group, *added));
    let is_sum = |growth: &&OwnerGrowth| {
        let group = &growth.group;
        sums.iter().any(|(sum, _)| (&sum.kind, &sum.owner) == (&group.kind, &group.owner))
    };
    // A buffer that has room until it is full.
    let has_room = |growth: &&OwnerGrowth| {
        let index = growth.group.device.index.map_or(0, |index| index as u32);
        let gpu = facts.gpus.iter().find(|gpu| gpu.gpu == index);
        gpu.and_then(GpuFacts::left).is_some_and(|left| growth.ends_within(left))
    };
    fast.filter(|growth| !is_full(growth) && !is_sum(growth) && !has_room(growth))
        .map(finding)
        .chain(of_sums)
        .collect()
}

fn finding(growth: &OwnerGrowth) -> Finding {
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
        false => found.change(remedy(growth)),
    };
    // The command shows what keeps it alive, or first whether it grows.
    let found = match growth.group.example.as_ref().filter(|_| !may_be_one_step) {
        Some(name) => found.command("why", &[name]),
        None => found.command("growth", &["--for", "60s"]),
    };
    match growth.group.kind {
        OwnerKind::Variable | OwnerKind::Graph if !may_be_one_step => {
            found.frees(growth.group.size.bytes)
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
