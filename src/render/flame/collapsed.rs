//! The folded format: a line per stack, `root;frame;leaf BYTES`.

use std::collections::BTreeMap;
use std::io::Write;

use crate::analysis::{FoldedProfile, Profile, StackLabel};
use crate::render::shared::{EscapeGuard, FrameLabels, OutputError, one_line};

/// How frames are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameStyle {
    /// Full paths of files.
    pub full_filenames: bool,
    /// Frames are functions without lines.
    pub functions_only: bool,
    /// Pictures show library functions that only call another one.
    pub all_frames: bool,
}

/// Writes the folded format, sorted by stack.
pub fn collapsed(
    out: &mut dyn Write,
    profile: &Profile,
    folded: &FoldedProfile,
    style: NameStyle,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for (stack, bytes) in stacks(profile, folded, style) {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(())
}

/// Escaped for the folded format.
pub(super) fn label_text(labels: &FrameLabels<'_>, label: &StackLabel, style: NameStyle) -> String {
    let text = match *label {
        StackLabel::Thread(thread) => labels.thread(thread),
        StackLabel::Frame(frame) => labels.frame(frame, !style.functions_only),
        StackLabel::Native(frame) => labels.native(frame),
        StackLabel::Pseudo(mark) => mark.text().to_owned(),
        StackLabel::Owner(owner) => labels.owner(owner),
        StackLabel::Module(name) => labels.module(name),
        StackLabel::Node(site) => labels.node(site),
        StackLabel::NodeOfUnknownLine(site) => {
            format!("{} (forward line unknown)", labels.node(site))
        }
    };
    step(&text)
}

/// Escapes `;`, and the blank before a last number, which would be a count.
pub(super) fn step(text: &str) -> String {
    let text = without_separator(text);
    match text.trim_end().rsplit_once(' ') {
        Some((name, end)) if is_count(end) => format!("{name}_{end}"),
        _ => text,
    }
}

/// For text that never ends a stack: a rank's.
pub(super) fn without_separator(text: &str) -> String {
    one_line(text).replace(';', ":")
}

fn is_count(text: &str) -> bool {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit())
}

/// Stacks with the same text are summed.
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
