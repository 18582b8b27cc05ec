//! All ranks in one table.

use std::borrow::Cow;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::draw::{DrawMode, bottom, first_line, key_words, split_top, window};
use super::list::{cut, list};
use super::palette::Palette;
use super::state::ViewState;
use super::table::{RowName, SortOrder, TableCell, TableColumn, TableRow, ViewTable, short_size};
use super::view_model::name;
use crate::analysis::{LiveProfile, OutsideTorch, StackLabel};
use crate::model::{CudaIndex, Nanos};
use crate::render::{self, FrameLabels};

const RANK: TableColumn = TableColumn { name: "RANK", width: 5 };
const PID: TableColumn = TableColumn { name: "PID", width: 8 };
const GPU: TableColumn = TableColumn { name: "GPU", width: 4 };
const ALLOC: TableColumn = TableColumn { name: "ALLOC", width: 11 };
const CACHED: TableColumn = TableColumn { name: "CACHED", width: 11 };
const OUTSIDE: TableColumn = TableColumn { name: "OUTSIDE", width: 11 };
const PEAK: TableColumn = TableColumn { name: "PEAK", width: 11 };
const MIN_NAME_WIDTH: u16 = 10;

const HELP: &[&str] = &[
    "One row for each process that uses CUDA, and each of its GPUs.",
    "0 1 ..  the rank of that number    Enter  the row chosen",
    "Tab     from rank to rank, and back here; Esc here from a rank",
    "< >     sort by a column, r  reversed",
    "arrows, PgUp, PgDn, Home, End, j, k  move",
    "space or p  freeze the picture; the recordings go on",
    "+ -  longer or shorter between two pictures",
    "q, Esc, Ctrl-C  quit: the job is left as it was",
    "",
    "ALLOC    allocated now      CACHED  in PyTorch's cache, free",
    "OUTSIDE  outside PyTorch    PEAK    most that was allocated",
    "MOST IN  the program's line with most that is live now",
    "Grey: ended, with its last figures. -: unknown.",
];

/// A rank's memory on one device; sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RankFacts {
    /// Its index among the processes.
    pub index: usize,
    /// `RANK` in its environment.
    pub rank: Option<u32>,
    /// Its pid.
    pub pid: u32,
    /// The device's number there; `None`: it has none yet.
    pub gpu: Option<CudaIndex>,
    allocated: Option<u64>,
    cached: Option<u64>,
    outside: Option<u64>,
    peak: Option<u64>,
    most: RowName,
    /// How recording ended, if it did.
    pub ended: Option<String>,
}

impl RankFacts {
    /// The facts of a process without a view.
    pub fn unknown(index: usize, rank: Option<u32>, pid: u32, ended: Option<String>) -> RankFacts {
        let text = ended.clone().unwrap_or_else(|| "no memory of PyTorch on a GPU yet".to_owned());
        RankFacts {
            index,
            rank,
            pid,
            gpu: None,
            allocated: None,
            cached: None,
            outside: None,
            peak: None,
            most: RowName { text: render::one_line(&text), ..RowName::default() },
            ended,
        }
    }

    /// A row for each device with present or past PyTorch memory.
    pub fn new(
        live: &LiveProfile,
        (index, rank, pid): (usize, Option<u32>, u32),
        full_filenames: bool,
        ended: Option<String>,
    ) -> Vec<RankFacts> {
        // The allocator has counters for every visible GPU, used or not.
        let is_used = |gpu: &CudaIndex| live.marks(*gpu).is_some_and(|marks| marks.reserved > 0);
        let used: Vec<CudaIndex> = live.gpus().into_iter().filter(is_used).collect();
        let devices = live.devices();
        let mut facts: Vec<RankFacts> = devices
            .iter()
            .filter_map(|device| {
                Some((device, device.cuda_index.filter(|gpu| used.contains(gpu))?))
            })
            .map(|(device, gpu)| RankFacts {
                gpu: Some(gpu),
                allocated: device.allocated,
                cached: device.cached,
                outside: match device.outside {
                    OutsideTorch::Bytes(bytes) => Some(bytes),
                    OutsideTorch::Unknown(_) => None,
                },
                peak: live.marks(gpu).map(|marks| marks.allocated.max(0) as u64),
                most: largest_line(live, gpu, full_filenames),
                ..RankFacts::unknown(index, rank, pid, ended.clone())
            })
            .collect();
        if facts.is_empty() {
            facts.push(RankFacts::unknown(index, rank, pid, ended));
        }
        facts
    }

    fn row(&self) -> TableRow {
        let bytes = |bytes: Option<u64>| bytes.map_or(TableCell::Unknown, TableCell::Bytes);
        let number = |number: Option<u64>| number.map_or(TableCell::Unknown, TableCell::Number);
        let mut name = self.most.clone();
        if self.ended.is_some() && self.gpu.is_some() {
            name.text = format!("ended; {}", name.text);
        }
        TableRow {
            cells: vec![
                number(self.rank.map(u64::from)),
                number(Some(u64::from(self.pid))),
                number(self.gpu.map(|gpu| u64::from(gpu.0))),
                bytes(self.allocated),
                bytes(self.cached),
                bytes(self.outside),
                bytes(self.peak),
            ],
            name,
            key: self.index as u64,
            is_dim: self.ended.is_some(),
            ..TableRow::default()
        }
    }
}

fn largest_line(live: &LiveProfile, gpu: CudaIndex, full_filenames: bool) -> RowName {
    let labels = FrameLabels::new(live.profile(), full_filenames);
    let unknown = |text: &str| RowName { text: text.to_owned(), ..RowName::default() };
    let Ok(lines) = live.program_lines(gpu) else { return unknown("-") };
    // Unattributed memory has no line.
    let made = lines.rows.iter().filter(|line| matches!(line.place, StackLabel::Frame(_)));
    match made.max_by_key(|line| line.own).filter(|line| line.own > 0) {
        Some(line) => {
            let mut name = name(line.place, labels);
            name.text = format!("{} {}", short_size(line.own), name.text);
            name
        }
        None if lines.allocated > 0 => unknown("[before recording]"),
        None => unknown("-"),
    }
}

/// All ranks.
#[derive(Debug, Clone)]
pub struct RanksOverview {
    /// The process whose descendants are shown.
    pub root: u32,
    /// Time since the view began.
    pub elapsed: Nanos,
    /// The job is over.
    pub ended: bool,
    /// Each rank's memory.
    pub ranks: Vec<RankFacts>,
}

impl RanksOverview {
    fn table(&self) -> Result<Cow<'_, ViewTable>, String> {
        if self.ranks.is_empty() {
            return Err(match self.ended {
                true => {
                    format!("process {} and its descendants ended without using CUDA", self.root)
                }
                false => {
                    format!("no process among {} and its descendants uses CUDA yet", self.root)
                }
            });
        }
        Ok(Cow::Owned(ViewTable {
            title: self.balance(),
            certainty: None,
            columns: vec![RANK, PID, GPU, ALLOC, CACHED, OUTSIDE, PEAK],
            names: "MOST IN",
            min_name_width: MIN_NAME_WIDTH,
            rows: self.ranks.iter().map(RankFacts::row).collect(),
        }))
    }

    fn balance(&self) -> String {
        let running = || self.ranks.iter().filter(|rank| rank.ended.is_none());
        let known = || running().filter_map(|rank| Some((rank.allocated?, rank)));
        let who = |(bytes, rank): (u64, &RankFacts)| {
            let of = match rank.rank {
                Some(rank) => format!("rank {rank}"),
                None => format!("process {}", rank.pid),
            };
            format!("{} ({of})", short_size(bytes))
        };
        let sum: u64 = known().map(|(bytes, _)| bytes).sum();
        let most = known().rev().max_by_key(|(bytes, _)| *bytes).map(who);
        let least = known().min_by_key(|(bytes, _)| *bytes).map(who);
        match (most, least) {
            (Some(most), Some(least)) => {
                format!("Allocated: {} in all, most {most}, least {least}", short_size(sum))
            }
            _ => "Nothing is allocated by a process that runs".to_owned(),
        }
    }

    /// The chosen row's process.
    pub fn chosen(&self, state: &ViewState) -> Option<usize> {
        let table = self.table().ok()?;
        let view = state.view as usize;
        let rows = table.sorted(state.sort[view]);
        rows.get(state.chosen[view]).map(|row| row.key as usize)
    }
}

/// The first state: sorted by rank.
pub fn ranks_state(interval: std::time::Duration) -> ViewState {
    let mut state = ViewState::new(None, interval);
    state.sort = [SortOrder { column: 0, reversed: true }; 3];
    state
}

/// Draws `overview`.
pub fn draw_ranks(
    frame: &mut Frame<'_>,
    overview: &RanksOverview,
    state: &mut ViewState,
    palette: Palette,
) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.is_empty() {
        return;
    }
    let mut rest = area;
    head(
        buffer,
        split_top(&mut rest, if area.height >= 12 { 2 } else { 1 }),
        overview,
        state,
        palette,
    );
    let footer = bottom(&mut rest, u16::from(area.height >= 6));
    list(buffer, rest, &overview.table(), state, palette);
    if footer.height > 0 {
        let interval = format!("{} s", state.interval.as_secs_f64());
        let words = [
            ("q", "quit"),
            ("?", "help"),
            ("0-9", "rank"),
            ("Tab", "next"),
            ("<>", "sort"),
            ("r", "reverse"),
            ("spc", "freeze"),
            ("+-", &*interval),
        ];
        key_words(buffer, footer, &words, |_| false);
    }
    if state.help {
        let text: Vec<String> = HELP.iter().map(|line| (*line).to_owned()).collect();
        state.scroll = window(buffer, area, palette, "memspy top", &text, state.scroll);
    }
}

fn head(
    buffer: &mut Buffer,
    area: Rect,
    overview: &RanksOverview,
    state: &ViewState,
    palette: Palette,
) {
    let left = format!("memspy top  ranks of pid {}", overview.root);
    let how = DrawMode::new(overview.ended, state);
    first_line(buffer, area, &left, (how, overview.elapsed), palette);
    if area.height < 2 {
        return;
    }
    let mut pids: Vec<(u32, bool)> =
        overview.ranks.iter().map(|rank| (rank.pid, rank.ended.is_some())).collect();
    pids.dedup();
    let gone = pids.iter().filter(|(_, ended)| *ended).count();
    let uses = match pids.len() - gone {
        1 => "1 process uses CUDA".to_owned(),
        n => format!("{n} processes use CUDA"),
    };
    let text = match gone {
        0 => uses,
        1 => format!("{uses}, 1 has ended"),
        n => format!("{uses}, {n} have ended"),
    };
    buffer.set_string(area.x, area.y + 1, cut(&text, area.width as usize, palette), Style::new());
}
