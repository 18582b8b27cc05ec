//! The user's choices, and keys that change them.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::table::SortOrder;
use crate::model::CudaIndex;
use rustc_hash::FxHashMap;

/// A kind of list: lines of code, Python stacks, owners of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ListView {
    Lines,
    Stacks,
    Owners,
}

impl ListView {
    /// All of them.
    pub const ALL: [ListView; 3] = [ListView::Lines, ListView::Stacks, ListView::Owners];
}

/// A key's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    /// At most a redraw.
    Nothing,
    /// To end.
    Quit,
    /// To read the owners.
    ReadOwners,
}

/// In milliseconds.
const INTERVALS: [u64; 8] = [100, 250, 500, 1000, 2000, 5000, 10_000, 30_000];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetailWindow {
    Closed,
    /// For the row chosen in the next picture.
    Opening,
    /// The row with this key, wherever it is listed.
    Of(u64),
}

/// The user's choices.
#[derive(Debug, Clone)]
pub struct ViewState {
    /// The kind of list.
    pub view: ListView,
    /// Own rows for lines of libraries.
    pub all_lines: bool,
    /// The requested device; `None`: the one with the highest peak.
    pub gpu: Option<CudaIndex>,
    /// The process's name, if there are others.
    pub among: Option<String>,
    /// The picture is frozen.
    pub frozen: bool,
    /// Time between pictures.
    pub interval: Duration,
    pub(super) help: bool,
    pub(super) detail: DetailWindow,
    pub(super) scroll: usize,
    pub(super) sort: [SortOrder; 3],
    /// By view: the bytes of rows by key when the user set a mark.
    pub(super) marks: [Option<FxHashMap<u64, u64>>; 3],
    /// The next picture sets a mark.
    pub(super) is_marking: bool,
    /// By view: the chosen row and the first one shown.
    pub(super) chosen: [usize; 3],
    pub(super) first: [usize; 3],
    /// Of the last picture: rows, rows that fit, columns of numbers, devices.
    pub(super) rows: usize,
    pub(super) fitting: usize,
    pub(super) columns: usize,
    pub(super) gpus: Vec<CudaIndex>,
    pub(super) shown: Option<CudaIndex>,
}

impl ViewState {
    /// The initial choices.
    pub fn new(gpu: Option<CudaIndex>, interval: Duration) -> ViewState {
        ViewState {
            view: ListView::Lines,
            all_lines: false,
            gpu,
            among: None,
            frozen: false,
            interval,
            help: false,
            detail: DetailWindow::Closed,
            scroll: 0,
            sort: [SortOrder { column: 0, reversed: false }; 3],
            marks: [None, None, None],
            is_marking: false,
            chosen: [0; 3],
            first: [0; 3],
            rows: 0,
            fitting: 0,
            columns: 0,
            gpus: Vec::new(),
            shown: None,
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => KeyAction::Quit,
                _ => KeyAction::Nothing,
            };
        }
        let is_detailed = self.detail != DetailWindow::Closed;
        if (self.help || is_detailed) && self.scroll_window(key.code) {
            return KeyAction::Nothing;
        }
        // Any key closes the help; keys that change the list close a row's window.
        if std::mem::take(&mut self.help) {
            return if key.code == KeyCode::Char('q') {
                KeyAction::Quit
            } else {
                KeyAction::Nothing
            };
        }
        if is_detailed && matches!(key.code, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q')) {
            self.detail = DetailWindow::Closed;
            return KeyAction::Nothing;
        }
        if matches!(key.code, KeyCode::Char('l' | 's' | 'h' | 'a' | 'g')) {
            self.detail = DetailWindow::Closed;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('l') => self.view = ListView::Lines,
            KeyCode::Char('s') => self.view = ListView::Stacks,
            KeyCode::Char('h') => {
                self.view = ListView::Owners;
                return KeyAction::ReadOwners;
            }
            KeyCode::Char('m') => self.is_marking = true,
            KeyCode::Char('a') => self.all_lines = !self.all_lines,
            KeyCode::Char('g') => self.next_gpu(),
            KeyCode::Char(' ' | 'p') => self.frozen = !self.frozen,
            KeyCode::Char('?') | KeyCode::F(1) => (self.help, self.scroll) = (true, 0),
            KeyCode::Char('+' | '=') => self.interval = next(self.interval),
            KeyCode::Char('-') => self.interval = previous(self.interval),
            KeyCode::Enter if self.rows > 0 => {
                (self.detail, self.scroll) = (DetailWindow::Opening, 0)
            }
            code => {
                self.sort_by(code);
                self.choose_row(code);
            }
        }
        KeyAction::Nothing
    }

    fn sort_by(&mut self, code: KeyCode) {
        let sort = &mut self.sort[self.view as usize];
        match code {
            KeyCode::Char('r') => sort.reversed = !sort.reversed,
            KeyCode::Char('<' | ',') | KeyCode::Left => {
                sort.column = sort.column.saturating_sub(1);
            }
            KeyCode::Char('>' | '.') | KeyCode::Right => {
                sort.column = (sort.column + 1).min(self.columns);
            }
            KeyCode::Char(digit @ '1'..='9') => {
                let column = digit as usize - '1' as usize;
                if column <= self.columns {
                    sort.reversed = sort.column == column && !sort.reversed;
                    sort.column = column;
                }
            }
            _ => {}
        }
    }

    fn choose_row(&mut self, code: KeyCode) {
        let last = self.rows.saturating_sub(1);
        let page = self.fitting.saturating_sub(1).max(1);
        let row = &mut self.chosen[self.view as usize];
        let chosen = (*row).min(last);
        match code {
            KeyCode::Up | KeyCode::Char('k') => *row = chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *row = (chosen + 1).min(last),
            KeyCode::PageUp => *row = chosen.saturating_sub(page),
            KeyCode::PageDown => *row = (chosen + page).min(last),
            KeyCode::Home => *row = 0,
            KeyCode::End => *row = last,
            _ => {}
        }
    }

    /// Returns whether the key scrolls.
    fn scroll_window(&mut self, code: KeyCode) -> bool {
        let page = self.fitting.max(2) - 1;
        self.scroll = match code {
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll + page,
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX / 2,
            _ => return false,
        };
        true
    }

    fn next_gpu(&mut self) {
        let at = self.gpus.iter().position(|gpu| Some(*gpu) == self.shown);
        let next = at.and_then(|at| self.gpus.get(at + 1)).or(self.gpus.first());
        if let Some(next) = next {
            self.gpu = Some(*next);
            self.shown = self.gpu;
        }
    }

    pub(super) fn clamp_selection(&mut self, rows: usize, fitting: usize) -> (usize, usize) {
        (self.rows, self.fitting) = (rows, fitting);
        let view = self.view as usize;
        let chosen = self.chosen[view].min(rows.saturating_sub(1));
        let first = self.first[view].min(rows.saturating_sub(fitting));
        let lowest = (chosen + 1).saturating_sub(fitting);
        let first = first.clamp(lowest, chosen.max(lowest));
        (self.chosen[view], self.first[view]) = (chosen, first);
        (chosen, first)
    }
}

fn next(interval: Duration) -> Duration {
    let now = interval.as_millis() as u64;
    let longer = INTERVALS.into_iter().find(|other| *other > now);
    longer.map_or(interval, Duration::from_millis)
}

fn previous(interval: Duration) -> Duration {
    let now = interval.as_millis() as u64;
    let shorter = INTERVALS.into_iter().rev().find(|other| *other < now);
    shorter.map_or(interval, Duration::from_millis)
}
