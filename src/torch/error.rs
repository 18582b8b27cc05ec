//! Errors of the room.

use crate::model::{AllocatorBackend, CudaIndex};
use crate::target::{Addr, MemoryError, ObjectError, ProcessError};

/// Why the allocator could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AllocatorError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("{library} of PyTorch {version} does not export {symbol}")]
    NoAllocatorVariable { library: String, version: String, symbol: &'static str },
    #[error("{what} cannot be read: {why}")]
    NotSupported { what: &'static str, why: String },
    #[error(
        "{} of the allocator of {}: this process was forked from that one after CUDA had begun there, and holds no GPU \
         memory of its own",
        AllocatorBackend::COPY,
        match of { Some(pid) => format!("process {pid}"), None => "a process that has ended".to_owned() }
    )]
    ForkedCopy { of: Option<u32> },
    #[error("CUDA has not been initialised in the target yet")]
    NotInitialized,
    #[error("the target has no CUDA device {}", .0.0)]
    NoDevice(CudaIndex),
    #[error("the allocator of PyTorch {version} is not laid out as expected: {what}")]
    UnknownLayout { version: String, what: String },
    #[error("the target changed {what} during each of {attempts} attempts to read it")]
    Torn { what: &'static str, attempts: u32 },
    #[error("cannot read {what} at {at}: {source}")]
    Memory { what: &'static str, at: Addr, source: MemoryError },
}

impl AllocatorError {
    /// Whether the kernel denied access.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            AllocatorError::Process(ProcessError::Denied { .. })
                | AllocatorError::Memory { source: MemoryError::Denied, .. }
        )
    }
}

pub(super) fn reading(what: &'static str, at: Addr) -> impl FnOnce(MemoryError) -> AllocatorError {
    move |source| AllocatorError::Memory { what, at, source }
}
