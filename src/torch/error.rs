//! Errors of the room.

use crate::model::{AllocatorBackend, CudaIndex};
use crate::target::{Addr, MemoryError, ObjectError, ProcessError};

/// Why the allocator could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// Reading process information failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A library's ELF file is invalid.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The library lacks the variable to start from.
    #[error("{library} of PyTorch {version} does not export {symbol}")]
    NoAllocatorVariable {
        /// The library's file.
        library: String,
        /// PyTorch's version, or `unknown`.
        version: String,
        /// The missing symbol.
        symbol: &'static str,
    },
    /// An unsupported allocator or build of PyTorch.
    #[error("{what} cannot be read: {why}")]
    NotSupported {
        /// What was requested.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// Forked after CUDA started: the allocator is a copy of the parent's.
    #[error(
        "{} of the allocator of {}: this process was forked from that one after CUDA had begun there, and holds no GPU \
         memory of its own",
        AllocatorBackend::COPY,
        match of { Some(pid) => format!("process {pid}"), None => "a process that has ended".to_owned() }
    )]
    ForkedCopy {
        /// The process in which CUDA started; `None` if it has ended.
        of: Option<u32>,
    },
    /// CUDA is not initialised; ask again after `AllocatorReader::refresh`.
    #[error("CUDA has not been initialised in the target yet")]
    NotInitialized,
    /// No such device.
    #[error("the target has no CUDA device {}", .0.0)]
    NoDevice(CudaIndex),
    /// Unknown allocator layout.
    #[error("the allocator of PyTorch {version} is not laid out as expected: {what}")]
    UnknownLayout {
        /// PyTorch's version, or `unknown`.
        version: String,
        /// The failed expectation.
        what: String,
    },
    /// The target changed it during every attempt.
    #[error("the target changed {what} during each of {attempts} attempts to read it")]
    Torn {
        /// What was read.
        what: &'static str,
        /// Attempts.
        attempts: u32,
    },
    /// Memory could not be read.
    #[error("cannot read {what} at {at}: {source}")]
    Memory {
        /// What was read.
        what: &'static str,
        /// Its expected address.
        at: Addr,
        /// The cause.
        source: MemoryError,
    },
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
