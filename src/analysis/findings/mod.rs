//! Findings about a job: what is wrong, the change, and the bytes that it gives back.
//!
//! Each kind has its file; only [`RULES`] create findings. A rule that lacks a number finds
//! nothing, and none may find something in a healthy job.

mod added_results;
mod autocast_cache;
mod checkpoint;
mod create_graph;
mod cublas_streams;
mod ddp_buckets;
mod exception_kept;
mod facts;
mod finding;
mod fragmented;
mod garbage;
mod gradients_in_eval;
mod graph_pools;
mod graphs_kept;
mod grows;
mod host_memory;
mod idle_streams;
mod large_storages;
mod lasting_gradients;
mod logits;
mod models_twice;
mod neighbours;
mod notebook;
mod optimizers_twice;
mod outside;
mod pinned_segments;
mod removed_parameters;
mod sizes;
mod stray_context;

pub use autocast_cache::LastingCopies;
pub use facts::{CacheFacts, FindingFacts, GpuFacts};
pub use finding::{Finding, FindingCommand};
pub use grows::rate as growth_rate;
pub use lasting_gradients::LastingGradients;

/// Least bytes of most findings.
const MIN_BYTES: u64 = 1 << 20;

pub(crate) type Rule = fn(&FindingFacts<'_>) -> Vec<Finding>;

/// The kinds, as programs see them.
pub const KINDS: [&str; 32] = [
    "grows",
    "graphs kept",
    "results added up",
    "garbage",
    "graph in gradients",
    "optimizers twice",
    "state of removed parameters",
    "models twice",
    "checkpoint kept",
    "gradients in eval",
    "gradients between steps",
    "logits in float32",
    "large storages",
    "notebook outputs",
    "last error",
    "exception kept",
    "autocast cache",
    "ddp buckets",
    "cublas streams",
    "graph pools",
    "idle streams",
    "reserved grows",
    "pinned segments",
    "fragmented",
    "stray context",
    "memory history",
    "profiler",
    "page-locked rounding",
    "idle contexts",
    "orphans",
    "other processes",
    "outside PyTorch",
];

const RULES: &[Rule] = &[
    added_results::find,
    graphs_kept::find,
    garbage::find,
    create_graph::find,
    optimizers_twice::find,
    removed_parameters::find,
    models_twice::find,
    checkpoint::find,
    gradients_in_eval::find,
    lasting_gradients::find,
    logits::find,
    large_storages::find,
    notebook::find,
    exception_kept::find,
    autocast_cache::find,
    ddp_buckets::find,
    cublas_streams::find,
    graph_pools::find,
    idle_streams::find,
    idle_streams::reserved_grows,
    pinned_segments::find,
    fragmented::find,
    stray_context::find,
    host_memory::history,
    host_memory::profiler,
    host_memory::rounding,
    neighbours::idle_workers,
    neighbours::orphans,
    outside::other_processes,
    outside::find,
];

/// Those whose change gives back most come first.
pub fn findings(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let mut all: Vec<Finding> = RULES.iter().flat_map(|rule| rule(facts)).collect();
    grows::add(facts, &mut all);
    // What only states a fact comes last.
    all.sort_by_key(|finding| {
        (finding.change.is_empty() && finding.frees.is_none(), std::cmp::Reverse(finding.weight()))
    });
    all
}

#[cfg(test)]
mod tests;
