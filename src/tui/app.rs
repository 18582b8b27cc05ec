//! The view from beginning to end: keys and time go in, pictures come out.

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

/// Any error, of those who attach.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// How long the first picture waits for the first records.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(1);
/// What is wanted of the view.
#[derive(Debug, Clone)]
pub struct TopOptions {
    /// The process, for looks at owners.
    pub pid: u32,
    /// Whether it may be stopped for these.
    pub owners: SnapshotOptions,
    /// The device shown first; `None` for the one with the highest peak.
    pub gpu: Option<CudaIndex>,
    /// Between two pictures.
    pub interval: Duration,
    /// Whether file names are shown with their full path.
    pub full_filenames: bool,
    /// Which threads memory is charged to.
    pub choice: ThreadChoice,
    /// What the terminal can show.
    pub palette: Palette,
    /// Name of this machine.
    pub host: String,
}

/// Why the view ended before it was left.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The job could not be attached to.
    #[error(transparent)]
    Attach(BoxError),
    /// The terminal failed.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] io::Error),
    /// A part of memspy failed; what it said is on the terminal.
    #[error(
        "memspy failed while it recorded; what it printed above belongs into a report of the bug"
    )]
    Panicked,
}

/// Shows the job until the user quits or `stop` is set. The terminal is taken once the job is attached to, and given back
/// in any case.
pub fn run(attach: AttachFn, options: &TopOptions, stop: &AtomicBool) -> Result<(), TopError> {
    let recorded = LiveRecording::start(attach, options.choice, options.host.clone())
        .map_err(TopError::Attach)?;
    let mut screen = TerminalScreen::enter()?;
    let keys = keys()?;
    let lost = Arc::clone(&screen.lost);
    // The first records come in a moment: better nothing than a picture without them.
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
    // Before the threads are waited for: the user has the terminal back at once.
    drop(screen);
    if lost.load(Ordering::Relaxed) {
        return Err(TopError::Panicked);
    }
    Ok(shown?)
}

/// One process: its recording, what the user has chosen, and the picture that follows from both.
pub(super) struct OneView {
    recorded: LiveRecording,
    looking: OwnerPoller,
    state: ViewState,
    picture: ViewModel,
    full_filenames: bool,
    palette: Palette,
    /// Whether the picture stood still at the last keys.
    was_frozen: bool,
}

impl OneView {
    /// The view of process `pid`, called `among` where others are shown beside it.
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
            looking: OwnerPoller::at(pid, options.owners),
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

    /// What a table of all processes tells of it.
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
            // A frozen picture has all that may be asked of it.
            self.update_view(self.state.frozen);
        }
        self.was_frozen = self.state.frozen;
    }

    /// Of a look at owners.
    fn poll(&mut self) -> bool {
        self.looking.poll()
    }

    fn key(&mut self, key: KeyEvent) -> KeyAction {
        let asked = self.state.key(key);
        if asked == KeyAction::ReadOwners && self.picture.ended.is_none() {
            self.looking.ask();
        }
        asked
    }

    fn interval(&self) -> Duration {
        self.state.interval
    }

    fn draw(&mut self, screen: &mut TerminalScreen) -> io::Result<()> {
        let owners = self.looking.owners();
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
    // Asked first: what is then in the profile is all that will come.
    let ended = recorded.ended();
    let mut picture = ViewModel::new(&recorded.live(), state, full_filenames, whole);
    if let Some(how) = ended {
        picture.end(how);
    }
    picture
}
