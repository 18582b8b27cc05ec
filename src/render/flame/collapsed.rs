//! The folded format: one line per stack, `root;frame;leaf BYTES`.

use std::collections::BTreeMap;
use std::io::Write;

use crate::analysis::{FoldedProfile, Profile, StackLabel};
use crate::render::shared::{EscapeGuard, FrameLabels, RenderError, one_line};

/// How the frames of a flamegraph are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameStyle {
    /// Whether file names are shown with their full path.
    pub full_filenames: bool,
    /// Whether frames are functions without lines, so that a function's lines become one frame.
    pub functions_only: bool,
}

/// Writes the folded format, sorted by stack.
pub fn collapsed(
    out: &mut dyn Write,
    profile: &Profile,
    folded: &FoldedProfile,
    style: NameStyle,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    for (stack, bytes) in stacks(profile, folded, style) {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(())
}

/// The name of one frame, escaped for the folded format.
pub(super) fn label_text(labels: &FrameLabels<'_>, label: &StackLabel, style: NameStyle) -> String {
    let text = match *label {
        StackLabel::Thread(thread) => labels.thread(thread),
        StackLabel::Frame(frame) => labels.frame(frame, !style.functions_only),
        StackLabel::Native(frame) => labels.native(frame),
        StackLabel::Pseudo(mark) => mark.text().to_owned(),
        StackLabel::Owner(owner) => labels.owner(owner),
        StackLabel::Node(site) => labels.node(site),
        StackLabel::NodeOfUnknownLine(site) => {
            format!("{} (forward line unknown)", labels.node(site))
        }
    };
    step(&text)
}

/// Escapes a frame's text: `;` would begin another frame, and a number after a final blank would be
/// read as a count (a line may have two).
pub(super) fn step(text: &str) -> String {
    let text = without_separator(text);
    match text.trim_end().rsplit_once(' ') {
        Some((name, end)) if is_count(end) => format!("{name}_{end}"),
        _ => text,
    }
}

/// The same for a text that never ends a stack, such as a rank's.
pub(super) fn without_separator(text: &str) -> String {
    one_line(text).replace(';', ":")
}

fn is_count(text: &str) -> bool {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit())
}

/// Stacks as text with their bytes; stacks with the same text are summed.
pub(super) fn stacks(
    profile: &Profile,
    folded: &FoldedProfile,
    style: NameStyle,
) -> BTreeMap<String, u64> {
    let labels = FrameLabels::new(profile, style.full_filenames);
    let text = |label: &StackLabel| label_text(&labels, label, style);
    let mut stacks = BTreeMap::new();
    for stack in &folded.stacks {
        let path: Vec<String> = stack.path.iter().map(text).collect();
        *stacks.entry(path.join(";")).or_default() += stack.bytes;
    }
    stacks
}
