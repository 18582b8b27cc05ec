//! A flamegraph for the terminal: a tree.

use std::io::Write;

use super::frame_tree::{DrawnStack, FrameTree};
use crate::render::shared::{EscapeGuard, OutputError, percent, short_bytes};

/// The smallest share shown by default, in percent.
const MIN_PERCENT: f64 = 1.0;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TreeStyle {
    /// Allocating lines first.
    pub(super) inverted: bool,
    /// The smallest share shown, in percent.
    pub(super) min_percent: Option<f64>,
    pub(super) color: bool,
}

enum PendingLine {
    Node {
        at: usize,
        depth: usize,
        is_only: bool,
    },
    /// Sums the nodes too small to show.
    Small {
        count: usize,
        bytes: u64,
        depth: usize,
    },
}

/// An only callee stays in its caller's column: stacks are deep, terminals narrow.
const ONLY: &str = "└ ";

/// Writes stacks, the largest first.
pub(super) fn tree_text(
    out: &mut dyn Write,
    stacks: &[DrawnStack],
    heads: &[String],
    style: TreeStyle,
) -> Result<(), OutputError> {
    let tree = FrameTree::new(stacks, style.inverted);
    for head in heads {
        writeln!(EscapeGuard::text(&mut *out), "{head}")?;
    }
    let bytes_of = |at: usize| tree.node(at).size.bytes;
    let whole = bytes_of(0);
    let least = style.min_percent.unwrap_or(MIN_PERCENT);
    let mut write = |bytes: u64, depth: usize, name: &str| -> Result<(), OutputError> {
        let (share, indent) = (percent(bytes, whole), "  ".repeat(depth));
        let line = format!("{:>10} {share:>5.1} %  {indent}{name}", short_bytes(bytes));
        // memspy's own colours go around the guarded text.
        let (color, end) = if style.color { color_of(share, name) } else { ("", "") };
        out.write_all(color.as_bytes())?;
        write!(EscapeGuard::text(&mut *out), "{line}")?;
        Ok(writeln!(out, "{end}")?)
    };
    // No recursion: stacks can be very deep.
    let mut open = vec![PendingLine::Node { at: 0, depth: 0, is_only: false }];
    while let Some(line) = open.pop() {
        let (at, depth) = match line {
            PendingLine::Small { count, bytes, depth } => {
                write(bytes, depth, &format!("[{count} smaller]"))?;
                continue;
            }
            PendingLine::Node { at, depth, is_only } => {
                let name = tree.node(at).frame.text();
                write(bytes_of(at), depth, &[if is_only { ONLY } else { "" }, &name].concat())?;
                (at, depth)
            }
        };
        let children = tree.children(at);
        let goes_on = children.first().is_some_and(|child| bytes_of(*child) == bytes_of(at));
        let is_only = goes_on && at != 0;
        let below = if is_only { depth } else { depth + 1 };
        let is_shown = |node: &usize| percent(bytes_of(*node), whole) >= least;
        let (shown, small): (Vec<_>, Vec<_>) = children.into_iter().partition(is_shown);
        if !small.is_empty() {
            let bytes: u64 = small.iter().map(|child| bytes_of(*child)).sum();
            open.push(PendingLine::Small { count: small.len(), bytes, depth: below });
        }
        let line = |at| PendingLine::Node { at, depth: below, is_only };
        open.extend(shown.into_iter().rev().map(line));
    }
    Ok(())
}

/// Red from half of the memory, yellow from a tenth; dim: no code.
fn color_of(share: f64, name: &str) -> (&'static str, &'static str) {
    let color = match share {
        _ if name.starts_with('[') => "\x1b[2m",
        50.0.. => "\x1b[31m",
        10.0.. => "\x1b[33m",
        _ => return ("", ""),
    };
    (color, "\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::super::frame_tree::{DrawnFrame, FrameSize};
    use super::*;

    fn stacks(lines: &[&str]) -> Vec<DrawnStack> {
        let stack = |line: &&str| {
            let (path, bytes) = line.rsplit_once(' ').unwrap();
            let path = path.split(';').map(DrawnFrame::mark).collect();
            DrawnStack { path, size: FrameSize::of(bytes.parse().unwrap()) }
        };
        lines.iter().map(stack).collect()
    }

    fn text(lines: &[&str], inverted: bool, least: Option<f64>) -> String {
        let mut out = Vec::new();
        let style = TreeStyle { inverted, min_percent: least, color: false };
        tree_text(&mut out, &stacks(lines), &["Head".to_owned()], style).unwrap();
        String::from_utf8(out).unwrap()
    }

    const LINES: [&str; 4] =
        ["main;step;f 6291456", "main;step;g 3145728", "main;load 1048576", "main;load;tiny 1024"];

    #[test]
    fn the_tree_lists_largest_first_and_sums_the_small() {
        assert_eq!(
            text(&LINES, false, None),
            "Head
  10.0 MiB 100.0 %  all
  10.0 MiB 100.0 %    main
  9.00 MiB  90.0 %      step
  6.00 MiB  60.0 %        f
  3.00 MiB  30.0 %        g
  1.00 MiB  10.0 %      load
  1.00 KiB   0.0 %        [1 smaller]
"
        );
    }

    #[test]
    fn an_inverted_tree_begins_with_what_allocates() {
        let text = text(&LINES, true, Some(20.0));
        let names: Vec<&str> = text.lines().skip(2).map(|line| line[21..].trim_start()).collect();
        assert_eq!(names, ["f", "└ step", "└ main", "g", "└ step", "└ main", "[2 smaller]"]);
    }

    #[test]
    fn the_sum_of_small_frames_comes_last() {
        let lines = ["a;x 900", "b 95", "c 3", "d 2"];
        let shares: Vec<String> =
            text(&lines, false, None).lines().skip(2).map(|line| line[20..].to_owned()).collect();
        assert_eq!(shares, ["  a", "  └ x", "  b", "  [2 smaller]"]);
    }

    #[test]
    fn a_callee_differs_from_a_sibling() {
        let rows = |lines: &[&str]| -> Vec<String> {
            text(lines, false, None).lines().skip(2).map(|line| line[20..].to_owned()).collect()
        };
        // Regression: 'b' below 'a' read like 'b' beside it with as many bytes.
        assert_eq!(rows(&["a;b 50", "c 50"]), ["  a", "  └ b", "  c"]);
        assert_eq!(rows(&["a 50", "b 50", "c 50"]), ["  a", "  b", "  c"]);
    }

    #[test]
    fn names_cannot_produce_colours() {
        let mut hostile = stacks(&["hot 90", "warm 9", "[no Python] 1"]);
        hostile[0].path[0].name = "hot\x1b[2J".to_owned();
        let mut out = Vec::new();
        let style = TreeStyle { color: true, min_percent: Some(0.5), ..TreeStyle::default() };
        tree_text(&mut out, &hostile, &[], style).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[0].starts_with("\x1b[31m") && rows[0].ends_with("all\x1b[0m"), "{text:?}");
        assert!(rows[1].ends_with("hot\\x1b[2J\x1b[0m"), "{text:?}");
        assert!(!rows[2].contains('\x1b'), "{text:?}");
        assert!(rows[3].starts_with("\x1b[2m"), "{text:?}");
    }
}
