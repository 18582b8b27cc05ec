//! What memspy says on standard error: errors always, the rest as the user wants.

use std::cell::RefCell;
use std::io::Write;

use crate::render::visible;

use super::verbosity::{is_quiet, is_verbose, shows_progress};
use super::{live_screen, output};

thread_local! {
    static SUBJECT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What this thread's lines are about.
pub(super) fn set_line_prefix(subject: &str) {
    SUBJECT.with(|of| *of.borrow_mut() = format!("{subject}: "));
}

/// Why something was not done.
pub(super) fn eprint_error(line: &str) {
    print(line);
}

/// A note, a warning, or what was written.
pub(super) fn eprint_line(line: &str) {
    if !is_quiet() {
        print(line);
    }
}

/// What was done of a long work: for someone who waits.
pub(super) fn eprint_progress(line: &str) {
    if shows_progress() || is_verbose() {
        print(line);
    }
}

/// How memspy works, and how long that takes: only with `--verbose`.
pub(super) fn eprint_detail(line: impl FnOnce() -> String) {
    if is_verbose() {
        print(&line());
    }
}

/// Prints an escaped line, wrapped on a narrow terminal. A closed standard error is no failure.
fn print(line: &str) {
    let subject = SUBJECT.with(|of| of.borrow().clone());
    let line = format!("memspy: {}{}\n", visible(&subject), visible(line));
    live_screen::clear();
    let _ = output::errors().write_all(line.as_bytes());
}
