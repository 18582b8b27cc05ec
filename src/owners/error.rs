//! Why the owners could not be read.

use crate::model::LookLimit;
use crate::python::HeapError;
use crate::target::StopError;
use crate::torch::TorchError;

/// Why the owners could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Stopping the process failed.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Reading Python's objects failed.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// Reading PyTorch's objects failed.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// PyTorch is not loaded, or being imported.
    #[error("PyTorch is not loaded in it: there are no tensors")]
    NoTorch,
    /// The process was stopped during an allocation, or changed its blocks while running.
    #[error("the allocator was at work when the process stood still")]
    Allocating,
    /// The process used other pages than those copied; the next attempt copies them too.
    #[error("its objects changed while they were looked for")]
    Moved,
    /// A limit was reached before there was any result.
    #[error("{limit}, before its tensors were known ({} MiB of its memory had been read)", copied >> 20)]
    Cut {
        /// The limit.
        limit: LookLimit,
        /// Bytes of the process's memory copied until then.
        copied: u64,
    },
}

impl OwnerError {
    /// Whether it did not start because another process traces the target.
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
