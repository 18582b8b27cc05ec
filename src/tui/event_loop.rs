//! The loop of every view.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyEvent, read};

use super::screen::TerminalScreen;
use super::state::KeyAction;

/// Longest time until the view notices that it must end.
const MAX_DELAY: Duration = Duration::from_millis(100);
/// Drawing takes at most one part in this many of the time.
const SHARE: u32 = 10;

pub(super) trait TerminalView {
    /// Takes new data; returns whether to redraw.
    fn poll(&mut self) -> bool;
    fn refresh(&mut self);
    fn follow_keys(&mut self);
    fn key(&mut self, key: KeyEvent) -> KeyAction;
    fn interval(&self) -> Duration;
    fn draw(&mut self, screen: &mut TerminalScreen) -> io::Result<()>;
}

/// Nobody joins this thread: on a lost terminal the event reader never returns.
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

/// Returns when the user quits, `stop` is set or the screen is lost.
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
            // The shown age grows.
            redraw = true;
            let cost = now.elapsed();
            next = now + view.interval().max(cost * SHARE);
        }
        if redraw {
            view.draw(screen)?;
            redraw = false;
        }
        let wait = next.saturating_duration_since(Instant::now()).min(MAX_DELAY);
        let first = match keys.recv_timeout(wait) {
            Ok(event) => event?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("it can no longer be read"));
            }
        };
        // Take all waiting keys: a held key draws one picture.
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
