//! The process that keeps probes, for the program that starts it: the same program, with another word.

use std::ffi::OsStr;
use std::io;

use crate::probe;

/// Lets exact recordings have their probes kept by another process from now on. Only a program that begins with
/// [`is_probe_keeper`] may say so.
pub fn allow_keeper() {
    probe::allow_keeper();
}

/// Whether a program whose first word is `word` has been started to keep probes: then it is to call [`keep_probes`].
pub fn is_probe_keeper(word: &OsStr) -> bool {
    word == probe::KEEP_PROBES
}

/// Keeps probes until the recording process has ended.
///
/// # Errors
/// It was not a recording process that started this one.
pub fn keep_probes() -> io::Result<()> {
    probe::keep_probes()
}
