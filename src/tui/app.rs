//! The live view: keys and time in, pictures out.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::KeyEvent;

use super::draw::draw;
use super::event_loop::{TerminalView, keys, show};
use super::owner_poller::OwnerPoller;
use super::palette::Palette;
use super::ranks::RankFacts;
use super::recording::{AttachFn, LiveRecording};
use super::screen::TerminalScreen;
use super::state::{KeyAction, ViewState};
use super::view_model::ViewModel;
use crate::analysis::ThreadChoice;
use crate::model::CudaIndex;
use crate::sampler::SnapshotOptions;

/// An error of attaching.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Longest wait for the first records.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(1);
/// Options of the view.
#[derive(Debug, Clone)]
pub struct TopOptions {
    /// The process whose owners are read.
    pub pid: u32,
    /// Options of its ownership snapshots.
    pub owners: SnapshotOptions,
    /// The device shown first; `None`: the one with the highest peak.
    pub gpu: Option<CudaIndex>,
    /// Time between pictures.
    pub interval: Duration,
    /// Full paths of files.
    pub full_filenames: bool,
    /// Threads to attribute to.
    pub choice: ThreadChoice,
    /// What the terminal can show.
    pub palette: Palette,
    /// This machine.
    pub host: String,
}

/// Why the view ended early.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TopError {
    #[error(transparent)]
    Attach(BoxError),
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] io::Error),
    #[error("memspy failed while it recorded; put what it printed above into a bug report")]
    Panicked,
}

/// Shows the job until the user quits or `stop` is set.
pub fn run(attach: AttachFn, options: &TopOptions, stop: &AtomicBool) -> Result<(), TopError> {
    let recorded = LiveRecording::start(attach, options.choice, options.host.clone())
        .map_err(TopError::Attach)?;
    let mut screen = TerminalScreen::enter()?;
    let keys = keys()?;
    let lost = Arc::clone(&screen.lost);
    // Wait for the first records: no empty picture.
    let began = Instant::now();
    while recorded.live().profile().ticks() == 0
        && recorded.ended().is_none()
        && began.elapsed() < FIRST_FRAME_TIMEOUT
        && !stop.load(Ordering::Relaxed)
    {
        std::thread::sleep(FIRST_FRAME_TIMEOUT / 100);
    }
    let mut view = OneView::new(recorded, options.pid, None, options);
    let shown = show(&mut view, &mut screen, &keys, stop);
    // Give the terminal back first: threads may end late.
    drop(screen);
    if lost.load(Ordering::Relaxed) {
        return Err(TopError::Panicked);
    }
    Ok(shown?)
}

pub(super) struct OneView {
    recorded: LiveRecording,
    owners: OwnerPoller,
    state: ViewState,
    picture: ViewModel,
    full_filenames: bool,
    palette: Palette,
    was_frozen: bool,
}

impl OneView {
    /// `among` is its name if other processes are shown.
    pub(super) fn new(
        recorded: LiveRecording,
        pid: u32,
        among: Option<String>,
        options: &TopOptions,
    ) -> OneView {
        let mut state = ViewState::new(options.gpu, options.interval);
        state.among = among;
        let picture = picture(&recorded, &mut state, options.full_filenames, false);
        OneView {
            recorded,
            owners: OwnerPoller::at(pid, options.owners),
            state,
            picture,
            full_filenames: options.full_filenames,
            palette: options.palette,
            was_frozen: false,
        }
    }

    fn update_view(&mut self, whole: bool) {
        self.picture = picture(&self.recorded, &mut self.state, self.full_filenames, whole);
    }

    pub(super) fn facts(
        &self,
        who: (usize, Option<u32>, u32),
        full_filenames: bool,
    ) -> Vec<RankFacts> {
        let ended = self.recorded.ended();
        RankFacts::new(&self.recorded.live(), who, full_filenames, ended)
    }
}

impl TerminalView for OneView {
    fn refresh(&mut self) {
        if !self.state.frozen {
            self.update_view(false);
        }
    }

    fn follow_keys(&mut self) {
        if !self.state.frozen || !self.was_frozen {
            // A frozen picture has everything that keys may ask for.
            self.update_view(self.state.frozen);
        }
        self.was_frozen = self.state.frozen;
    }

    fn poll(&mut self) -> bool {
        self.owners.poll()
    }

    fn key(&mut self, key: KeyEvent) -> KeyAction {
        let asked = self.state.key(key);
        if asked == KeyAction::ReadOwners && self.picture.ended.is_none() {
            self.owners.ask();
        }
        asked
    }

    fn interval(&self) -> Duration {
        self.state.interval
    }

    fn draw(&mut self, screen: &mut TerminalScreen) -> io::Result<()> {
        let owners = self.owners.owners();
        let (picture, state, palette) = (&self.picture, &mut self.state, self.palette);
        screen.draw(|frame| draw(frame, picture, &owners, state, palette))
    }
}

fn picture(
    recorded: &LiveRecording,
    state: &mut ViewState,
    full_filenames: bool,
    whole: bool,
) -> ViewModel {
    // Checked first: then the profile is complete.
    let ended = recorded.ended();
    let mut picture = ViewModel::new(&recorded.live(), state, full_filenames, whole);
    if let Some(how) = ended {
        picture.end(how);
    }
    picture
}
