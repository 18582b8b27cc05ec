//! Findings as sentences with a command.

use std::io::Write;

use crate::analysis::{Finding, HoldingCycle, OwnerGroup, OwnerGrowth, PrivatePool, ReservedIn};
use crate::render::owners::{group_label, pool_users};
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, count, number, one_line, suggestion, suggestion_on, wrapped,
};

const MAX_NAMES: usize = 3;
const MAX_CYCLES: usize = 3;
const MAX_POOLS: usize = 6;

/// A finding as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingText {
    /// `grows`, `graphs kept`, `garbage`, …
    pub kind: &'static str,
    /// Bytes concerned; for growth, bytes a minute.
    pub bytes: u64,
    /// The sentence.
    pub text: String,
    /// The command that shows more.
    pub command: String,
}

/// A finding about process `pid`.
pub fn finding_text(finding: &Finding, pid: u32) -> FindingText {
    FindingText {
        kind: kind(finding),
        bytes: finding.weight(),
        text: one_line(&sentence(finding)),
        command: command(finding, pid),
    }
}

/// Writes findings, each with its command.
pub fn findings_text(
    out: &mut dyn Write,
    findings: &[FindingText],
    width: Option<usize>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if findings.is_empty() {
        writeln!(out, "no findings")?;
    }
    for FindingText { text, command, .. } in findings {
        for line in wrapped(&format!("* {text}"), width) {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "    {command}")?;
    }
    Ok(())
}

fn kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::Grows { .. } => "grows",
        Finding::GraphsKept { .. } => "graphs kept",
        Finding::Garbage { .. } => "garbage",
        Finding::GraphPools { .. } => "graph pools",
        Finding::Fragmented { .. } => "fragmented",
        Finding::IdleStreams { .. } => "idle streams",
        Finding::ReservedGrows { .. } => "reserved grows",
        Finding::Outside { .. } => "outside PyTorch",
        Finding::OtherProcesses { .. } => "other processes",
        Finding::OptimizersTwice { .. } => "optimizers twice",
        Finding::ModelsTwice { .. } => "models twice",
        Finding::LargeStorages { .. } => "large storages",
        Finding::GradientsInEval { .. } => "gradients in eval",
    }
}

fn command(finding: &Finding, pid: u32) -> String {
    let (command, options): (&str, &[&str]) = match finding {
        Finding::Grows { growth } => return why(growth, pid),
        Finding::OtherProcesses { .. } => return suggestion(["devices"]),
        Finding::GraphsKept { .. } => ("graph", &[]),
        Finding::GradientsInEval { .. } => ("tensors", &[]),
        Finding::Garbage { .. } | Finding::LargeStorages { .. } => ("tensors", &["--each"]),
        Finding::OptimizersTwice { .. } | Finding::ModelsTwice { .. } => {
            ("tensors", &["--limit", "0"])
        }
        Finding::GraphPools { .. }
        | Finding::IdleStreams { .. }
        | Finding::ReservedGrows { .. } => ("dump", &["--cache"]),
        Finding::Fragmented { .. } => ("dump", &[]),
        Finding::Outside { .. } => ("devices", &[]),
    };
    suggestion_on(pid, command, options)
}

fn sentence(finding: &Finding) -> String {
    match finding {
        Finding::Grows { growth } => grows(growth),
        Finding::GraphsKept { group } => graphs_kept(group),
        Finding::Garbage { bytes: size, storages, cycles } => garbage(*size, *storages, cycles),
        Finding::GraphPools { pools } => pools_text(pools),
        Finding::Fragmented { gpu, cached, blocks, largest, releasable } => format!(
            "GPU {gpu}: {} is cached and free, but in {} of at most {}; empty_cache() would return {}",
            bytes(*cached),
            number(*blocks, "block"),
            bytes(*largest),
            bytes(*releasable)
        ),
        Finding::IdleStreams { gpu, streams, bytes: size, grown } => {
            idle_streams(*gpu, *streams, *size, grown.as_ref())
        }
        Finding::ReservedGrows { grown } => format!(
            "GPU {}: {}, while what is allocated does not grow",
            grown.gpu,
            reserved_grew(grown)
        ),
        Finding::Outside { gpu, bytes: size } => format!(
            "GPU {gpu}: the process holds {} outside PyTorch; a CUDA context and NCCL take 0.4 to 2 GiB",
            bytes(*size)
        ),
        Finding::OtherProcesses { gpu, bytes: size, total } => {
            format!("GPU {gpu}: other processes hold {} of {}", bytes(*size), bytes(*total))
        }
        Finding::OptimizersTwice { names, bytes: size } => format!(
            "{} optimizers have state for the same parameters ({}): {} more than one needs",
            names.len(),
            listed(names),
            bytes(*size)
        ),
        Finding::ModelsTwice { names, bytes: size } => format!(
            "{} models have the same modules ({}): the copies have {} of parameters",
            names.len(),
            listed(names),
            bytes(*size)
        ),
        Finding::LargeStorages { name, storages, bytes: size } => {
            large_storages(name, *storages, *size)
        }
        Finding::GradientsInEval { model, bytes: size } => format!(
            "{} of gradients are kept of {model}, which is in eval(): zero_grad(set_to_none=True) frees them",
            bytes(*size)
        ),
    }
}

fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    match names.len() > MAX_NAMES {
        true => format!("{} and {} more", shown.join(", "), names.len() - MAX_NAMES),
        false => shown.join(", "),
    }
}

fn grows(growth: &OwnerGrowth) -> String {
    let (owner, rate) = (group_label(&growth.group), rate(growth));
    match growth.may_be_one_step() {
        true => format!("{owner} rose by {rate} while observed: one long step may do that"),
        false => format!("{owner} grows by {rate}{}", known_remedy(growth)),
    }
}

fn graphs_kept(group: &OwnerGroup) -> String {
    format!(
        "{} results in {} keep their autograd graphs, {} of saved tensors: store .item() or .detach()",
        count(group.members),
        group.owner,
        bytes(group.size.bytes)
    )
}

fn garbage(size: u64, storages: u64, cycles: &[HoldingCycle]) -> String {
    format!(
        "{} in {} is garbage in reference cycles: gc.collect() would free it{}",
        bytes(size),
        number(storages, "storage"),
        cycles_text(cycles)
    )
}

fn idle_streams(gpu: u32, streams: u64, size: u64, grown: Option<&ReservedIn>) -> String {
    format!(
        "GPU {gpu}: {} streams with nothing in use hold {} of cache ({} each) that work on another stream cannot \
         use{}: create each stream only once",
        count(streams),
        bytes(size),
        bytes(size / streams.max(1)),
        grown.map_or_else(String::new, |grown| format!("; {}", reserved_grew(grown)))
    )
}

fn large_storages(name: &str, storages: u64, size: u64) -> String {
    format!(
        "{} in {} is covered by no tensor: {name} is a view of a part of it; .clone() keeps only the part",
        bytes(size),
        number(storages, "storage")
    )
}

fn cycles_text(cycles: &[HoldingCycle]) -> String {
    let texts = cycles.iter().take(MAX_CYCLES).map(|cycle| {
        let number = match cycle.cycles {
            1 => "a cycle".to_owned(),
            cycles => format!("{} cycles", count(cycles)),
        };
        format!("; {} by {number} of class {}: {}", bytes(cycle.bytes), cycle.class, cycle.way)
    });
    let more = match cycles.len().saturating_sub(MAX_CYCLES) {
        0 => String::new(),
        more => format!("; and {more} more kinds of cycles"),
    };
    texts.chain([more]).collect()
}

fn pools_text(pools: &[PrivatePool]) -> String {
    let sum = |of: fn(&PrivatePool) -> u64| pools.iter().map(of).sum();
    let mut text = format!(
        "{} in {} of CUDA graphs, {} of it free to the allocator's counters: the graphs replay into it, \
         empty_cache() does not return it. By graph: ",
        bytes(sum(|pool| pool.sums.bytes)),
        number(pools.len() as u64, "private pool"),
        bytes(sum(|pool| pool.sums.free)),
    );
    let shown = pools.iter().take(MAX_POOLS);
    let shown = shown.map(|pool| format!("{} {}", pool_users(&pool.users), bytes(pool.sums.bytes)));
    text.push_str(&shown.collect::<Vec<_>>().join(", "));
    if pools.len() > MAX_POOLS {
        text.push_str(&format!(" and {} more", pools.len() - MAX_POOLS));
    }
    if pools.len() > 1 {
        text.push_str(
            ". One pool for all (pool=graph.pool()), the largest captured first, takes about what the largest takes",
        );
    }
    text
}

fn reserved_grew(grown: &ReservedIn) -> String {
    let lines: Vec<&str> = grown.taken_by.iter().take(MAX_NAMES).map(String::as_str).collect();
    let by = match lines[..] {
        [] => String::new(),
        _ => format!(", taken by {}", lines.join(" and ")),
    };
    format!("reserved grew by {} in {:.1} s{by}", bytes(grown.bytes), grown.seconds)
}

/// The command that shows what keeps a growing owner alive, or first whether it grows.
fn why(growth: &OwnerGrowth, pid: u32) -> String {
    match growth.group.example.as_ref().filter(|_| !growth.may_be_one_step()) {
        Some(name) => suggestion_on(pid, "why", &[name]),
        None => suggestion_on(pid, "growth", &["--for", "60s"]),
    }
}

fn known_remedy(growth: &OwnerGrowth) -> &'static str {
    match growth.group.owner.as_str() {
        // transformers/trainer.py, `EvalLoopContainer`.
        "evaluation_loop: all_preds.tensors" => {
            ": transformers' Trainer keeps all predictions on the GPU until the evaluation ends; \
             eval_accumulation_steps=N in its TrainingArguments moves them to the CPU"
        }
        _ => "",
    }
}

pub(super) fn rate(growth: &OwnerGrowth) -> String {
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
