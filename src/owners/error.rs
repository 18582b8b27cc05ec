//! Why the owners could not be read.

use crate::model::LookLimit;
use crate::python::HeapError;
use crate::target::StopError;
use crate::torch::TorchError;

/// Why the owners could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The process could not be stopped for a moment.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Python's objects could not be read.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// PyTorch's objects could not be read.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// PyTorch is not loaded, or being imported.
    #[error("PyTorch is not loaded in it: there are no tensors")]
    NoTorch,
    /// The process stands in the middle of an allocation, or ran on and changed its blocks.
    #[error("the allocator was at work when the process stood still")]
    Allocating,
    /// The process needed other memory than what was copied; the next look copies that too.
    #[error("its objects changed while they were looked for")]
    Moved,
    /// A limit was reached before anything could be said.
    #[error("{limit}, before its tensors were known ({} MiB of its memory had been read)", copied >> 20)]
    Cut {
        /// Which one.
        limit: LookLimit,
        /// Bytes of the process's memory copied by then.
        copied: u64,
    },
}

impl OwnerError {
    /// Whether it did not begin, because another process holds the one that was to be stopped.
    pub fn is_traced(&self) -> bool {
        matches!(self, OwnerError::Stop(StopError::Traced { .. }))
    }

    /// Whether another attempt a moment later may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            OwnerError::Heap(error) => error.is_transient(),
            OwnerError::Torch(TorchError::Torn { .. }) | OwnerError::Allocating => true,
            OwnerError::Stop(StopError::Stubborn { .. }) => true,
            _ => false,
        }
    }
}
