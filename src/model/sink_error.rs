//! Why a sink refuses records.

use std::error::Error;
use std::io;

/// Why a sink refuses records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SinkError {
    #[error(transparent)]
    Write(#[from] io::Error),
    #[error("the trace can no longer be written")]
    ThreadEnded,
    #[error("the writing thread ended unexpectedly")]
    ThreadFailed,
    #[error("no segment of the recording has begun")]
    NotBegun,
    /// The sink needs no more records.
    #[error("the recording was not read to its end")]
    Enough,
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
