//! Draws a picture of any size, important parts first.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Widget};

use super::list::{cut, list};
use super::palette::Palette;
use super::state::{DetailWindow, ListView, ViewState};
use super::table::ViewTable;
use super::view_model::{OwnersView, ViewModel};
use super::{bars, chart};
use crate::model::Nanos;
use crate::render;

const HELP: &[&str] = &[
    "l  by line of code        s  by Python stack",
    "h  by owner: reads the tensors repeatedly; the job",
    "   is stopped each time; the title says for how long",
    "a  all lines, or the program's own, with library code they call",
    "g  next GPU               Enter  the chosen row in full",
    "1 2 ..  < >  sort by a column, r or the same digit again: reversed",
    "arrows, PgUp, PgDn, Home, End, j, k  move, in windows like this too",
    "space or p  freeze the picture   m  mark: shows changes since",
    "+ -  longer or shorter between two pictures",
    "q, Esc, Ctrl-C  quit: the job is left as it was",
    "",
    "OWN        live now: allocated by this line (or by library code)",
    "TOTAL      live now: allocated while the line was on the stack",
    "AT PEAK    the same when the recorded peak was reached",
    "LINE PEAK  allocated in total while the line was on a stack;",
    "           ~ at least. Sizes are in binary units.",
];

/// Draws `picture` as `state` says.
pub fn draw(
    frame: &mut Frame<'_>,
    picture: &ViewModel,
    owners: &OwnersView,
    state: &mut ViewState,
    palette: Palette,
) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.is_empty() {
        return;
    }
    if area.width < 10 || area.height < 2 {
        buffer.set_string(
            area.x,
            area.y,
            cut("memspy", area.width as usize, palette),
            Style::new(),
        );
        return;
    }
    let mut rest = area;
    head(
        buffer,
        split_top(&mut rest, if area.height >= 12 { 2 } else { 1 }),
        picture,
        state,
        palette,
    );
    let footer = bottom(&mut rest, u16::from(area.height >= 6));
    let status = bottom(&mut rest, u16::from(area.height >= 8));
    devices(buffer, &mut rest, area, picture, state, palette);
    if let Some(gpu) = picture.gpu(state.shown).filter(|gpu| !gpu.recent.is_empty()) {
        let height = if rest.height >= 13 { (rest.height * 3 / 8).clamp(5, 14) } else { 0 };
        let area = split_top(&mut rest, height);
        chart::chart(buffer, area, gpu, picture.head.elapsed, palette);
    }
    let table = picture.table(state, owners);
    list(buffer, rest, &table, state, palette);
    notes(buffer, status, picture, state, palette);
    keys(buffer, footer, state);
    if state.help {
        let text: Vec<String> = HELP.iter().map(|line| (*line).to_owned()).collect();
        state.scroll = window(buffer, area, palette, "memspy top", &text, state.scroll);
    } else if let Ok(table) = &table {
        detail(buffer, area, palette, table, state);
    }
}

fn detail(
    buffer: &mut Buffer,
    area: Rect,
    palette: Palette,
    table: &ViewTable,
    state: &mut ViewState,
) {
    let view = state.view as usize;
    if state.detail == DetailWindow::Opening
        && let Some(row) = table.sorted(state.sort[view]).get(state.chosen[view])
    {
        state.detail = DetailWindow::Of(row.key);
    }
    let DetailWindow::Of(key) = state.detail else { return };
    let row = table.rows.iter().find(|row| row.key == key);
    let gone = ["not listed any more".to_owned()];
    let text = row.map_or(&gone[..], |row| &row.detail);
    state.scroll = window(buffer, area, palette, "Esc closes", text, state.scroll);
}

pub(super) fn split_top(rest: &mut Rect, height: u16) -> Rect {
    let height = height.min(rest.height);
    let taken = Rect { height, ..*rest };
    rest.y += height;
    rest.height -= height;
    taken
}

pub(super) fn bottom(rest: &mut Rect, height: u16) -> Rect {
    let height = height.min(rest.height);
    rest.height -= height;
    Rect { y: rest.y + rest.height, height, ..*rest }
}

/// `left`: the subject; right: start and mode.
pub(super) fn first_line(
    buffer: &mut Buffer,
    area: Rect,
    left: &str,
    (how, elapsed): (DrawMode, Nanos),
    palette: Palette,
) {
    let (word, style) = match how {
        DrawMode::Running => ("", Style::new()),
        DrawMode::Frozen => ("FROZEN ", palette.warning()),
        DrawMode::Ended => ("ENDED ", palette.warning()),
    };
    let right = format!(" {word}{}", clock(elapsed));
    let width = area.width as usize;
    let room = width.saturating_sub(right.len());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    buffer.set_string(area.x, area.y, cut(left, room, palette), bold);
    buffer.set_string(area.x + room as u16, area.y, cut(&right, width - room, palette), style);
}

#[derive(Clone, Copy)]
pub(super) enum DrawMode {
    Running,
    Frozen,
    Ended,
}

impl DrawMode {
    pub(super) fn new(ended: bool, state: &ViewState) -> DrawMode {
        match (ended, state.frozen) {
            (true, _) => DrawMode::Ended,
            (false, true) => DrawMode::Frozen,
            (false, false) => DrawMode::Running,
        }
    }
}

fn clock(time: Nanos) -> String {
    let seconds = time.0 / 1_000_000_000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn head(buffer: &mut Buffer, area: Rect, picture: &ViewModel, state: &ViewState, palette: Palette) {
    let width = area.width as usize;
    let head = &picture.head;
    let among = state.among.as_ref().map_or(String::new(), |among| format!("{among}  "));
    let left = match head.pid {
        Some(pid) => format!("memspy top  {among}pid {pid}  {}", head.command),
        None => "memspy top  starting".to_owned(),
    };
    let how = DrawMode::new(picture.ended.is_some(), state);
    first_line(buffer, area, &left, (how, head.elapsed), palette);
    if area.height < 2 {
        return;
    }
    let counts = &head.counts;
    let mut facts = Vec::new();
    match counts.events {
        Some(events) => {
            facts.push(format!("exact, {} events", render::count(events)));
            facts.push(format!("{} lost", render::count(counts.lost)));
        }
        None => {
            if counts.changes > 0 {
                facts.push(format!("followed, {} changes", render::count(counts.changes)));
            }
            facts.push(format!("{} Hz, {} samples", head.rate, render::count(counts.samples)));
            facts.push(format!("{} late", render::count(counts.late)));
        }
    }
    facts.push(format!("{} torn", render::count(counts.torn)));
    if counts.failed > 0 {
        facts.push(format!("{} failed", render::count(counts.failed)));
    }
    // Figures matter more than versions.
    let facts = facts.join(", ");
    let room = width.saturating_sub(facts.chars().count() + 2);
    let versions = if room < 12 { String::new() } else { cut(&head.runtime, room, palette) + "  " };
    buffer.set_string(area.x, area.y + 1, cut(&(versions + &facts), width, palette), Style::new());
}

fn devices(
    buffer: &mut Buffer,
    rest: &mut Rect,
    area: Rect,
    picture: &ViewModel,
    state: &ViewState,
    palette: Palette,
) {
    let width = area.width as usize;
    let mut others = usize::from(area.height / 6);
    if picture.devices.is_empty() && area.height >= 8 {
        let row = split_top(rest, 1);
        buffer.set_string(row.x, row.y, cut("No GPU is known.", width, palette), Style::new());
    }
    let mut left_out = 0;
    let many = picture.devices.len() > 1;
    for device in &picture.devices {
        let shown = device.cuda_index.is_some() && device.cuda_index == state.shown || !many;
        if !shown && others == 0 {
            left_out += 1;
            continue;
        }
        if rest.height == 0 {
            return;
        }
        let row = split_top(rest, 1);
        buffer.set_line(row.x, row.y, &bars::bar(device, width, shown && many, palette), row.width);
        if shown && area.height >= 7 {
            let lines = if area.height >= 20 { 2 } else { 1 };
            for line in bars::legend(device, width.saturating_sub(2), lines, palette) {
                let row = split_top(rest, 1);
                if row.is_empty() {
                    return;
                }
                buffer.set_line(row.x + 2, row.y, &line, row.width.saturating_sub(2));
            }
        } else if !shown {
            others -= 1;
        }
    }
    if left_out > 0 && rest.height > 0 {
        let row = split_top(rest, 1);
        let text = format!("and {left_out} more (g chooses)");
        buffer.set_string(row.x, row.y, cut(&text, width, palette), Style::new());
    }
}

fn notes(
    buffer: &mut Buffer,
    area: Rect,
    picture: &ViewModel,
    state: &ViewState,
    palette: Palette,
) {
    if area.height == 0 {
        return;
    }
    let (text, style) = match (&picture.ended, state.frozen) {
        (Some(how), _) => (format!("{how}; this is the last picture. q quits"), palette.warning()),
        (None, true) => ("frozen: space continues".to_owned(), palette.warning()),
        (None, false) => (picture.head.notes.join("; "), Style::new()),
    };
    buffer.set_string(area.x, area.y, cut(&text, area.width as usize, palette), style);
}

fn keys(buffer: &mut Buffer, area: Rect, state: &ViewState) {
    if area.height == 0 {
        return;
    }
    let seconds = state.interval.as_secs_f64();
    let interval = format!("{seconds} s");
    let all = if state.all_lines { "own" } else { "all" };
    let mut words =
        vec![("q", "quit"), ("?", "help"), ("l", "lines"), ("s", "stacks"), ("h", "owners")];
    if state.view == ListView::Lines {
        words.push(("a", all));
    }
    if state.gpus.len() > 1 {
        words.push(("g", "GPU"));
    }
    if state.among.is_some() {
        words.extend([("Tab", "next"), ("Esc", "ranks")]);
    }
    words.extend([("<>", "sort"), ("r", "reverse"), ("spc", "freeze"), ("+-", &*interval)]);
    words.push(("m", "mark"));
    let chosen = |key: &str| {
        matches!(
            (key, state.view),
            ("l", ListView::Lines) | ("s", ListView::Stacks) | ("h", ListView::Owners)
        )
    };
    key_words(buffer, area, &words, chosen);
}

pub(super) fn key_words(
    buffer: &mut Buffer,
    area: Rect,
    words: &[(&str, &str)],
    chosen: impl Fn(&str) -> bool,
) {
    let mut x = 0;
    for (key, word) in words {
        let length = (key.len() + 1 + word.len()) as u16;
        if x + length > area.width {
            break;
        }
        let key_style = Style::new().add_modifier(Modifier::REVERSED);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        buffer.set_string(area.x + x, area.y, key, key_style);
        let style = if chosen(key) { bold } else { Style::new() };
        buffer.set_string(area.x + x + key.len() as u16, area.y, format!(" {word}"), style);
        x += length + 1;
    }
}

/// Shows text from line `first` on, over the picture; returns the first line shown.
pub(super) fn window(
    buffer: &mut Buffer,
    area: Rect,
    palette: Palette,
    title: &str,
    text: &[String],
    first: usize,
) -> usize {
    let most = (area.width as usize).saturating_sub(4);
    let lines: Vec<String> = text.iter().flat_map(|line| folded(line, most)).collect();
    let longest = lines.iter().map(|line| Line::raw(line.as_str()).width()).max().unwrap_or(0);
    let height = (lines.len() + 2).min(area.height as usize) as u16;
    let fitting = usize::from(height).saturating_sub(2);
    let first = first.min(lines.len() - fitting.min(lines.len()));
    let mut title = format!(" {title} ");
    if fitting < lines.len() {
        title = format!("{title}({}-{} of {}) ", first + 1, first + fitting, lines.len());
    }
    let width = (longest.max(title.len()) + 4).min(area.width as usize) as u16;
    let window = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(window, buffer);
    let block = Block::bordered().border_set(palette.border()).title(title);
    let inside = block.inner(window);
    block.render(window, buffer);
    for (i, line) in lines.iter().skip(first).take(inside.height as usize).enumerate() {
        let room = (inside.width as usize).saturating_sub(1);
        buffer.set_stringn(inside.x + 1, inside.y + i as u16, line, room, Style::new());
    }
    first
}

/// Breaks between words if possible.
fn folded(line: &str, width: usize) -> Vec<String> {
    if Line::raw(line).width() <= width {
        return vec![line.to_owned()];
    }
    let mut pieces = Vec::new();
    for part in render::words_wrapped(line, width) {
        let chars: Vec<char> = part.chars().collect();
        pieces.extend(chars.chunks(width.max(1)).map(|chunk| chunk.iter().collect::<String>()));
    }
    pieces
}
