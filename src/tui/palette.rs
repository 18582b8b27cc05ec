//! Colours and characters.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    /// Whether to use colours; nothing depends on them alone.
    pub color: bool,
    /// It shows characters beyond ASCII.
    pub unicode: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarPart {
    Allocated,
    Cached,
    Outside,
    Others,
    /// Used by an unknown process.
    Unknown,
    Free,
}

const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

const ASCII: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

impl Palette {
    pub(super) fn bar_style(self, part: BarPart) -> Style {
        let color = match part {
            BarPart::Allocated => Color::Green,
            BarPart::Cached => Color::Cyan,
            BarPart::Outside => Color::Magenta,
            BarPart::Others => Color::Blue,
            BarPart::Unknown => Color::Red,
            BarPart::Free => return Style::new(),
        };
        self.colored(color)
    }

    pub(super) fn warning(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn glyph(self, part: BarPart) -> &'static str {
        match (part, self.unicode) {
            (BarPart::Allocated, true) => "█",
            (BarPart::Allocated, false) => "#",
            (BarPart::Cached, true) => "▒",
            (BarPart::Cached, false) => "=",
            (BarPart::Outside, true) => "░",
            (BarPart::Outside, false) => "+",
            (BarPart::Others, true) => "▚",
            (BarPart::Others, false) => "x",
            (BarPart::Unknown, _) => "?",
            (BarPart::Free, _) => " ",
        }
    }

    /// A cell filled from below.
    pub(super) fn eighth(self, eighths: usize) -> &'static str {
        match (self.unicode, eighths) {
            (true, n) => EIGHTHS[n.min(8)],
            (false, 0..=3) => " ",
            (false, _) => "#",
        }
    }

    pub(super) fn mark(self) -> &'static str {
        if self.unicode { "╌" } else { "-" }
    }

    pub(super) fn border(self) -> border::Set<'static> {
        if self.unicode { border::PLAIN } else { ASCII }
    }

    pub(super) fn called_by(self) -> &'static str {
        if self.unicode { " ← " } else { " < " }
    }

    pub(super) fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "~" }
    }

    pub(super) fn sorted(self, smallest_first: bool) -> &'static str {
        match (self.unicode, smallest_first) {
            (true, false) => "▼",
            (true, true) => "▲",
            (false, false) => "v",
            (false, true) => "^",
        }
    }
}
