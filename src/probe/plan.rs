//! What to probe, and what probes must know.

use crate::abi::{AutogradInfo, CounterAddresses, UnwindInfo};
use crate::model::{CudaIndex, FreeTracking, ProbeBackend};

/// Bytes: 0.15 s of 600,000 events a second, thirty times what arrives between two reads. A larger
/// ring exceeds the processor's caches, at the target's cost.
pub const RING_BYTES: u32 = 8 << 20;

/// Bytes: a thousand of PyTorch's stack copies between two reads.
pub(super) const NATIVE_RING_BYTES: u32 = 16 << 20;

/// The plan of a recording.
#[derive(Debug, Clone)]
pub struct AttachPlan {
    /// The requested way; `None`: the first allowed.
    pub backend: Option<ProbeBackend>,
    /// Whether to fail where kernel programs are refused.
    pub needs_programs: bool,
    /// How to walk Python stacks; `None`: no Python.
    pub walk: Option<UnwindInfo>,
    /// How to find autograd nodes; `None`: no PyTorch, or not found.
    pub backward: Option<AutogradInfo>,
    /// Whether to probe new forward nodes.
    pub backward_lines: bool,
    /// Counter addresses by device.
    pub levels: Vec<(CudaIndex, CounterAddresses)>,
    /// How to observe frees.
    pub frees: FreeTracking,
    /// Minimum bytes for a stack.
    pub stacks_from: u64,
    /// Mean bytes per stack; 0: all.
    pub stacks_every: u64,
    /// Minimum bytes for a copy of the thread's stack.
    pub native_from: Option<u64>,
    /// Whether to watch words that count steps.
    pub watches: bool,
    /// A power of two.
    pub ring_bytes: u32,
}

impl Default for AttachPlan {
    fn default() -> AttachPlan {
        AttachPlan {
            backend: None,
            needs_programs: false,
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
