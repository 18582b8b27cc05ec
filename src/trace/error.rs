//! Errors of traces.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files::PlaceError;
use crate::model::SinkError;

/// Why a trace could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// It exists; overwriting was not requested.
    #[error("{} exists already", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A directory.
    #[error("{} is a directory", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// File or head could not be written.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl CreateError {
    pub(super) fn from_place(path: &Path, error: PlaceError) -> CreateError {
        let path = path.to_owned();
        match error {
            PlaceError::Exists(_) => CreateError::Exists { path },
            PlaceError::Directory(_) => CreateError::Directory { path },
            PlaceError::Io { source, .. } => CreateError::Create { path, source },
            foreign => CreateError::Create { path, source: io::Error::other(foreign) },
        }
    }
}

/// Why a trace could not be read. Damage inside is no error: see [`super::ReplaySummary`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Not a regular file.
    #[error("{} is {what}, not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// No bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It ends inside its first ten bytes.
    #[error("{} ends after {bytes} bytes, before the recording began", path.display())]
    HeadCut {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
    /// It does not begin like a trace.
    #[error("{} is not a memspy trace: it looks like {looks_like}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What its first bytes suggest.
        looks_like: &'static str,
    },
    /// A later memspy wrote it.
    #[error(
        "{} has trace format version {found}; this memspy reads versions up to {supported}: \
         read it with a newer memspy",
        path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// Latest version known here.
        supported: u16,
    },
    /// Reading failed.
    #[error("cannot read {} at byte {offset}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// In bytes.
        offset: u64,
        /// The reason.
        source: io::Error,
    },
    /// It shrank during reading.
    #[error(
        "{} became shorter while it was read: {bytes} bytes now, {expected} before",
        path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Bytes now.
        bytes: u64,
        /// Bytes at the start.
        expected: u64,
    },
    /// No decompressor.
    #[error("cannot set up the decompressor: {source}")]
    Decompressor {
        /// The reason.
        source: io::Error,
    },
    /// No reading thread.
    #[error("cannot start a thread that reads the trace: {source}")]
    Thread {
        /// The reason.
        source: io::Error,
    },
    /// The sink refused a record.
    #[error("the trace's records could not be taken: {source}")]
    Sink {
        /// The reason.
        source: SinkError,
    },
}
