//! Colours of a summary on a terminal. Nothing depends on them alone.

/// As `memspy top` has them: green is allocated, cyan cached, magenta outside, blue others'.
const MARKS: [(char, &str); 5] = [('█', "32"), ('▚', "33"), ('▓', "36"), ('▒', "35"), ('░', "34")];
const BOLD: &str = "1";
const GROWS: &str = "1;33";
const URGENT: &str = "1;31";
const COMMAND: &str = "36";
const WARNING: &str = "33";
const WARNINGS: [&str; 4] =
    ["INCOMPLETE", "its owners are unknown", "out-of-memory error", "was tried again after"];

/// What the headline says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadlineTone {
    /// Another line.
    None,
    /// Nothing grows.
    Calm,
    /// Something grows.
    Grows,
    /// Memory runs out soon, or did meanwhile.
    Urgent,
}

/// A line of the summary, whose text has no escape sequences, with colours.
pub(super) fn colored(line: &str, tone: HeadlineTone) -> String {
    let start = line.trim_start();
    let is_indented = start.len() < line.len();
    match tone {
        HeadlineTone::None => {}
        HeadlineTone::Calm => return in_color(line, BOLD),
        HeadlineTone::Grows => return in_color(line, GROWS),
        HeadlineTone::Urgent => return in_color(line, URGENT),
    }
    match start {
        _ if is_indented && start.starts_with("memspy ") => in_color(line, COMMAND),
        _ if line.starts_with("* ") || line.starts_with("Process ") => in_color(line, BOLD),
        _ if WARNINGS.iter().any(|words| line.contains(words)) => in_color(line, WARNING),
        _ => with_marks(line),
    }
}

fn in_color(text: &str, code: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Colours each run of a bar's characters.
fn with_marks(line: &str) -> String {
    let code_of =
        |mark: char| MARKS.iter().find(|(known, _)| *known == mark).map(|(_, code)| *code);
    let mut text = String::with_capacity(line.len());
    let mut current = None;
    for mark in line.chars() {
        let code = code_of(mark);
        if code != current {
            match code {
                Some(code) => text.push_str(&format!("\x1b[{code}m")),
                None => text.push_str("\x1b[0m"),
            }
            current = code;
        }
        text.push(mark);
    }
    if current.is_some() {
        text.push_str("\x1b[0m");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_only_add_escape_sequences() {
        for line in [
            "Process 7: python train.py",
            "GPU 0, 80.00 GiB   [███▓▒░··]",
            "█ allocated 1 GiB  ▓ cached 2 GiB",
            "* 48 MiB back: del history",
            "    memspy why -p 7",
            "  12 MiB  memspy.py: x",
        ] {
            let painted = colored(line, HeadlineTone::None);
            let mut plain = painted.clone();
            for code in ["0", "1", "32", "33", "34", "35", "36"] {
                plain = plain.replace(&format!("\x1b[{code}m"), "");
            }
            assert_eq!(plain, line);
        }
        let plain = |line| colored(line, HeadlineTone::None);
        assert_eq!(plain("[██▓·]"), "[\x1b[32m██\x1b[36m▓\x1b[0m·]");
        assert_eq!(plain("nothing grew"), "nothing grew");
        assert_eq!(
            colored("GPU 0 is full", HeadlineTone::Urgent),
            "\x1b[1;31mGPU 0 is full\x1b[0m"
        );
    }
}
