//! What follows from one look around a job: findings, each with its evidence in numbers.
//!
//! A finding is made by a rule of [`RULES`], and by nothing else. A rule that lacks a number finds nothing.

mod facts;
mod rules;

use crate::analysis::blocks::private_pools::PrivatePool;
use crate::analysis::owners::growth::{GrowthRise, OwnerGrowth};
use crate::analysis::owners::owner_groups::OwnerGroup;
pub use facts::{CacheFacts, FindingFacts, GpuFacts};

/// Something that a person would want to know. Sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// An owner grows.
    Grows {
        /// It.
        growth: OwnerGrowth,
    },
    /// Several results are kept with their autograd graphs.
    GraphsKept {
        /// The variable, with what its graphs keep.
        group: OwnerGroup,
    },
    /// Only cycles of garbage hold tensors.
    Garbage {
        /// What `gc.collect()` would free.
        bytes: u64,
        /// Storages.
        storages: u64,
        /// The cycles, those that hold most first.
        cycles: Vec<HoldingCycle>,
    },
    /// Private pools that CUDA graphs replay into hold much.
    GraphPools {
        /// The pools, the largest first.
        pools: Vec<PrivatePool>,
    },
    /// Much of the cache is free, and in pieces.
    Fragmented {
        /// The device.
        gpu: u32,
        /// Reserved and not allocated.
        cached: u64,
        /// Free blocks.
        blocks: u64,
        /// The largest of them.
        largest: u64,
        /// What `torch.cuda.empty_cache()` would return.
        releasable: u64,
    },
    /// Streams with nothing in use have cache that work on other streams cannot use.
    IdleStreams {
        /// The device.
        gpu: u32,
        /// How many.
        streams: u64,
        /// Their cache.
        bytes: u64,
        /// What is reserved grew meanwhile.
        grown: Option<ReservedIn>,
    },
    /// What is reserved grows, while what is allocated does not.
    ReservedGrows {
        /// By how much.
        grown: ReservedIn,
    },
    /// The process holds much that PyTorch's allocator knows nothing of.
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
    /// Several optimizers have state for the same parameters.
    OptimizersTwice {
        /// What they are called, the one with most state first.
        names: Vec<String>,
        /// State of all but the first.
        bytes: u64,
    },
    /// Several models have the same modules.
    ModelsTwice {
        /// What they are called.
        names: Vec<String>,
        /// Parameters of all but the first.
        bytes: u64,
    },
    /// Storages of which no tensor shows the most.
    LargeStorages {
        /// The one with most that is not shown.
        name: String,
        /// How many.
        storages: u64,
        /// Bytes that no tensor shows.
        bytes: u64,
    },
    /// Gradients are kept of a model that is not in training.
    GradientsInEval {
        /// The model.
        model: String,
        /// Bytes of its gradients.
        bytes: u64,
    },
}

/// Cycles of garbage of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingCycle {
    /// The class in it that says most.
    pub class: String,
    /// The shortest way round.
    pub way: String,
    /// How many there are.
    pub cycles: u64,
    /// Bytes on GPUs that they hold.
    pub bytes: u64,
}

impl Finding {
    /// Bytes that it is about; of what grows those in a minute.
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

/// By how much what is reserved grew while a job was observed.
#[derive(Debug, Clone, PartialEq)]
pub struct ReservedIn {
    /// The device.
    pub gpu: u32,
    /// By how many bytes.
    pub bytes: u64,
    /// In which time, in seconds.
    pub seconds: f64,
    /// The lines at which memory was taken from the driver; empty where they are not known.
    pub taken_by: Vec<String>,
}

fn minute(rise: &GrowthRise) -> u64 {
    (rise.rate() * 60.0) as u64
}

/// A rule: what it finds in the facts.
pub(crate) type Rule = fn(&FindingFacts<'_>) -> Vec<Finding>;

/// All rules, by what they find.
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

/// What follows from the facts: first what the program holds, in the order of the rules, the largest first of each.
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
