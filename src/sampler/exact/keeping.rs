//! The process that keeps probes: memspy itself, started with another first argument.

use std::ffi::OsStr;
use std::io;

use crate::probe;

/// Lets another process keep the probes of exact recordings. Only for programs that begin with
/// [`is_probe_keeper`].
pub fn allow_keeper() {
    probe::allow_keeper();
}

/// Whether a program with the first argument `word` was started to keep probes and must call
/// [`keep_probes`].
pub fn is_probe_keeper(word: &OsStr) -> bool {
    word == probe::KEEP_PROBES
}

/// Keeps probes until the recording process has ended.
///
/// # Errors
/// No recording process started this one.
pub fn keep_probes() -> io::Result<()> {
    probe::keep_probes()
}
