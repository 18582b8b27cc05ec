//! Draws a view's table.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::palette::Palette;
use super::state::ViewState;
use super::table::{RowName, SortOrder, TableColumn, TableRow, ViewTable};
use crate::render;

/// Notes in `state` how many rows fit.
pub(super) fn list(
    buffer: &mut Buffer,
    area: Rect,
    table: &Result<Cow<'_, ViewTable>, String>,
    state: &mut ViewState,
    palette: Palette,
) {
    if area.height == 0 || area.width == 0 {
        return;
    }
    let table = match table {
        Ok(table) => table,
        Err(why) => {
            state.clamp_selection(0, 0);
            state.columns = 0;
            return refusal(buffer, area, why);
        }
    };
    let view = state.view as usize;
    if std::mem::take(&mut state.is_marking) {
        state.marks[view] = Some(table.mark());
    }
    let marked = state.marks[view].as_ref().map(|mark| table.since(mark));
    let table = marked.as_ref().unwrap_or(table);
    state.columns = table.columns.len();
    let sort = state.sort[state.view as usize];
    let rows = table.sorted(sort);
    let with_title = area.height >= 4;
    let with_heads = area.height >= 2;
    let certainty = table.certainty.as_deref().filter(|_| area.height >= 7);
    let above = u16::from(with_title) + u16::from(with_heads) + u16::from(certainty.is_some());
    let fitting = usize::from(area.height - above);
    let (chosen, first) = state.clamp_selection(rows.len(), fitting);
    let mut list = TableArea::new(buffer, area, table, palette);
    if with_title {
        let shown = format!(
            " {}-{} of {}",
            (first + 1).min(rows.len()),
            (first + fitting).min(rows.len()),
            rows.len()
        );
        list.title(&table.title, &shown);
    }
    if let Some(certainty) = certainty {
        list.certainty(certainty);
    }
    if with_heads {
        list.heads(table, sort);
    }
    for (i, row) in rows.iter().enumerate().skip(first).take(fitting) {
        list.row(row, i == chosen);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Says why there is no table.
fn refusal(buffer: &mut Buffer, area: Rect, why: &str) {
    for (i, line) in render::words_wrapped(why, area.width as usize).iter().enumerate() {
        if (i as u16) < area.height {
            buffer.set_string(area.x, area.y + i as u16, line, bold());
        }
    }
}

/// Draws a table line by line.
struct TableArea<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    palette: Palette,
    /// Those that fit.
    columns: Vec<TableColumn>,
    name_x: u16,
    name_width: usize,
    /// Of the next line.
    y: u16,
}

impl<'a> TableArea<'a> {
    fn new(
        buffer: &'a mut Buffer,
        area: Rect,
        table: &ViewTable,
        palette: Palette,
    ) -> TableArea<'a> {
        let columns = columns_that_fit(&table.columns, table.min_name_width, area.width);
        let numbers: u16 = columns.iter().map(|column| column.width).sum();
        let name_x = area.x + numbers + u16::from(numbers > 0) * 2;
        let name_width = usize::from((area.x + area.width).saturating_sub(name_x));
        TableArea { buffer, area, palette, columns, name_x, name_width, y: area.y }
    }

    fn title(&mut self, title: &str, shown: &str) {
        let area = self.area;
        let room = (area.width as usize).saturating_sub(shown.len());
        self.buffer.set_string(area.x, self.y, cut(title, room, self.palette), bold());
        self.buffer.set_string(area.x + room as u16, self.y, shown, Style::new());
        self.y += 1;
    }

    fn certainty(&mut self, certainty: &str) {
        let text = cut(certainty, self.area.width as usize, self.palette);
        self.buffer.set_string(self.area.x, self.y, text, Style::new());
        self.y += 1;
    }

    fn heads(&mut self, table: &ViewTable, sort: SortOrder) {
        let head = Style::new().add_modifier(Modifier::REVERSED);
        self.fill(head);
        let mut x = self.area.x;
        let title = |i: usize, name: &str| {
            let marker = if sort.column == i { self.palette.sorted(sort.reversed) } else { "" };
            format!("{name}{marker}")
        };
        for (i, column) in self.columns.iter().enumerate() {
            let style = if sort.column == i { head.add_modifier(Modifier::BOLD) } else { head };
            let width = column.width as usize;
            self.buffer.set_string(x, self.y, format!("{:>width$}", title(i, column.name)), style);
            x += column.width;
        }
        let names = cut(&title(table.columns.len(), table.names), self.name_width, self.palette);
        self.buffer.set_string(self.name_x, self.y, names, head);
        self.y += 1;
    }

    fn row(&mut self, row: &TableRow, is_chosen: bool) {
        let mut style = if row.is_head { bold() } else { Style::new() };
        if row.is_dim {
            style = style.add_modifier(Modifier::DIM);
        }
        if is_chosen {
            style = style.add_modifier(Modifier::REVERSED);
            self.fill(style);
        }
        let mut x = self.area.x;
        for (cell, column) in row.cells.iter().zip(&self.columns) {
            let width = column.width as usize;
            self.buffer.set_string(x, self.y, format!("{:>width$}", cell.text()), style);
            x += column.width;
        }
        let name = fit(&row.name, self.name_width, self.palette);
        self.buffer.set_string(self.name_x, self.y, name, style);
        self.y += 1;
    }

    fn fill(&mut self, style: Style) {
        let line = " ".repeat(self.area.width as usize);
        self.buffer.set_string(self.area.x, self.y, line, style);
    }
}

fn columns_that_fit(columns: &[TableColumn], least_name: u16, width: u16) -> Vec<TableColumn> {
    let mut fitting = columns.to_vec();
    let numbers = |columns: &[TableColumn]| columns.iter().map(|c| c.width).sum::<u16>() + 2;
    while fitting.len() > 1 && numbers(&fitting) + least_name > width {
        fitting.pop();
    }
    fitting
}

fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

pub(super) fn cut(text: &str, width: usize, palette: Palette) -> String {
    // Second defence: the text should have none already.
    let text = &*render::visible(text);
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut taken = 0;
    for c in text.chars() {
        let wide = width_of(c.encode_utf8(&mut [0; 4]));
        if taken + wide + 1 > width {
            break;
        }
        taken += wide;
        short.push(c);
    }
    if width > 0 { short + palette.ellipsis() } else { short }
}

/// Shortens folders, then the function's name; callers fill the remaining room.
pub(super) fn fit(name: &RowName, width: usize, palette: Palette) -> String {
    let mut text = step(&name.text, name.place.as_ref(), width, palette);
    for (caller, place) in &name.callers {
        let room = width.saturating_sub(width_of(&text) + 3);
        let bare = place.as_ref().map(|(file, line)| (base(file).to_owned(), *line));
        let next = step(caller, bare.as_ref(), usize::MAX, palette);
        if width_of(&next) > room {
            let rest = cut(&next, room, palette);
            if width_of(&rest) > 4 {
                text = format!("{text}{}{rest}", palette.called_by());
            }
            break;
        }
        text = format!("{text}{}{next}", palette.called_by());
    }
    text
}

fn step(text: &str, place: Option<&(String, u32)>, width: usize, palette: Palette) -> String {
    let Some((file, line)) = place else { return cut(text, width, palette) };
    let line = if *line > 0 { format!(":{line}") } else { String::new() };
    let mut folders = file.as_str();
    loop {
        let whole = format!("{text} ({folders}{line})");
        if width_of(&whole) <= width {
            return whole;
        }
        match folders.split_once('/') {
            Some((_, rest)) if !rest.is_empty() => folders = rest,
            _ => break,
        }
    }
    let place = format!(" ({folders}{line})");
    let room = width.saturating_sub(width_of(&place));
    if room >= 6 {
        return cut(text, room, palette) + &place;
    }
    cut(&format!("{text}{place}"), width, palette)
}

fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::table::{TableCell, TableRow};

    #[test]
    fn names_lose_their_least_important_parts() {
        let palette = Palette { color: true, unicode: true };
        let name = RowName {
            text: "_engine_run_backward".into(),
            place: Some(("torch/autograd/graph.py".into(), 824)),
            callers: vec![("train".into(), Some(("src/train.py".into(), 9)))],
        };
        let fitted = |width| fit(&name, width, palette);
        assert_eq!(
            fitted(80),
            "_engine_run_backward (torch/autograd/graph.py:824) ← train (train.py:9)"
        );
        assert_eq!(fitted(60), "_engine_run_backward (torch/autograd/graph.py:824) ← train …");
        assert_eq!(fitted(40), "_engine_run_backward (graph.py:824)");
        assert_eq!(fitted(30), "_engine_run_ba… (graph.py:824)");
        assert_eq!(fitted(12), "_engine_run…");
        for width in 0..80 {
            assert!(width_of(&fitted(width)) <= width, "{width}");
        }
    }

    #[test]
    fn lines_show_their_evidence_where_there_is_room() {
        let sure = "lines: proven 31 %, probable 60 %, unattributed 9 %";
        let table = ViewTable {
            title: "By line".into(),
            certainty: Some(sure.into()),
            columns: vec![TableColumn { name: "OWN", width: 11 }],
            names: "LINE",
            min_name_width: 28,
            rows: vec![TableRow {
                cells: vec![TableCell::Bytes(5)],
                name: RowName { text: "train".into(), ..RowName::default() },
                ..TableRow::default()
            }],
        };
        let drawn = |height| {
            let area = Rect::new(0, 0, 80, height);
            let mut buffer = Buffer::empty(area);
            let mut state = ViewState::new(None, std::time::Duration::ZERO);
            let palette = Palette { color: false, unicode: true };
            list(&mut buffer, area, &Ok(Cow::Borrowed(&table)), &mut state, palette);
            let row = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>();
            (0..height).map(row).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        let lines = drawn(7);
        assert!(lines[0].starts_with("By line"), "{lines:?}");
        assert_eq!(lines[1], sure);
        assert!(lines[2].contains("OWN") && lines[3].contains("train"), "{lines:?}");
        // Rows take precedence.
        let lines = drawn(6);
        assert!(lines[1].contains("OWN") && lines[2].contains("train"), "{lines:?}");
    }
}
