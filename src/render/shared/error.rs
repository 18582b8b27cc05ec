//! Why an answer could not be written.

use crate::analysis::LineError;

/// Why something could not be rendered.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OutputError {
    #[error("cannot write the report: {0}")]
    Write(#[from] std::io::Error),
    #[error("cannot write CSV: {0}")]
    Csv(#[from] csv::Error),
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Lines(#[from] LineError),
    #[error("no memory was allocated at this moment; there is nothing to draw")]
    Empty,
}

impl OutputError {
    /// The I/O error of any writer. A closed pipe is no failure.
    pub fn into_io(self) -> std::io::Error {
        match self {
            OutputError::Write(error) => error,
            OutputError::Json(error) if error.is_io() => error.into(),
            OutputError::Csv(error) if error.is_io_error() => match error.into_kind() {
                csv::ErrorKind::Io(error) => error,
                other => std::io::Error::other(format!("cannot write CSV: {other:?}")),
            },
            other => std::io::Error::other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::OutputError;

    struct ClosedPipe;

    impl io::Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    /// Regression: `memspy ... --json | head` ended with "cannot write JSON: Broken pipe".
    #[test]
    fn a_closed_pipe_is_recognised_through_every_writer() {
        let json = serde_json::to_writer(ClosedPipe, &[1, 2]).unwrap_err();
        assert_eq!(OutputError::from(json).into_io().kind(), io::ErrorKind::BrokenPipe);
        let mut csv = csv::Writer::from_writer(ClosedPipe);
        csv.write_record(["a", "b"]).unwrap();
        let csv = csv::Error::from(csv.flush().unwrap_err());
        assert_eq!(OutputError::from(csv).into_io().kind(), io::ErrorKind::BrokenPipe);
    }
}
