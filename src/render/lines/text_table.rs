//! A table of figures, locations and source.

use std::borrow::Cow;
use std::io::Write;

/// Least columns for source beside a location; with fewer it gets its own line.
const MIN_SOURCE: usize = 18;

pub(super) struct TextTable<'a, const N: usize> {
    heads: [&'a str; N],
    rows: Vec<([String; N], String, String)>,
}

impl<'a, const N: usize> TextTable<'a, N> {
    pub(super) fn new(heads: [&'a str; N]) -> TextTable<'a, N> {
        TextTable { heads, rows: Vec::new() }
    }

    pub(super) fn push(&mut self, cells: [String; N], place: String, source: String) {
        self.rows.push((cells, place, source));
    }

    pub(super) fn write(&self, out: &mut dyn Write, width: Option<usize>) -> std::io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let length = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = Vec::new();
        for (i, head) in self.heads.iter().enumerate() {
            let cells = self.rows.iter().map(|row| length(&row.0[i]));
            widths.push(cells.chain(head.split('/').map(length)).max().unwrap_or(0));
        }
        let place = self.rows.iter().map(|row| length(&row.1)).max().unwrap_or(0);
        // Drops the last columns; never cuts a location.
        let taken = |widths: &[usize]| widths.iter().map(|w| w + 2).sum::<usize>();
        if let Some(width) = width {
            while widths.len() > 2 && taken(&widths) + place > width {
                widths.pop();
            }
        }
        let begin = taken(&widths);
        let beside = width.map(|width| width.saturating_sub(begin + place + 2));
        let below = width.filter(|_| beside.is_some_and(|beside| beside < MIN_SOURCE));
        for half in 0..2 {
            let mut head = String::new();
            for (width, name) in widths.iter().zip(self.heads) {
                head += &format!("{:>width$}  ", name.split('/').nth(half).unwrap_or_default());
            }
            match below {
                _ if half == 0 => {}
                None => head += &format!("{:place$}  source", "line"),
                Some(_) => head += "line and source",
            }
            writeln!(out, "{}", head.trim_end())?;
        }
        for (cells, at, source) in &self.rows {
            let mut text = String::new();
            for (width, cell) in widths.iter().zip(cells) {
                text += &format!("{cell:>width$}  ");
            }
            match below {
                None => {
                    text += &format!("{at:place$}  {}", beginning(source, beside));
                    writeln!(out, "{}", text.trim_end())?;
                }
                Some(width) => {
                    writeln!(out, "{text}{at}")?;
                    let indent = (begin + 2).min(width / 2);
                    let room = width.saturating_sub(indent);
                    writeln!(out, "{:indent$}{}", "", beginning(source, Some(room)))?;
                }
            }
        }
        Ok(())
    }
}

fn beginning(source: &str, room: Option<usize>) -> Cow<'_, str> {
    match room.filter(|room| source.chars().count() > *room) {
        Some(room) => {
            let kept = source.chars().take(room.saturating_sub(1));
            Cow::Owned(kept.chain(['…']).collect())
        }
        None => Cow::Borrowed(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_keeps_the_location_and_some_source() {
        let mut table = TextTable::new(["live at/peak", "/share", "/allocated"]);
        let cells = ["~1023 MiB", "100.0 %", "~1023 GiB"].map(str::to_owned);
        table.push(cells, "some/deep/folder/of/models/net.py:1234".into(), "x = f(y) ".repeat(9));
        for width in [66, 80, 100] {
            let mut out = Vec::new();
            table.write(&mut out, Some(width)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            let place = "some/deep/folder/of/models/net.py:1234";
            assert!(text.contains(place) && text.contains("x = f"), "{width}: {text}");
        }
        let mut out = Vec::new();
        table.write(&mut out, None).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("x = f(y) x = f(y) x = f(y) x = f(y) x"));
    }
}
