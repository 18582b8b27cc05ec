//! Why owners could not be read.

use crate::model::ReachedLimit;
use crate::python::HeapError;
use crate::target::StopError;
use crate::torch::AllocatorError;

/// Why owners could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The process could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Python's objects are unreadable.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// PyTorch's objects are unreadable.
    #[error(transparent)]
    Torch(#[from] AllocatorError),
    /// PyTorch is not loaded yet.
    #[error("PyTorch is not loaded in it: there are no tensors")]
    NoTorch,
    /// An allocation was under way, or blocks changed meanwhile.
    #[error("the allocator was at work when the process stood still")]
    Allocating,
    /// Pages beyond the copy were needed; the next attempt copies them.
    #[error("its objects changed while they were looked for")]
    Moved,
    /// A limit was reached before there was a result.
    #[error("{limit}, before its tensors were known ({} MiB of its memory had been read)", copied >> 20)]
    Cut {
        /// The limit.
        limit: ReachedLimit,
        /// Bytes copied until then.
        copied: u64,
    },
}

impl OwnerError {
    /// Whether the reason is another tracer.
    pub fn is_traced(&self) -> bool {
        matches!(self, OwnerError::Stop(StopError::Traced { .. }))
    }

    /// Whether another attempt may succeed soon.
    pub fn is_transient(&self) -> bool {
        match self {
            OwnerError::Heap(error) => error.is_transient(),
            OwnerError::Torch(AllocatorError::Torn { .. }) | OwnerError::Allocating => true,
            OwnerError::Stop(StopError::Stubborn { .. }) => true,
            _ => false,
        }
    }
}
