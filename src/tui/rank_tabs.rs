//! A job with many processes: a table, and a view of each.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::{OneView, TopError, TopOptions};
use super::event_loop::{TerminalView, keys, show};
use super::ranks::{RankFacts, RanksOverview, draw_ranks, ranks_state};
use super::recording::{AttachFn, LiveRecording};
use super::screen::TerminalScreen;
use super::state::{KeyAction, ViewState};
use crate::analysis::ThreadChoice;
use crate::model::Nanos;
use crate::render;
use crate::sampler::{StopSignal, Worker};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Between updates of the largest owners, which visit all blocks.
const FACTS_INTERVAL: Duration = Duration::from_millis(500);
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// A new process to show.
pub struct NewRank {
    /// `RANK` in its environment.
    pub rank: Option<u32>,
    /// Its pid.
    pub pid: u32,
    /// Attaches to it.
    pub attach: AttachFn,
}

/// Finds new processes; `None`: no more will come.
pub type FindRanks = Box<dyn FnMut() -> Option<Vec<NewRank>> + Send>;

struct RankTab {
    rank: Option<u32>,
    pid: u32,
    /// Its view, or why it has none.
    view: Result<Box<OneView>, String>,
    facts: Vec<RankFacts>,
    updated: Option<Instant>,
}

enum FinderEvent {
    Joined { rank: Option<u32>, pid: u32, recorded: Result<LiveRecording, String> },
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TabSelection {
    All,
    One(usize),
}

/// Shows `options.pid` and its family.
pub fn run_all(
    members: FindRanks,
    options: &TopOptions,
    stop: &AtomicBool,
) -> Result<(), TopError> {
    let mut screen = TerminalScreen::enter()?;
    let keys = keys()?;
    let lost = Arc::clone(&screen.lost);
    let (sender, news) = channel();
    let finder =
        RankFinder { members, choice: options.choice, host: options.host.clone(), news: sender };
    let thread = Worker::spawn("ranks", move |stop| finder.run(stop))?;
    let mut all = RankTabs {
        options,
        news,
        tabs: Vec::new(),
        state: ranks_state(options.interval),
        place: TabSelection::All,
        over: false,
        began: Instant::now(),
        overview: None,
    };
    // Wait for existing ranks: no empty picture.
    if let Ok(first) = all.news.recv_timeout(FIRST_FRAME_TIMEOUT) {
        all.on_finder_event(first);
    }
    let shown = show(&mut all, &mut screen, &keys, stop);
    drop(screen);
    drop(thread);
    if lost.load(Ordering::Relaxed) {
        return Err(TopError::Panicked);
    }
    Ok(shown?)
}

struct RankFinder {
    members: FindRanks,
    choice: ThreadChoice,
    host: String,
    news: Sender<FinderEvent>,
}

impl RankFinder {
    fn run(mut self, stop: &StopSignal) {
        while !stop.is_set() {
            let Some(joining) = (self.members)() else {
                let _ = self.news.send(FinderEvent::Over);
                return;
            };
            for NewRank { rank, pid, attach } in joining {
                let recorded = LiveRecording::start(attach, self.choice, self.host.clone());
                let recorded = recorded
                    .map_err(|error| render::one_line(&format!("cannot be recorded: {error}")));
                if self.news.send(FinderEvent::Joined { rank, pid, recorded }).is_err() {
                    return;
                }
            }
            stop.sleep(POLL_INTERVAL);
        }
    }
}

struct RankTabs<'a> {
    options: &'a TopOptions,
    news: Receiver<FinderEvent>,
    tabs: Vec<RankTab>,
    state: ViewState,
    place: TabSelection,
    over: bool,
    began: Instant,
    overview: Option<RanksOverview>,
}

impl RankTabs<'_> {
    fn on_finder_event(&mut self, news: FinderEvent) {
        let FinderEvent::Joined { rank, pid, recorded } = news else {
            self.over = true;
            return;
        };
        let view = recorded.map(|recorded| {
            let among = rank.map_or_else(|| "no rank".to_owned(), |rank| format!("rank {rank}"));
            Box::new(OneView::new(recorded, pid, Some(among), self.options))
        });
        self.tabs.push(RankTab { rank, pid, view, facts: Vec::new(), updated: None });
    }

    /// `None` in the table of all.
    fn one(&mut self) -> Option<&mut OneView> {
        match self.place {
            TabSelection::All => None,
            TabSelection::One(index) => self.tabs.get_mut(index)?.view.as_deref_mut().ok(),
        }
    }

    /// Goes to the next process with a view, by rank, and from the last to all.
    fn step(&mut self, on: bool) -> KeyAction {
        let mut order: Vec<usize> =
            (0..self.tabs.len()).filter(|index| self.tabs[*index].view.is_ok()).collect();
        order.sort_by_key(|index| (self.tabs[*index].rank.unwrap_or(u32::MAX), *index));
        let places: Vec<TabSelection> = std::iter::once(TabSelection::All)
            .chain(order.into_iter().map(TabSelection::One))
            .collect();
        let now = places.iter().position(|place| *place == self.place).unwrap_or(0);
        let by = if on { 1 } else { places.len() - 1 };
        self.select(places[(now + by) % places.len()])
    }

    fn select(&mut self, to: TabSelection) -> KeyAction {
        let has_view = match to {
            TabSelection::All => true,
            TabSelection::One(index) => self.tabs.get(index).is_some_and(|tab| tab.view.is_ok()),
        };
        if has_view {
            self.place = to;
            self.refresh();
        }
        KeyAction::Nothing
    }
}

impl TerminalView for RankTabs<'_> {
    fn poll(&mut self) -> bool {
        let mut some = false;
        while let Ok(news) = self.news.try_recv() {
            self.on_finder_event(news);
            some = true;
        }
        self.one().is_some_and(|view| view.poll()) || some
    }

    fn follow_keys(&mut self) {
        match self.one() {
            Some(view) => view.follow_keys(),
            None => self.refresh(),
        }
    }

    fn interval(&self) -> Duration {
        let one = match self.place {
            TabSelection::All => None,
            TabSelection::One(index) => self.tabs.get(index).and_then(|tab| tab.view.as_ref().ok()),
        };
        one.map_or(self.state.interval, |view| view.interval())
    }

    fn refresh(&mut self) {
        if let Some(view) = self.one() {
            view.refresh();
            return;
        }
        if self.state.frozen && self.overview.is_some() {
            return;
        }
        let full = self.options.full_filenames;
        for (index, tab) in self.tabs.iter_mut().enumerate() {
            if tab.updated.is_some_and(|updated| updated.elapsed() < FACTS_INTERVAL) {
                continue;
            }
            tab.updated = Some(Instant::now());
            tab.facts = match &tab.view {
                Ok(view) => view.facts((index, tab.rank, tab.pid), full),
                Err(why) => {
                    vec![RankFacts::unknown(index, tab.rank, tab.pid, Some(why.clone()))]
                }
            };
        }
        let ranks: Vec<RankFacts> =
            self.tabs.iter().flat_map(|tab| tab.facts.iter().cloned()).collect();
        let ended = self.over && ranks.iter().all(|rank| rank.ended.is_some());
        let elapsed = match &self.overview {
            // An ended view keeps its time.
            Some(before) if before.ended && ended => before.elapsed,
            _ => Nanos(self.began.elapsed().as_nanos() as u64),
        };
        self.overview = Some(RanksOverview { root: self.options.pid, elapsed, ended, ranks });
    }

    fn draw(&mut self, screen: &mut TerminalScreen) -> io::Result<()> {
        if let TabSelection::One(index) = self.place
            && let Some(Ok(view)) = self.tabs.get_mut(index).map(|tab| tab.view.as_mut())
        {
            return view.draw(screen);
        }
        let (overview, state, palette) = (&self.overview, &mut self.state, self.options.palette);
        match overview {
            Some(overview) => screen.draw(|frame| draw_ranks(frame, overview, state, palette)),
            None => Ok(()),
        }
    }

    fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Nothing;
        }
        let plain = !key.modifiers.contains(KeyModifiers::CONTROL);
        if plain && !self.state.help {
            match key.code {
                KeyCode::Tab => return self.step(true),
                KeyCode::BackTab => return self.step(false),
                _ => {}
            }
        }
        if let Some(view) = self.one() {
            let asked = view.key(key);
            if asked == KeyAction::Quit && plain && key.code == KeyCode::Esc {
                return self.select(TabSelection::All);
            }
            return asked;
        }
        if plain && !self.state.help {
            match key.code {
                KeyCode::Char(digit @ '0'..='9') => {
                    let rank = digit.to_digit(10);
                    let found = self.tabs.iter().position(|tab| tab.rank == rank);
                    return found
                        .map_or(KeyAction::Nothing, |index| self.select(TabSelection::One(index)));
                }
                KeyCode::Enter => {
                    let chosen = self.overview.as_ref().and_then(|all| all.chosen(&self.state));
                    return chosen
                        .map_or(KeyAction::Nothing, |index| self.select(TabSelection::One(index)));
                }
                // These keys are for the lists of one process.
                KeyCode::Char('l' | 's' | 'h' | 'a' | 'g') => return KeyAction::Nothing,
                _ => {}
            }
        }
        self.state.key(key)
    }
}
