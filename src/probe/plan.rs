//! What is to be probed, and what the probes have to know for it.

use crate::abi::{AutogradInfo, CounterAddresses, UnwindInfo};
use crate::model::{CudaIndex, FreeTracking, ProbeBackend};

/// Bytes of the ring between kernel and reader: 0.15 s of 600,000 events a second, thirty times what
/// comes between two looks. A larger one falls out of the processor's caches, which costs the target.
pub const RING_BYTES: u32 = 8 << 20;

/// Bytes of the ring of copies of stacks: a thousand of PyTorch's, between two looks.
pub(super) const NATIVE_RING_BYTES: u32 = 16 << 20;

/// The plan of a recording.
#[derive(Debug, Clone)]
pub struct ProbePlan {
    /// The way to take; `None` for the first that the kernel allows.
    pub backend: Option<ProbeBackend>,
    /// How to walk Python stacks; `None` in a target without Python.
    pub walk: Option<UnwindInfo>,
    /// How to find autograd nodes; `None` without PyTorch, or when that was not found.
    pub backward: Option<AutogradInfo>,
    /// Whether the creation of forward nodes is probed.
    pub backward_lines: bool,
    /// Where the counters of devices are.
    pub levels: Vec<(CudaIndex, CounterAddresses)>,
    /// How frees are learned of.
    pub frees: FreeTracking,
    /// Allocations of fewer bytes get no stack.
    pub stacks_from: u64,
    /// One stack for this many bytes on average; 0 for all.
    pub stacks_every: u64,
    /// Allocations of at least so many bytes come with a copy of the thread's stack; `None`: none do.
    pub native_from: Option<u64>,
    /// Whether words that count steps are to be watched.
    pub watches: bool,
    /// Size of the ring in bytes: a power of two.
    pub ring_bytes: u32,
}

impl Default for ProbePlan {
    fn default() -> ProbePlan {
        ProbePlan {
            backend: None,
            walk: None,
            backward: None,
            backward_lines: false,
            levels: Vec::new(),
            frees: FreeTracking::Events,
            stacks_from: 0,
            stacks_every: 0,
            native_from: None,
            watches: false,
            ring_bytes: RING_BYTES,
        }
    }
}
