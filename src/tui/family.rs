//! The view of a job of many processes: a table of all, and each by itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::{OneView, Options, TopError};
use super::event_loop::{Shown, keys, show};
use super::ranks::{Overview, RankFacts, draw_ranks, ranks_state};
use super::recording::{Attach, Recorded};
use super::screen::Screen;
use super::state::{Asked, State};
use crate::analysis::ThreadChoice;
use crate::model::Nanos;
use crate::render;

/// Between two looks for further members.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What holds most is looked at so often at most: it goes through all blocks.
const FACTS_EVERY: Duration = Duration::from_millis(500);
/// How long the first picture waits for the first member.
const FIRST: Duration = Duration::from_secs(1);

/// A process that is to be shown.
pub struct Joining {
    /// `RANK` of its environment.
    pub rank: Option<u32>,
    /// Its pid.
    pub pid: u32,
    /// Attaches to it.
    pub attach: Attach,
}

/// Finds those that were not there before; `None` when none will come any more.
pub type Members = Box<dyn FnMut() -> Option<Vec<Joining>> + Send>;

/// A process that is shown.
struct Seated {
    rank: Option<u32>,
    pid: u32,
    /// Its own view, or why there is none.
    view: Result<Box<OneView>, String>,
    facts: Vec<RankFacts>,
    looked: Option<Instant>,
}

/// What the thread that looks for members found.
enum News {
    Joined { rank: Option<u32>, pid: u32, recorded: Result<Recorded, String> },
    Over,
}

/// Where the user is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    All,
    One(usize),
}

/// Shows the members of the family of process `options.pid` until the user quits or `stop` is set.
pub fn run_all(members: Members, options: &Options, stop: &AtomicBool) -> Result<(), TopError> {
    let mut screen = Screen::take()?;
    let keys = keys()?;
    let lost = Arc::clone(&screen.lost);
    let (sender, news) = channel();
    let leave = Arc::new(AtomicBool::new(false));
    let finder = Finder {
        members,
        choice: options.choice,
        host: options.host.clone(),
        leave: Arc::clone(&leave),
        news: sender,
    };
    let thread = std::thread::Builder::new().name("memspy-family".to_owned());
    let thread = thread.spawn(move || finder.run())?;
    let mut all = All {
        options,
        news,
        seats: Vec::new(),
        state: ranks_state(options.interval),
        place: Place::All,
        over: false,
        began: Instant::now(),
        overview: None,
    };
    // Better nothing than a picture without the ranks that are there already.
    if let Ok(first) = all.news.recv_timeout(FIRST) {
        all.take(first);
    }
    let shown = show(&mut all, &mut screen, &keys, stop);
    drop(screen);
    leave.store(true, Ordering::Relaxed);
    // Its only failure is a panic, which has been printed by then.
    let _ = thread.join();
    if lost.load(Ordering::Relaxed) {
        return Err(TopError::Panicked);
    }
    Ok(shown?)
}

struct Finder {
    members: Members,
    choice: ThreadChoice,
    host: String,
    leave: Arc<AtomicBool>,
    news: Sender<News>,
}

impl Finder {
    fn run(mut self) {
        while !self.leave.load(Ordering::Relaxed) {
            let Some(joining) = (self.members)() else {
                let _ = self.news.send(News::Over);
                return;
            };
            for Joining { rank, pid, attach } in joining {
                let recorded = Recorded::start(attach, self.choice, self.host.clone());
                let recorded = recorded
                    .map_err(|error| render::one_line(&format!("cannot be recorded: {error}")));
                if self.news.send(News::Joined { rank, pid, recorded }).is_err() {
                    return;
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

struct All<'a> {
    options: &'a Options,
    news: Receiver<News>,
    seats: Vec<Seated>,
    state: State,
    place: Place,
    /// Whether no further member comes.
    over: bool,
    began: Instant,
    overview: Option<Overview>,
}

impl All<'_> {
    fn take(&mut self, news: News) {
        let News::Joined { rank, pid, recorded } = news else {
            self.over = true;
            return;
        };
        let view = recorded.map(|recorded| {
            let among = rank.map_or_else(|| "no rank".to_owned(), |rank| format!("rank {rank}"));
            Box::new(OneView::new(recorded, pid, Some(among), self.options))
        });
        self.seats.push(Seated { rank, pid, view, facts: Vec::new(), looked: None });
    }

    /// The view of the process shown; `None` while all are.
    fn one(&mut self) -> Option<&mut OneView> {
        match self.place {
            Place::All => None,
            Place::One(index) => self.seats.get_mut(index)?.view.as_deref_mut().ok(),
        }
    }

    /// To the next process that has a view, in the order of ranks, or back to all after the last.
    fn step(&mut self, on: bool) -> Asked {
        let mut order: Vec<usize> =
            (0..self.seats.len()).filter(|index| self.seats[*index].view.is_ok()).collect();
        order.sort_by_key(|index| (self.seats[*index].rank.unwrap_or(u32::MAX), *index));
        let places: Vec<Place> =
            std::iter::once(Place::All).chain(order.into_iter().map(Place::One)).collect();
        let now = places.iter().position(|place| *place == self.place).unwrap_or(0);
        let by = if on { 1 } else { places.len() - 1 };
        self.go(places[(now + by) % places.len()])
    }

    fn go(&mut self, to: Place) -> Asked {
        let has_view = match to {
            Place::All => true,
            Place::One(index) => self.seats.get(index).is_some_and(|seat| seat.view.is_ok()),
        };
        if has_view {
            self.place = to;
            self.refresh();
        }
        Asked::Nothing
    }
}

impl Shown for All<'_> {
    fn news(&mut self) -> bool {
        let mut some = false;
        while let Ok(news) = self.news.try_recv() {
            self.take(news);
            some = true;
        }
        self.one().is_some_and(|view| view.news()) || some
    }

    fn follow_keys(&mut self) {
        match self.one() {
            Some(view) => view.follow_keys(),
            None => self.refresh(),
        }
    }

    fn interval(&self) -> Duration {
        let one = match self.place {
            Place::All => None,
            Place::One(index) => self.seats.get(index).and_then(|seat| seat.view.as_ref().ok()),
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
        for (index, seat) in self.seats.iter_mut().enumerate() {
            if seat.looked.is_some_and(|looked| looked.elapsed() < FACTS_EVERY) {
                continue;
            }
            seat.looked = Some(Instant::now());
            seat.facts = match &seat.view {
                Ok(view) => view.facts((index, seat.rank, seat.pid), full),
                Err(why) => {
                    vec![RankFacts::unknown(index, seat.rank, seat.pid, Some(why.clone()))]
                }
            };
        }
        let ranks: Vec<RankFacts> =
            self.seats.iter().flat_map(|seat| seat.facts.iter().cloned()).collect();
        let ended = self.over && ranks.iter().all(|rank| rank.ended.is_some());
        let elapsed = match &self.overview {
            // What is over stands still.
            Some(before) if before.ended && ended => before.elapsed,
            _ => Nanos(self.began.elapsed().as_nanos() as u64),
        };
        self.overview = Some(Overview { root: self.options.pid, elapsed, ended, ranks });
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        if let Place::One(index) = self.place
            && let Some(Ok(view)) = self.seats.get_mut(index).map(|seat| seat.view.as_mut())
        {
            return view.draw(screen);
        }
        let (overview, state, palette) = (&self.overview, &mut self.state, self.options.palette);
        match overview {
            Some(overview) => screen.draw(|frame| draw_ranks(frame, overview, state, palette)),
            None => Ok(()),
        }
    }

    fn key(&mut self, key: KeyEvent) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
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
            if asked == Asked::Quit && plain && key.code == KeyCode::Esc {
                return self.go(Place::All);
            }
            return asked;
        }
        if plain && !self.state.help {
            match key.code {
                KeyCode::Char(digit @ '0'..='9') => {
                    let rank = digit.to_digit(10);
                    let found = self.seats.iter().position(|seat| seat.rank == rank);
                    return found.map_or(Asked::Nothing, |index| self.go(Place::One(index)));
                }
                KeyCode::Enter => {
                    let chosen = self.overview.as_ref().and_then(|all| all.chosen(&self.state));
                    return chosen.map_or(Asked::Nothing, |index| self.go(Place::One(index)));
                }
                // The lists of one process.
                KeyCode::Char('l' | 's' | 'h' | 'a' | 'g') => return Asked::Nothing,
                _ => {}
            }
        }
        self.state.key(key)
    }
}
