//! Findings about a job, with their evidence.
//!
//! Only [`RULES`] create findings. A rule that lacks a number finds nothing.

mod facts;
mod rules;

use crate::analysis::blocks::PrivatePool;
use crate::analysis::owners::{GrowthRise, OwnerGroup, OwnerGrowth};
pub use facts::{CacheFacts, FindingFacts, GpuFacts};

/// A finding. Sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// An owner grows.
    Grows {
        /// The owner and its rise.
        growth: OwnerGrowth,
    },
    /// Several results keep their autograd graphs.
    GraphsKept {
        /// The variable and its graphs.
        group: OwnerGroup,
    },
    /// Only cycles of garbage hold tensors.
    Garbage {
        /// What `gc.collect()` would free.
        bytes: u64,
        /// Storages.
        storages: u64,
        /// The cycles, most bytes first.
        cycles: Vec<HoldingCycle>,
    },
    /// Private pools of CUDA graphs are large.
    GraphPools {
        /// The pools, the largest first.
        pools: Vec<PrivatePool>,
    },
    /// The free cache is fragmented.
    Fragmented {
        /// The device.
        gpu: u32,
        /// Reserved and not allocated.
        cached: u64,
        /// Free blocks.
        blocks: u64,
        /// The largest free block.
        largest: u64,
        /// What `torch.cuda.empty_cache()` would return.
        releasable: u64,
    },
    /// Idle streams hold cache that other streams cannot use.
    IdleStreams {
        /// The device.
        gpu: u32,
        /// How many.
        streams: u64,
        /// Their cache.
        bytes: u64,
        /// Growth of reserved memory meanwhile.
        grown: Option<ReservedIn>,
    },
    /// Reserved memory grows without allocated memory.
    ReservedGrows {
        /// The growth.
        grown: ReservedIn,
    },
    /// The process holds much outside PyTorch's allocator.
    Outside {
        /// The device.
        gpu: u32,
        /// Bytes.
        bytes: u64,
    },
    /// Other processes hold much of a device.
    OtherProcesses {
        /// The device.
        gpu: u32,
        /// Bytes.
        bytes: u64,
        /// Of the whole device.
        total: u64,
    },
    /// Optimizers with state for the same parameters.
    OptimizersTwice {
        /// Their names, most state first.
        names: Vec<String>,
        /// State of all but the first.
        bytes: u64,
    },
    /// Several models have the same modules.
    ModelsTwice {
        /// Their names.
        names: Vec<String>,
        /// Parameters of all but the first.
        bytes: u64,
    },
    /// Storages whose tensors show less than half.
    LargeStorages {
        /// The one with most hidden bytes.
        name: String,
        /// How many.
        storages: u64,
        /// Hidden bytes.
        bytes: u64,
    },
    /// A model in `eval()` keeps gradients.
    GradientsInEval {
        /// The model.
        model: String,
        /// Bytes of its gradients.
        bytes: u64,
    },
}

/// Garbage cycles of one kind: `class` identifies them best, `way` is the shortest way round, and
/// `bytes` are those held on GPUs.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingCycle {
    pub class: String,
    pub way: String,
    pub cycles: u64,
    pub bytes: u64,
}

impl Finding {
    /// Its bytes; for growth, per minute.
    pub fn weight(&self) -> u64 {
        match self {
            Finding::Grows { growth: OwnerGrowth { rise, .. } } => minute(rise),
            Finding::GraphsKept { group } => group.size.bytes,
            Finding::Fragmented { cached, .. } => *cached,
            Finding::GraphPools { pools } => pools.iter().map(|pool| pool.sums.bytes).sum(),
            Finding::ReservedGrows { grown } => grown.bytes,
            Finding::Garbage { bytes, .. }
            | Finding::IdleStreams { bytes, .. }
            | Finding::Outside { bytes, .. }
            | Finding::OtherProcesses { bytes, .. }
            | Finding::OptimizersTwice { bytes, .. }
            | Finding::ModelsTwice { bytes, .. }
            | Finding::LargeStorages { bytes, .. }
            | Finding::GradientsInEval { bytes, .. } => *bytes,
        }
    }
}

/// Growth of reserved memory while observed, and the lines that took memory from the driver.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub struct ReservedIn {
    pub gpu: u32,
    pub bytes: u64,
    pub seconds: f64,
    pub taken_by: Vec<String>,
}

fn minute(rise: &GrowthRise) -> u64 {
    (rise.rate() * 60.0) as u64
}

pub(crate) type Rule = fn(&FindingFacts<'_>) -> Vec<Finding>;

pub(crate) const RULES: &[Rule] = &[
    rules::grows,
    rules::graphs_kept,
    rules::garbage,
    rules::optimizers_twice,
    rules::models_twice,
    rules::gradients_in_eval,
    rules::large_storages,
    rules::graph_pools,
    rules::idle_streams,
    rules::reserved_grows,
    rules::fragmented,
    rules::other_processes,
    rules::outside,
];

/// The findings by rule, the largest first.
pub fn findings(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let sorted = |rule: &Rule| {
        let mut found = rule(facts);
        found.sort_by_key(|finding| std::cmp::Reverse(finding.weight()));
        found
    };
    RULES.iter().flat_map(sorted).collect()
}

#[cfg(test)]
mod tests;
