//! Errors of traces.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files::PlaceError;
use crate::model::SinkError;

/// Why a trace could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CreateError {
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("{} is a directory", path.display())]
    Directory { path: PathBuf },
    #[error("cannot create {}: {source}", path.display())]
    Create { path: PathBuf, source: io::Error },
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
#[allow(missing_docs)]
pub enum ReadError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is {what}, not a file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
    #[error("{} ends after {bytes} bytes, before the recording began", path.display())]
    HeadCut { path: PathBuf, bytes: u64 },
    #[error("{} is not a memspy trace: it looks like {looks_like}", path.display())]
    NotATrace { path: PathBuf, looks_like: &'static str },
    #[error(
        "{} has trace format version {found}; this memspy reads versions up to {supported}: \
         read it with a newer memspy",
        path.display()
    )]
    NewerVersion { path: PathBuf, found: u16, supported: u16 },
    #[error("cannot read {} at byte {offset}: {source}", path.display())]
    Read { path: PathBuf, offset: u64, source: io::Error },
    #[error(
        "{} became shorter while it was read: {bytes} bytes now, {expected} before",
        path.display()
    )]
    Shrunk { path: PathBuf, bytes: u64, expected: u64 },
    #[error("cannot set up the decompressor: {source}")]
    Decompressor { source: io::Error },
    #[error("cannot start a thread that reads the trace: {source}")]
    Thread { source: io::Error },
    #[error("the trace's records could not be taken: {source}")]
    Sink { source: SinkError },
}
