//! How much the user wants to be told.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU8, Ordering};

use super::args::ConsoleArgs;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    Quiet,
    Usual,
    Verbose,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Usual as u8);

pub(super) fn set(console: &ConsoleArgs) {
    let verbosity = match (console.quiet, console.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Usual,
    };
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
}

fn is(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) == verbosity as u8
}

pub(super) fn is_quiet() -> bool {
    is(Verbosity::Quiet)
}

pub(super) fn is_verbose() -> bool {
    is(Verbosity::Verbose)
}

/// Whether someone can see progress.
pub(super) fn shows_progress() -> bool {
    io::stderr().is_terminal() && !is_quiet()
}
