//! The terminal, always restored.

use std::io::{self, BufWriter, Stdout, Write, stdout};
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{execute, queue};
use ratatui::{Frame, Terminal};

/// Room for a picture of 200 × 50, written at once.
const BUFFER: usize = 64 << 10;

type PanicHook = Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

pub(super) struct TerminalScreen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// Set by a panic, which restored the terminal.
    pub(super) lost: Arc<AtomicBool>,
    hook: PanicHook,
}

impl TerminalScreen {
    pub(super) fn enter() -> io::Result<TerminalScreen> {
        enable_raw_mode()?;
        let lost = Arc::new(AtomicBool::new(false));
        // Restore first: a panic's message would vanish with the alternate screen.
        let hook: PanicHook = Arc::from(take_hook());
        let (before, flag) = (Arc::clone(&hook), Arc::clone(&lost));
        set_hook(Box::new(move |panic| {
            flag.store(true, Ordering::Relaxed);
            give_back();
            before(panic);
        }));
        let opened = || -> io::Result<_> {
            // Not Terminal::clear: it asks for the cursor's position; some terminals never answer.
            execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
            let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER, stdout()));
            Terminal::new(backend)
        };
        match opened() {
            Ok(terminal) => Ok(TerminalScreen { terminal, lost, hook }),
            Err(error) => {
                give_back();
                set_hook(Box::new(move |panic| hook(panic)));
                Err(error)
            }
        }
    }

    /// Writes changes only, as one update if the terminal supports it.
    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        self.terminal.draw(picture)?;
        queue!(self.terminal.backend_mut(), EndSynchronizedUpdate)?;
        Write::flush(self.terminal.backend_mut())
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        if !self.lost.load(Ordering::Relaxed) {
            give_back();
        }
        let hook = Arc::clone(&self.hook);
        set_hook(Box::new(move |panic| hook(panic)));
    }
}

fn give_back() {
    let _ = execute!(stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
