//! What is known so far, rewritten in place on a terminal until the answer is complete, and a line
//! that says what memspy is doing. Nothing of it stays on the screen.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use parking_lot::Mutex;

use super::output;
use super::verbosity::is_quiet;
use crate::sampler::Worker;

const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// Before this time, only a whole screen is shown.
const QUIET: Duration = Duration::from_millis(500);
/// After Ctrl-C, the work may end in order for this long.
const GRACE: Duration = Duration::from_millis(500);

/// What is on the terminal now; anything else is printed above it, see [`clear`].
static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);

struct Shown {
    rows: usize,
    on_errors: bool,
}

/// Where it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The answer goes to this terminal, too.
    Output,
    /// Only the progress line: the answer goes elsewhere.
    Errors,
    Nowhere,
}

/// What the screen shows of some work.
pub(super) trait Watched {
    /// The text so far, in lines no wider than the terminal (columns, rows); `None` where nothing
    /// was added.
    fn lines(&mut self, size: (usize, usize)) -> Option<Vec<String>>;

    /// The present phase: "reading owners".
    fn doing(&self) -> String;
}

/// Does `work` on a thread and shows its progress. Returns `false` if `until` came first, or
/// Ctrl-C and then some time: the work goes on, but what it has by now is all.
pub(super) fn watch(
    work: impl FnOnce() -> Result<()> + Send + 'static,
    watched: &mut dyn Watched,
    (began, until): (Instant, Option<Instant>),
    is_json: bool,
    stop: &AtomicBool,
) -> Result<bool> {
    let (done, is_done) = channel();
    let thread = Worker::spawn("observer", move |_| {
        let _ = done.send(work());
    })?;
    let place = place(is_json);
    let mut stopped = None;
    let mut lines = Vec::new();
    let result = loop {
        match is_done.recv_timeout(FRAME_INTERVAL) {
            Ok(result) => break result.map(|()| true),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(anyhow!("the observation ended unexpectedly"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            stopped = stopped.or(Some(Instant::now() + GRACE));
        }
        if [until, stopped].into_iter().flatten().any(|end| Instant::now() >= end) {
            break Ok(false);
        }
        show(place, watched, &mut lines, began);
    };
    clear();
    match &result {
        // Its thread may wait for the kernel.
        Ok(false) => thread.leave(),
        _ => drop(thread),
    }
    result
}

fn place(is_json: bool) -> Place {
    let is_dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    match (io::stdout().is_terminal() && !is_json, io::stderr().is_terminal()) {
        _ if is_dumb || is_quiet() => Place::Nowhere,
        (true, _) => Place::Output,
        (false, true) => Place::Errors,
        (false, false) => Place::Nowhere,
    }
}

fn show(place: Place, watched: &mut dyn Watched, lines: &mut Vec<String>, began: Instant) {
    let size = match place {
        Place::Output => output::size_of(io::stdout()),
        Place::Errors => output::size_of(io::stderr()).map(|(width, _)| (width, 1)),
        Place::Nowhere => None,
    };
    let Some((width, height)) = size else { return };
    if place == Place::Output
        && let Some(newer) = watched.lines((width, height))
    {
        *lines = newer;
    }
    // More rows would scroll away, and could not be rewritten. The command stays above them.
    let room = height.saturating_sub(3);
    let has_text = room > 0 && !lines.is_empty();
    if !has_text && began.elapsed() < QUIET {
        return;
    }
    let seconds = began.elapsed().as_secs_f64();
    let progress: String =
        format!("{}, {seconds:.1} s…", watched.doing()).chars().take(width.max(4) - 4).collect();
    let mut shown = SHOWN.lock();
    let mut frame = to_top(shown.as_ref());
    let text = lines.iter().take(room);
    let rows = text.len() + 1;
    for line in text {
        // Cleared first: after a full line the cursor stands on its last character.
        frame.push_str(&format!("\x1b[2K{line}\n"));
    }
    frame.push_str(&format!("\x1b[2K{progress}\x1b[J"));
    *shown = Some(Shown { rows, on_errors: place == Place::Errors });
    write(&frame, place == Place::Errors);
}

/// Takes what is shown off the screen, so that something else can be printed.
pub(super) fn clear() {
    let mut shown = SHOWN.lock();
    if let Some(old) = shown.take() {
        // Row by row: some terminals keep a screen that is cleared as a whole for scrolling back.
        let rows = vec!["\x1b[2K"; old.rows].join("\n");
        let top = to_top(Some(&old));
        write(&format!("{top}{rows}{top}"), old.on_errors);
    }
}

fn to_top(shown: Option<&Shown>) -> String {
    match shown {
        Some(Shown { rows, .. }) if *rows > 1 => format!("\r\x1b[{}A", rows - 1),
        _ => "\r".to_owned(),
    }
}

/// At once, so that nothing flickers. A closed terminal is no failure.
fn write(frame: &str, on_errors: bool) {
    let _ = match on_errors {
        true => io::stderr().lock().write_all(frame.as_bytes()),
        false => {
            let mut out = io::stdout().lock();
            out.write_all(frame.as_bytes()).and_then(|()| out.flush())
        }
    };
}
