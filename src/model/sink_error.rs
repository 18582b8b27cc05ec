//! Why a sink refuses records.

use std::error::Error;
use std::io;

/// Why a sink refuses records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The receiving thread failed with its own error.
    #[error("the trace can no longer be written")]
    ThreadEnded,
    /// The receiving thread ended without an error.
    #[error("the writing thread ended unexpectedly")]
    ThreadFailed,
    /// No file is open.
    #[error("no segment of the recording has begun")]
    NotBegun,
    /// Evaluation failed, or costs too much.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

impl SinkError {
    /// Wraps an evaluation error.
    pub fn failed(error: impl Error + Send + Sync + 'static) -> SinkError {
        SinkError::Failed(Box::new(error))
    }

    /// The system's error, if a write failed.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            SinkError::Write(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the output's reader is gone.
    pub fn is_broken_pipe(&self) -> bool {
        self.io().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// A sink's result.
pub type SinkResult<T = ()> = Result<T, SinkError>;
