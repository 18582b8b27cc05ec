//! A device's memory as a bar with legend.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::palette::{BarPart, Palette};
use super::table::short_size;
use crate::analysis::{DeviceSnapshot, OutsideTorch};
use crate::render;

/// Narrower bars are unreadable.
const MIN_BAR_WIDTH: usize = 8;

fn parts(device: &DeviceSnapshot) -> [(BarPart, &'static str, &'static str, Option<u64>); 5] {
    let outside = match device.outside {
        OutsideTorch::Bytes(bytes) => Some(bytes),
        OutsideTorch::Unknown(_) => None,
    };
    [
        (BarPart::Allocated, "allocated", "alloc", device.allocated),
        (BarPart::Cached, "cached free", "cached", device.cached),
        (BarPart::Outside, "outside PyTorch", "outside", outside),
        (BarPart::Others, "other processes", "others", device.others),
        (BarPart::Free, "free", "free", device.free),
    ]
}

pub(super) fn bar(
    device: &DeviceSnapshot,
    width: usize,
    chosen: bool,
    palette: Palette,
) -> Line<'static> {
    let name = match (device.cuda_index, device.nvml_index) {
        (Some(cuda), _) => format!("GPU {}", cuda.0),
        (None, Some(nvml)) => format!("nvidia-smi {nvml}"),
        (None, None) => "GPU".to_owned(),
    };
    let style = if chosen { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
    let mut spans = vec![Span::styled(format!("{name} "), style)];
    let Some(total) = device.total.filter(|total| *total > 0) else {
        spans.push(Span::raw("memory size unknown"));
        return Line::from(spans);
    };
    let mut after = format!(" {}", short_size(total));
    let model = device.name.as_deref().map(render::one_line).unwrap_or_default();
    if width >= 90 && !model.is_empty() {
        after = format!("{after}  {model}");
    }
    let taken = name.chars().count() + 1 + after.chars().count() + 2;
    let cells = width.saturating_sub(taken);
    if cells < MIN_BAR_WIDTH {
        spans.push(Span::raw(after.trim_start().to_owned()));
        return Line::from(spans);
    }
    spans.push(Span::raw("["));
    let mut segments: Vec<(BarPart, u64)> = parts(device)
        .into_iter()
        .filter(|(part, ..)| *part != BarPart::Free)
        .map(|(part, _, _, bytes)| (part, bytes.unwrap_or(0)))
        .collect();
    let known: u64 = segments.iter().map(|(_, bytes)| bytes).sum();
    segments.push((BarPart::Unknown, device.used.unwrap_or(0).saturating_sub(known)));
    let (mut sum, mut drawn) = (0, 0);
    for (part, bytes) in segments {
        sum += bytes;
        let upto = (u128::from(sum) * cells as u128 + u128::from(total) / 2) / u128::from(total);
        let mut upto = (upto as usize).min(cells);
        if bytes > 0 && upto <= drawn {
            upto = (drawn + 1).min(cells);
        }
        let length = upto.saturating_sub(drawn);
        spans.push(Span::styled(palette.glyph(part).repeat(length), palette.bar_style(part)));
        drawn = drawn.max(upto);
    }
    spans.push(Span::raw(" ".repeat(cells - drawn)));
    spans.push(Span::raw(format!("]{after}")));
    Line::from(spans)
}

/// The parts as numbers; drops the least important.
pub(super) fn legend(
    device: &DeviceSnapshot,
    width: usize,
    lines: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let parts = parts(device);
    let items = |(long, exact): (bool, bool)| -> Vec<(BarPart, String)> {
        let item = |(part, name, short, bytes): &(BarPart, &str, &str, Option<u64>)| {
            let size = match (bytes, exact) {
                (None, _) => "unknown".to_owned(),
                (Some(bytes), true) => render::bytes(*bytes),
                (Some(bytes), false) => short_size(*bytes),
            };
            (*part, format!("{} {size}", if long { *name } else { *short }))
        };
        parts.iter().map(item).collect()
    };
    let forms = [(true, true), (true, false), (false, false)];
    if let Some(fitting) = forms.into_iter().map(items).find(|items| length(items) <= width) {
        return vec![spans(&fitting, palette)];
    }
    let mut items = items((false, false));
    if device.others == Some(0) {
        items.retain(|(part, _)| *part != BarPart::Others);
    }
    if length(&items) > width && lines > 1 {
        let last = items.iter().rposition(|(part, _)| *part == BarPart::Outside).unwrap_or(1);
        let rest = items.split_off(last);
        return vec![spans(&items, palette), spans(&rest, palette)];
    }
    for least in [BarPart::Others, BarPart::Outside, BarPart::Free, BarPart::Cached] {
        if length(&items) > width {
            items.retain(|(part, _)| *part != least);
        }
    }
    vec![spans(&items, palette)]
}

/// A glyph and a space before each item, two spaces between.
fn length(items: &[(BarPart, String)]) -> usize {
    items.iter().map(|(_, text)| text.chars().count() + 4).sum::<usize>().saturating_sub(2)
}

fn spans(items: &[(BarPart, String)], palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for (i, (part, text)) in items.iter().enumerate() {
        if i > 0 {
            spans.push(Span::raw("  "));
        }
        let glyph = match (part, palette.unicode) {
            (BarPart::Free, true) => "·",
            (BarPart::Free, false) => ".",
            _ => palette.glyph(*part),
        };
        spans.push(Span::styled(glyph, palette.bar_style(*part)));
        spans.push(Span::raw(format!(" {text}")));
    }
    Line::from(spans)
}
