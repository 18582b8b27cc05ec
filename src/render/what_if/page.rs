//! The segments under each setting, as a page with one picture for each.

use std::io::{self, Write};

use super::{WhatIfAnswer, agreement, name, notes, verdict};
use crate::analysis::what_if::{ReplayMoment, ReplayedSegment};
use crate::model::BlockState;
use crate::render::shared::{bytes, html_escaped, number};

/// Of a picture, in points.
const WIDTH: f64 = 900.0;
const ROW: f64 = 11.0;
/// Rows of the job's own picture, and of the largest one at most.
const ROWS: u64 = 40;
const MAX_ROWS: u64 = 200;
/// Neighbours below this width are drawn as one.
const MIN_WIDTH: f64 = 0.5;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:940px;margin:2em auto;padding:0 1em;\
color:#222;background:#fff}h2{font-size:1.05em;margin:1.6em 0 .2em}p{margin:.3em 0}svg{width:100%;height:auto}\
.free{fill:#f2f2f2}.used{fill:#3f7cac}.waits{fill:#c9a227}.edge{fill:none;stroke:#888;stroke-width:.8}\
.key{display:inline-block;width:11px;height:11px;margin:0 .35em 0 1em;border:1px solid #888}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}.free{fill:#2a2a2a}}";

/// Writes the page.
pub fn what_if_page(out: &mut dyn Write, answer: &WhatIfAnswer) -> io::Result<()> {
    let comparison = &answer.comparison;
    let all = || std::iter::once(&comparison.own).chain(&comparison.others);
    let most = all().map(|it| it.outcome.at_peak.reserved).max().unwrap_or(0);
    let own = comparison.own.outcome.at_peak.reserved;
    let row_bytes = own.div_ceil(ROWS).max(most.div_ceil(MAX_ROWS)).max(1);
    writeln!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>memspy what-if</title><style>{STYLE}</style>"
    )?;
    for line in [verdict(answer), agreement(comparison)] {
        writeln!(out, "<p>{}</p>", html_escaped(&line))?;
    }
    for note in notes(answer) {
        writeln!(out, "<p>note: {}</p>", html_escaped(&note))?;
    }
    writeln!(
        out,
        "<p>Segments when the recording reserved most, the largest first; each bordered stretch is one, each row \
         {}.<i class=\"key\" style=\"background:#3f7cac\"></i>in use<i class=\"key\" \
         style=\"background:#f2f2f2\"></i>free<i class=\"key\" style=\"background:#c9a227\"></i>waits for a stream</p>",
        bytes(row_bytes)
    )?;
    for (number, setting) in all().enumerate() {
        let whose = if number == 0 { " (the job's own)" } else { "" };
        picture(out, &format!("{}{whose}", name(setting)), &setting.outcome.at_peak, row_bytes)?;
    }
    writeln!(out, "</html>")
}

fn picture(
    out: &mut dyn Write,
    name: &str,
    moment: &ReplayMoment,
    row_bytes: u64,
) -> io::Result<()> {
    writeln!(
        out,
        "<h2>{}</h2><p>{} reserved in {}, {} cached, the largest free block {}</p>",
        html_escaped(name),
        bytes(moment.reserved),
        number(moment.segments.len() as u64, "segment"),
        bytes(moment.cached()),
        bytes(moment.largest_free())
    )?;
    let rows = moment.reserved.div_ceil(row_bytes).max(1);
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"Segments\">",
        rows as f64 * ROW
    )?;
    draw(out, moment, row_bytes)?;
    writeln!(out, "</svg>")
}

fn draw(out: &mut dyn Write, moment: &ReplayMoment, row_bytes: u64) -> io::Result<()> {
    let mut segments: Vec<&ReplayedSegment> = moment.segments.iter().collect();
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.size));
    let mut at = 0;
    for segment in segments {
        stretch(out, "free", at, segment.size, row_bytes)?;
        let mut offset = at;
        for (state, size) in joined(&segment.blocks, row_bytes) {
            match state {
                BlockState::Allocated => stretch(out, "used", offset, size, row_bytes)?,
                BlockState::PendingFree => stretch(out, "waits", offset, size, row_bytes)?,
                BlockState::Inactive => {}
            }
            offset += size;
        }
        stretch(out, "edge", at, segment.size, row_bytes)?;
        at += segment.size;
    }
    Ok(())
}

/// Equal neighbours as one, and what is too narrow to see with its neighbour.
fn joined(blocks: &[(BlockState, u64)], row_bytes: u64) -> Vec<(BlockState, u64)> {
    let least = (row_bytes as f64 / WIDTH * MIN_WIDTH) as u64;
    let mut joined: Vec<(BlockState, u64)> = Vec::new();
    for (state, size) in blocks {
        match joined.last_mut() {
            Some(last) if last.0 == *state || *size < least => last.1 += size,
            _ => joined.push((*state, *size)),
        }
    }
    joined
}

/// A stretch of bytes, broken into rows.
fn stretch(
    out: &mut dyn Write,
    class: &str,
    mut at: u64,
    mut size: u64,
    row_bytes: u64,
) -> io::Result<()> {
    let scale = WIDTH / row_bytes as f64;
    while size > 0 {
        let (row, from) = (at / row_bytes, at % row_bytes);
        let length = size.min(row_bytes - from);
        writeln!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            from as f64 * scale,
            row as f64 * ROW,
            length as f64 * scale,
            ROW - 2.0
        )?;
        at += length;
        size -= length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_broken_into_rows_and_nothing_is_lost() {
        let mut out = Vec::new();
        stretch(&mut out, "used", 60, 100, 80).unwrap();
        let text = String::from_utf8(out).unwrap();
        let widths: Vec<f64> = text
            .lines()
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|width| width.parse().unwrap())
            .collect();
        assert_eq!(widths, [225.0, 900.0]);
    }

    #[test]
    fn blocks_too_narrow_to_see_are_drawn_with_their_neighbours() {
        use BlockState::{Allocated, Inactive};
        let blocks = [(Allocated, 1000), (Allocated, 500), (Inactive, 1), (Inactive, 900)];
        let least = (WIDTH / MIN_WIDTH) as u64 * 10;
        assert_eq!(joined(&blocks, least), [(Allocated, 1501), (Inactive, 900)]);
    }
}
