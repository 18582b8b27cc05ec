//! Why owners could not be read.

use crate::model::ReachedLimit;
use crate::python::HeapError;
use crate::target::StopError;
use crate::torch::AllocatorError;

/// Why owners could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OwnerError {
    #[error(transparent)]
    Stop(#[from] StopError),
    #[error(transparent)]
    Heap(#[from] HeapError),
    #[error(transparent)]
    Torch(#[from] AllocatorError),
    #[error("PyTorch is not loaded in it: there are no tensors")]
    NoTorch,
    /// Without PyTorch.
    #[error("it uses a JAX whose arrays are laid out as memspy does not know")]
    Jax,
    #[error("the allocator was at work when the process was stopped")]
    Allocating,
    #[error("its objects changed while memspy searched for them")]
    Moved,
    #[error("{limit}, before its tensors were known ({} MiB of its memory had been read)", copied >> 20)]
    Cut { limit: ReachedLimit, copied: u64 },
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
