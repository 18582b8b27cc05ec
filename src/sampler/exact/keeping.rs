//! Keeps probes: memspy with another first argument.

use std::ffi::OsStr;
use std::io;

use crate::probe;

/// Lets another process keep the probes, if this program begins with [`is_probe_keeper`].
pub fn allow_keeper() {
    probe::allow_keeper();
}

/// Whether this first argument requires [`keep_probes`].
pub fn is_probe_keeper(word: &OsStr) -> bool {
    word == probe::KEEP_PROBES
}

/// Keeps probes until the recording process has ended, and fails without one.
pub fn keep_probes() -> io::Result<()> {
    probe::keep_probes()
}
