//! Colours of a summary on a terminal. Nothing depends on them alone.

/// As `memspy top` has them: green is allocated, cyan cached, magenta outside, blue others'.
const MARKS: [(char, &str); 5] = [('█', "32"), ('▚', "33"), ('▓', "36"), ('▒', "35"), ('░', "34")];
const BOLD: &str = "1";
const COMMAND: &str = "36";
const WARNING: &str = "33";

/// A line of the summary, whose text has no escape sequences, with colours.
pub(super) fn colored(line: &str) -> String {
    let start = line.trim_start();
    let is_indented = start.len() < line.len();
    match start {
        _ if is_indented && start.starts_with("memspy ") => in_color(line, COMMAND),
        _ if line.starts_with("* ") || line.starts_with("Process ") => in_color(line, BOLD),
        _ if line.starts_with("INCOMPLETE") || line.starts_with("its owners are unknown") => {
            in_color(line, WARNING)
        }
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
            let painted = colored(line);
            let mut plain = painted.clone();
            for code in ["0", "1", "32", "33", "34", "35", "36"] {
                plain = plain.replace(&format!("\x1b[{code}m"), "");
            }
            assert_eq!(plain, line);
        }
        assert_eq!(colored("[██▓·]"), "[\x1b[32m██\x1b[36m▓\x1b[0m·]");
        assert_eq!(colored("nothing grew"), "nothing grew");
    }
}
