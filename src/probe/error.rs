//! Errors of exact recording.

use std::io;

use crate::target::{ObjectError, ProcessError};

/// Why probes could not be placed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlacementError {
    #[error("the kernel refused to {action}: {source}")]
    Refused { action: &'static str, source: io::Error },
    #[error("the kernel rejected the program {program}: {source}: {log}")]
    Rejected { program: String, source: io::Error, log: String },
    #[error("cannot prepare the kernel program: {why}")]
    Unprepared { why: String },
    #[error("{what} need programs in the kernel (BPF), which samples of perf events are not")]
    NeedsPrograms { what: &'static str },
    #[error(
        "process {pid} has loaded neither PyTorch's CUDA part (libc10_cuda) nor the CUDA driver (libcuda): nothing there allocates GPU memory yet"
    )]
    NothingToProbe { pid: u32 },
    #[error("cannot find the probes in {path}: {why}")]
    Unreadable { path: String, why: String },
    #[error(
        "{path} calls its probe of an allocation before the block has an address, as PyTorch 2.1 does and 2.2 does not"
    )]
    BeforeAllocation { path: String },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl PlacementError {
    pub(super) fn refused(action: &'static str) -> impl FnOnce(io::Error) -> PlacementError {
        move |source| PlacementError::Refused { action, source }
    }

    pub(super) fn unprepared(why: impl ToString) -> PlacementError {
        PlacementError::Unprepared { why: why.to_string() }
    }

    /// Another way may work.
    pub(super) fn is_about_links(&self) -> bool {
        matches!(self, PlacementError::Refused { .. } | PlacementError::Rejected { .. })
    }

    /// Samples may work.
    pub(super) fn is_about_programs(&self) -> bool {
        self.is_about_links() || matches!(self, PlacementError::Unprepared { .. })
    }

    /// Whether rights are lacking.
    pub fn is_denied(&self) -> bool {
        matches!(self, PlacementError::Refused { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}
