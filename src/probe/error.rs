//! Errors of exact recording.

use std::io;

use crate::target::{ObjectError, ProcessError};

/// Why probes could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// This memspy has no BPF program.
    #[error("this memspy was built without its kernel program: {why}")]
    NotBuilt {
        /// What was missing at build time.
        why: String,
    },
    /// The kernel refused an action.
    #[error("the kernel refused to {action}: {source}")]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The kernel's verifier rejected a program.
    #[error("the kernel rejected the program {program}: {source}: {log}")]
    Rejected {
        /// The program.
        program: String,
        /// The kernel's error.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The BPF program could not be prepared for this kernel.
    #[error("cannot prepare the kernel program: {why}")]
    Unprepared {
        /// The cause.
        why: String,
    },
    /// The request needs a kernel program.
    #[error("{what} need programs in the kernel (BPF), which samples of perf events are not")]
    NeedsPrograms {
        /// The request.
        what: &'static str,
    },
    /// Nothing to probe is loaded.
    #[error(
        "process {pid} has loaded neither PyTorch's CUDA part (libc10_cuda) nor the CUDA driver (libcuda): nothing there allocates GPU memory yet"
    )]
    NothingToProbe {
        /// The pid.
        pid: u32,
    },
    /// A loaded file could not be examined.
    #[error("cannot find the probes in {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        why: String,
    },
    /// The probe does not report the allocated block.
    #[error(
        "{path} calls its probe of an allocation before the block has an address, as PyTorch 2.1 does and 2.2 does not"
    )]
    BeforeAllocation {
        /// The library.
        path: String,
    },
    /// The target is unreadable.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A loaded object is unreadable.
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
        self.is_about_links()
            || matches!(self, PlacementError::NotBuilt { .. } | PlacementError::Unprepared { .. })
    }

    /// Whether rights are lacking.
    pub fn is_denied(&self) -> bool {
        matches!(self, PlacementError::Refused { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}
