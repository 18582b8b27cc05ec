//! Keys and time go in, pictures come out: the loop that every view goes through.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyEvent, read};

use super::screen::TerminalScreen;
use super::state::KeyAction;

/// How long the view may take to notice that it is to end.
const NOTICE: Duration = Duration::from_millis(100);
/// Making pictures takes at most one part in this many of the time.
const SHARE: u32 = 10;

/// What is on the screen.
pub(super) trait TerminalView {
    /// Takes what came in meanwhile; whether it is to be drawn.
    fn poll(&mut self) -> bool;
    /// Another picture, unless it is to stand still.
    fn refresh(&mut self);
    /// The picture that the keys pressed ask for.
    fn follow_keys(&mut self);
    /// Does what a key means.
    fn key(&mut self, key: KeyEvent) -> KeyAction;
    /// Between two pictures.
    fn interval(&self) -> Duration;
    /// Draws the picture there is.
    fn draw(&mut self, screen: &mut TerminalScreen) -> io::Result<()>;
}

/// What is typed. Read on a thread that nobody waits for: of a terminal that is gone the reader of events never returns.
pub(super) fn keys() -> io::Result<Receiver<io::Result<Event>>> {
    let (sender, keys) = channel();
    std::thread::Builder::new().name("memspy-keys".to_owned()).spawn(move || {
        loop {
            let event = read();
            let failed = event.is_err();
            if sender.send(event).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(keys)
}

/// Shows `view` until the user quits, `stop` is set or the screen is lost.
pub(super) fn show(
    view: &mut impl TerminalView,
    screen: &mut TerminalScreen,
    keys: &Receiver<io::Result<Event>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut next = Instant::now();
    let mut redraw = true;
    while !stop.load(Ordering::Relaxed) && !screen.lost.load(Ordering::Relaxed) {
        redraw |= view.poll();
        let now = Instant::now();
        if now >= next {
            view.refresh();
            // The age of what is shown grows in any case.
            redraw = true;
            let cost = now.elapsed();
            next = now + view.interval().max(cost * SHARE);
        }
        if redraw {
            view.draw(screen)?;
            redraw = false;
        }
        let wait = next.saturating_duration_since(Instant::now()).min(NOTICE);
        let first = match keys.recv_timeout(wait) {
            Ok(event) => event?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("it can no longer be read"));
            }
        };
        // All that is there, so that a key held down does not draw a picture each.
        let mut event = Some(first);
        while let Some(now) = event {
            if let Event::Key(key) = now
                && view.key(key) == KeyAction::Quit
            {
                return Ok(());
            }
            event = keys.try_recv().ok().transpose()?;
        }
        view.follow_keys();
        redraw = true;
    }
    Ok(())
}
