//! Why the allocator could not be read.

use crate::model::{AllocatorBackend, CudaIndex};
use crate::target::{Addr, MemoryError, ObjectError, ProcessError};

/// Why the allocator could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// The target itself could not be looked at.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The loaded library could not be understood.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The library is there, but not the variable that everything starts from.
    #[error("{library} of PyTorch {version} does not export {symbol}")]
    NoAllocatorVariable {
        /// File of the library.
        library: String,
        /// PyTorch version, `unknown` where it could not be read.
        version: String,
        /// The symbol looked for.
        symbol: &'static str,
    },
    /// This allocator, or this build of PyTorch, has nothing that memspy can read.
    #[error("{what} cannot be read: {why}")]
    NotSupported {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The process was forked after CUDA had begun: its allocator says what another process had
    /// then.
    #[error(
        "{} of the allocator of {}: this process was forked from that one after CUDA had begun there, and holds no GPU \
         memory of its own",
        AllocatorBackend::COPY,
        match of { Some(pid) => format!("process {pid}"), None => "a process that has ended".to_owned() }
    )]
    ForkedCopy {
        /// The process that CUDA began in; `None` where it has ended.
        of: Option<u32>,
    },
    /// CUDA has not been initialised in the target yet; ask again after `TorchReader::refresh`.
    #[error("CUDA has not been initialised in the target yet")]
    NotInitialized,
    /// The target has no such device.
    #[error("the target has no CUDA device {}", .0.0)]
    NoDevice(CudaIndex),
    /// The allocator of this PyTorch build is not laid out in any way memspy recognises.
    #[error("the allocator of PyTorch {version} is not laid out as expected: {what}")]
    UnknownLayout {
        /// PyTorch version, `unknown` where it could not be read.
        version: String,
        /// Which expectation failed.
        what: String,
    },
    /// The target changed it during every attempt to read it.
    #[error("the target changed {what} during each of {attempts} attempts to read it")]
    Torn {
        /// What was being read.
        what: &'static str,
        /// How many attempts there were.
        attempts: u32,
    },
    /// Memory could not be read.
    #[error("cannot read {what} at {at}: {source}")]
    Memory {
        /// What was being read.
        what: &'static str,
        /// Where it was expected.
        at: Addr,
        /// Why it failed.
        source: MemoryError,
    },
}

impl TorchError {
    /// Whether the kernel refused to let memspy look.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            TorchError::Process(ProcessError::Denied { .. })
                | TorchError::Memory { source: MemoryError::Denied, .. }
        )
    }
}

/// Names what was being read, for `map_err`.
pub(super) fn reading(what: &'static str, at: Addr) -> impl FnOnce(MemoryError) -> TorchError {
    move |source| TorchError::Memory { what, at, source }
}
