//! Findings as sentences with their numbers, and the command that shows more.

use super::label::one_line;
use super::owner_groups::group_label;
use super::size::{bytes, count};
use crate::analysis::{Finding, OwnerGrowth, ReservedIn};

/// Names listed of several models or optimizers.
const MAX_NAMES: usize = 3;

/// A finding as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldFinding {
    /// What kind it is: `grows`, `graphs kept`, `garbage`, …
    pub kind: &'static str,
    /// Bytes that it is about; of what grows those of a minute.
    pub bytes: u64,
    /// The sentence.
    pub text: String,
    /// The command that shows more.
    pub command: String,
}

/// A finding about process `pid` in words.
pub fn told(finding: &Finding, pid: u32) -> ToldFinding {
    let listed = |names: &[String]| {
        let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
        match names.len() > MAX_NAMES {
            true => format!("{} and {} more", shown.join(", "), names.len() - MAX_NAMES),
            false => shown.join(", "),
        }
    };
    let (kind, text, command) = match finding {
        Finding::Grows { growth } => (
            "grows",
            match growth.may_be_one_step() {
                true => format!(
                    "{} rose by {} while observed: one long step may do that",
                    group_label(&growth.group),
                    rate(growth)
                ),
                false => format!(
                    "{} grows by {}{}",
                    group_label(&growth.group),
                    rate(growth),
                    known_remedy(growth)
                ),
            },
            why(growth, pid),
        ),
        Finding::GraphsKept { group } => (
            "graphs kept",
            format!(
                "{} results in {} keep their autograd graphs, {} of saved tensors: store .item() or .detach()",
                count(group.members),
                group.owner,
                bytes(group.size.bytes)
            ),
            format!("memspy graph -p {pid}"),
        ),
        Finding::Garbage { bytes: size, storages } => (
            "garbage",
            format!(
                "{} in {} storages is garbage in reference cycles: gc.collect() would free it",
                bytes(*size),
                count(*storages)
            ),
            format!("memspy tensors -p {pid} --each"),
        ),
        Finding::Fragmented { gpu, cached, blocks, largest, releasable } => (
            "fragmented",
            format!(
                "GPU {gpu}: {} is cached and free, but in {} blocks of at most {}; empty_cache() would return {}",
                bytes(*cached),
                count(*blocks),
                bytes(*largest),
                bytes(*releasable)
            ),
            format!("memspy dump -p {pid}"),
        ),
        Finding::IdleStreams { gpu, streams, bytes: size, grown } => (
            "idle streams",
            format!(
                "GPU {gpu}: {} streams with nothing in use hold {} of cache ({} each) that work on another stream cannot \
                 use{}: make a stream once, not each time",
                count(*streams),
                bytes(*size),
                bytes(size / streams.max(&1)),
                grown
                    .as_ref()
                    .map_or_else(String::new, |grown| format!("; {}", reserved_grew(grown)))
            ),
            format!("memspy dump -p {pid} --cache"),
        ),
        Finding::ReservedGrows { grown } => (
            "reserved grows",
            format!(
                "GPU {}: {}, while what is allocated does not grow",
                grown.gpu,
                reserved_grew(grown)
            ),
            format!("memspy dump -p {pid} --cache"),
        ),
        Finding::Outside { gpu, bytes: size } => (
            "outside PyTorch",
            format!(
                "GPU {gpu}: the process holds {} outside PyTorch; a CUDA context and NCCL take 0.4 to 2 GiB",
                bytes(*size)
            ),
            format!("memspy devices -p {pid}"),
        ),
        Finding::OtherProcesses { gpu, bytes: size, total } => (
            "other processes",
            format!("GPU {gpu}: other processes hold {} of {}", bytes(*size), bytes(*total)),
            "memspy devices".to_owned(),
        ),
        Finding::OptimizersTwice { names, bytes: size } => (
            "optimizers twice",
            format!(
                "{} optimizers have state for the same parameters ({}): {} more than one needs",
                names.len(),
                listed(names),
                bytes(*size)
            ),
            format!("memspy tensors -p {pid} --limit 0"),
        ),
        Finding::ModelsTwice { names, bytes: size } => (
            "models twice",
            format!(
                "{} models have the same modules ({}): the copies have {} of parameters",
                names.len(),
                listed(names),
                bytes(*size)
            ),
            format!("memspy tensors -p {pid} --limit 0"),
        ),
        Finding::LargeStorages { name, storages, bytes: size } => (
            "large storages",
            format!(
                "{} in {} storages is shown by no tensor: {name} is a part of a larger one; .clone() keeps only the part",
                bytes(*size),
                count(*storages)
            ),
            format!("memspy tensors -p {pid} --each"),
        ),
        Finding::GradientsInEval { model, bytes: size } => (
            "gradients in eval",
            format!(
                "{} of gradients are kept of {model}, which is in eval(): zero_grad(set_to_none=True) frees them",
                bytes(*size)
            ),
            format!("memspy tensors -p {pid}"),
        ),
    };
    ToldFinding { kind, bytes: finding.weight(), text: one_line(&text), command }
}

/// How what is reserved grew, and by which lines where that is known.
fn reserved_grew(grown: &ReservedIn) -> String {
    let lines: Vec<&str> = grown.taken_by.iter().take(MAX_NAMES).map(String::as_str).collect();
    let by = match lines[..] {
        [] => String::new(),
        _ => format!(", taken by {}", lines.join(" and ")),
    };
    format!("reserved grew by {} in {:.1} s{by}", bytes(grown.bytes), grown.seconds)
}

/// The command that says what keeps an owner that grows.
fn why(growth: &OwnerGrowth, pid: u32) -> String {
    match growth.group.example.as_ref().filter(|_| !growth.may_be_one_step()) {
        // What a shell would not take as it is, is quoted.
        Some(name) if !name.contains('\'') => {
            format!("memspy referrers -p {pid} '{}'", one_line(name))
        }
        _ => format!("memspy growth -p {pid} --for 60s"),
    }
}

/// What ends the growth, where the owner is a well-known one of a library.
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

/// `4.00 MiB a second (+12.00 MiB and +6 storages in 3.0 s)`.
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
