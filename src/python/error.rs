//! Errors of the room.

use crate::target::{Addr, MemoryError, ObjectError, ProcessError, SymbolError};

/// Why Python stacks cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// No CPython is loaded.
    #[error("{program} (pid {pid}) is not a Python program: no CPython is loaded in it")]
    NotPython {
        /// The pid.
        pid: u32,
        /// Its program.
        program: String,
    },
    /// The interpreter is starting or shutting down.
    #[error("the Python interpreter of process {pid} is not ready: {waiting_for}")]
    NotReady {
        /// The pid.
        pid: u32,
        /// What is missing.
        waiting_for: &'static str,
    },
    /// Unknown CPython version.
    #[error("CPython {found} is not known; known are {known}")]
    UnknownVersion {
        /// The version found.
        found: String,
        /// The known versions.
        known: String,
    },
    /// This build has another layout.
    #[error("CPython {version}: {what} is not supported")]
    Unsupported {
        /// CPython's version.
        version: String,
        /// The difference.
        what: &'static str,
    },
    /// The target's memory contradicts the layout.
    #[error("the memory of CPython {version} does not look as expected: {why}")]
    LayoutMismatch {
        /// CPython's version.
        version: String,
        /// The mismatch.
        why: String,
    },
    /// The kernel denies reading the target.
    #[error("permission denied when trying to read the memory of process {pid}")]
    Denied {
        /// The pid.
        pid: u32,
    },
    /// The process has ended.
    #[error("process {pid} has exited")]
    Gone {
        /// The pid.
        pid: u32,
    },
    /// A required structure is unreadable.
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable {
        /// The structure.
        what: &'static str,
        /// Its address.
        at: Addr,
        /// The cause.
        source: MemoryError,
    },
    /// Reading process information failed.
    #[error(transparent)]
    Process(ProcessError),
    /// The interpreter's ELF object is invalid.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The interpreter's symbols are unreadable.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// The built-in reader fails, and py-spy must not be used.
    #[error(
        "{why}; the py-spy crate, which may know it, opens files that the job names: it is used only by a memspy with no more \
         rights than the job, as its own user"
    )]
    NoFallback {
        /// Its error.
        why: String,
    },
    /// The built-in reader and py-spy fail.
    #[error("py-spy cannot read process {pid} either: {why}")]
    Fallback {
        /// The pid.
        pid: u32,
        /// py-spy's error.
        why: String,
    },
}

impl InterpreterError {
    pub(super) fn unreadable(
        pid: u32,
        what: &'static str,
        at: Addr,
        source: MemoryError,
    ) -> InterpreterError {
        match source {
            MemoryError::Gone => InterpreterError::Gone { pid },
            MemoryError::Denied => InterpreterError::Denied { pid },
            source => InterpreterError::Unreadable { what, at, source },
        }
    }

    /// Whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, InterpreterError::NotReady { .. })
    }
}

impl From<ProcessError> for InterpreterError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::NotFound { pid } | ProcessError::Exited { pid } => {
                InterpreterError::Gone { pid }
            }
            ProcessError::Denied { pid, .. } => InterpreterError::Denied { pid },
            other => InterpreterError::Process(other),
        }
    }
}
