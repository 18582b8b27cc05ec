//! GPU memory that only PyTorch's C++ keeps, in no Python object.

use super::tensors::TensorDevice;

/// What keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CppKeeper {
    /// Autocast's cache: a copy of a weight in lower precision.
    AutocastCache,
    /// The buckets of `DistributedDataParallel`.
    DdpBuckets,
    /// cuBLAS.
    Cublas,
    /// Private pools of CUDA graphs.
    GraphPools,
    /// Private pools of `MemPool`s, and of what has ended.
    OtherPools,
}

impl CppKeeper {
    /// For texts, without its brackets.
    pub fn name(self) -> &'static str {
        match self {
            CppKeeper::AutocastCache => "autocast's cache: copies of weights in lower precision",
            CppKeeper::DdpBuckets => "DDP's buckets: a second copy of the gradients",
            CppKeeper::Cublas => "work spaces of cuBLAS",
            CppKeeper::GraphPools => "pools of CUDA graphs: kept for their replay",
            CppKeeper::OtherPools => "private pools",
        }
    }

    /// For programs.
    pub fn key(self) -> &'static str {
        match self {
            CppKeeper::AutocastCache => "autocast_cache",
            CppKeeper::DdpBuckets => "ddp_buckets",
            CppKeeper::Cublas => "cublas_workspaces",
            CppKeeper::GraphPools => "graph_pools",
            CppKeeper::OtherPools => "other_pools",
        }
    }
}

/// Memory found in PyTorch's own structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CppMemory {
    /// What keeps it.
    pub keeper: CppKeeper,
    /// Its device.
    pub device: TensorDevice,
    /// Address of its bytes.
    pub data: u64,
    /// Of autocast: the `TensorImpl` of the weight; of cuBLAS: the stream; else 0.
    pub of: u64,
}
