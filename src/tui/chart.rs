//! Draws levels of the last minutes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::palette::{BarPart, Palette};
use super::table::short_size;
use super::view_model::GpuFigures;
use crate::model::Nanos;

/// For the sizes at the left.
const GUTTER: u16 = 9;

pub(super) fn chart(
    buffer: &mut Buffer,
    area: Rect,
    gpu: &GpuFigures,
    now: Nanos,
    palette: Palette,
) {
    if area.height < 3 || area.width < GUTTER + 10 {
        return;
    }
    let width = area.width - GUTTER;
    let rows = area.height - 1;
    let (column, reach) = gpu.recent.columns(now, width as usize);
    let mark = gpu.marks.map_or(0, |marks| marks.allocated).max(0) as u64;
    let bytes = |value: i64| value.max(0) as u64;
    let highest = reach.iter().flatten().map(|r| bytes(r.reserved.max(r.allocated))).max();
    let scale = highest.unwrap_or(0).max(mark).max(1);
    let eighths = |value: u64| {
        let whole = u128::from(rows) * 8;
        ((u128::from(value) * whole).div_ceil(u128::from(scale))).min(whole) as usize
    };
    let row_of = |value: u64| rows - 1 - ((eighths(value).max(1) - 1) / 8) as u16;
    let mark_row = (mark > 0).then(|| row_of(mark));
    for (x, reach) in reach.iter().enumerate() {
        let x = area.x + GUTTER + x as u16;
        let filled = reach.map(|r| (eighths(bytes(r.allocated)), eighths(bytes(r.reserved))));
        for row in 0..rows {
            let below = usize::from(rows - 1 - row) * 8;
            let (allocated, reserved) = filled.unwrap_or((0, 0));
            let (allocated, reserved) =
                (allocated.saturating_sub(below).min(8), reserved.saturating_sub(below).min(8));
            let (glyph, style) = if allocated >= 4 || allocated > 0 && reserved <= allocated {
                (palette.eighth(allocated), palette.bar_style(BarPart::Allocated))
            } else if mark_row == Some(row) {
                (palette.mark(), Style::new())
            } else if reserved >= 4 {
                (palette.glyph(BarPart::Cached), palette.bar_style(BarPart::Cached))
            } else if allocated > 0 {
                (palette.eighth(allocated), palette.bar_style(BarPart::Allocated))
            } else {
                continue;
            };
            buffer.set_string(x, area.y + row, glyph, style);
        }
    }
    let mut label = |row: u16, value: u64, style: Style| {
        let text = format!("{:>8}", short_size(value));
        buffer.set_string(area.x, area.y + row, text, style);
    };
    label(rows - 1, 0, Style::new());
    label(0, scale, Style::new());
    if let Some(row) = mark_row.filter(|row| *row > 0 && *row < rows - 1) {
        label(row, mark, Style::new().add_modifier(Modifier::BOLD));
    }
    axis(buffer, area, gpu, column, palette);
}

fn axis(buffer: &mut Buffer, area: Rect, gpu: &GpuFigures, column: Nanos, palette: Palette) {
    let width = area.width - GUTTER;
    let y = area.y + area.height - 1;
    let span = Nanos(column.0 * u64::from(width)).seconds() as u64;
    let from = match span {
        0..=119 => format!("-{span} s"),
        _ => format!("-{} min {:02} s", span / 60, span % 60),
    };
    buffer.set_string(area.x + GUTTER, y, &from, Style::new());
    buffer.set_string(area.x + area.width - 3, y, "now", Style::new());
    let Some(marks) = gpu.marks else { return };
    let glyph = palette.mark();
    let sizes = |allocated: &str, reserved: &str| {
        let values = [marks.allocated, marks.reserved].map(|v| short_size(v.max(0) as u64));
        format!("{glyph} peak: {allocated} {}, {reserved} {}", values[0], values[1])
    };
    let room = (width as usize).saturating_sub(from.len() + 3 + 2);
    let forms = [sizes("allocated", "reserved"), sizes("alloc", "res")];
    if let Some(text) = forms.into_iter().find(|text| text.chars().count() + 2 <= room) {
        let start = from.len() + (room + 2 - text.chars().count()) / 2;
        buffer.set_string(area.x + GUTTER + start as u16, y, text, Style::new());
    }
}
