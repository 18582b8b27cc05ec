//! A flamegraph for the terminal: a tree of stacks with their sizes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use super::RenderError;
use super::escape::EscapeGuard;
use super::size::{percent, short_bytes};

/// The least share of the whole that is shown, in percent, unless another is asked for.
const MIN_PERCENT: f64 = 1.0;

/// A frame below others.
#[derive(Debug, Default)]
struct TextNode {
    bytes: u64,
    children: BTreeMap<String, usize>,
}

/// Writes folded lines, `a;b;c BYTES`, as a tree; the largest first, and frames with the same bytes one below the other.
pub(super) fn tree_text(
    out: &mut dyn Write,
    lines: &[String],
    heads: &[String],
    inverted: bool,
    min_percent: Option<f64>,
) -> Result<(), RenderError> {
    if lines.is_empty() {
        return Err(RenderError::Empty);
    }
    let out = &mut EscapeGuard::text(out);
    let mut nodes = vec![TextNode::default()];
    for line in lines {
        let Some((stack, bytes)) = line.rsplit_once(' ') else { continue };
        let bytes: u64 = bytes.parse().unwrap_or(0);
        let mut path: Vec<&str> = stack.split(';').collect();
        if inverted {
            path.reverse();
        }
        let mut at = 0;
        nodes[0].bytes += bytes;
        for name in path {
            let next = nodes.len();
            at = *nodes[at].children.entry(name.to_owned()).or_insert(next);
            if at == next {
                nodes.push(TextNode::default());
            }
            nodes[at].bytes += bytes;
        }
    }
    for head in heads {
        writeln!(out, "{head}")?;
    }
    let whole = nodes[0].bytes;
    let least = min_percent.unwrap_or(MIN_PERCENT);
    let is_shown = |node: usize| percent(nodes[node].bytes, whole) >= least;
    // A number of a node, its name, and how far it is set in; without recursion, as stacks can be very deep.
    let mut open: Vec<(usize, &str, usize)> = vec![(0, "all", 0)];
    while let Some((at, name, depth)) = open.pop() {
        let node = &nodes[at];
        let indent = "  ".repeat(depth);
        let share = percent(node.bytes, whole);
        writeln!(out, "{:>10} {share:>5.1} %  {indent}{name}", short_bytes(node.bytes))?;
        let mut children: Vec<(usize, &str)> =
            node.children.iter().map(|(name, child)| (*child, &**name)).collect();
        children.sort_by_key(|(child, name)| (Reverse(nodes[*child].bytes), *name));
        let goes_on = children.first().is_some_and(|(child, _)| nodes[*child].bytes == node.bytes);
        let below = if goes_on && at != 0 { depth } else { depth + 1 };
        let (shown, small): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|(child, _)| is_shown(*child));
        if !small.is_empty() {
            let bytes: u64 = small.iter().map(|(child, _)| nodes[*child].bytes).sum();
            let (indent, share) = ("  ".repeat(below), percent(bytes, whole));
            let count = small.len();
            writeln!(out, "{:>10} {share:>5.1} %  {indent}[{count} smaller]", short_bytes(bytes))?;
        }
        open.extend(shown.into_iter().rev().map(|(child, name)| (child, name, below)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str], inverted: bool, least: Option<f64>) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let mut out = Vec::new();
        tree_text(&mut out, &lines, &["Head".to_owned()], inverted, least).unwrap();
        String::from_utf8(out).unwrap()
    }

    const LINES: [&str; 4] =
        ["main;step;f 6291456", "main;step;g 3145728", "main;load 1048576", "main;load;tiny 1024"];

    #[test]
    fn a_tree_has_the_largest_first_and_sums_up_what_is_small() {
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
        // The one that is left out is not lost.
        assert_eq!(names, ["[2 smaller]", "f", "step", "main", "g", "step", "main"]);
    }
}
