//! Stacks in one line: the innermost frame, the program's lines, the number of frames between.

use crate::analysis::StackLabel;
use crate::model::{Frame, StackId};
use crate::render::shared::{FrameLabels, one_line};

/// Frames of the program.
const MAX_OWN: usize = 3;
/// Longest stack shown whole; frames shown of a stack without the program.
const MAX_WHOLE: usize = 6;

struct StackEntry {
    text: String,
    library: bool,
}

/// `inner (torch/x.py:3) ← … 4 library frames ← own (train.py:9) ← main (train.py:20)`.
pub(super) fn stack_text(labels: FrameLabels<'_>, stack: StackId) -> String {
    let steps: Vec<StackEntry> =
        labels.stacks.frames(stack).map(|frame| step(labels, frame)).collect();
    folded(&steps)
}

pub(super) fn path_text(labels: FrameLabels<'_>, path: &[StackLabel]) -> String {
    let of = |label: &StackLabel| match *label {
        StackLabel::Frame(frame) => step(labels, frame),
        other => StackEntry { text: labels.label(other, true), library: true },
    };
    let steps: Vec<StackEntry> = path.iter().rev().map(of).collect();
    folded(&steps)
}

/// The thread's own line, not that of the forward call.
pub(super) fn own_frame(labels: FrameLabels<'_>, path: &[StackLabel]) -> Option<Frame> {
    let own = path.iter().take_while(|label| {
        !matches!(label, StackLabel::Pseudo(crate::analysis::PseudoFrame::BackwardOf))
    });
    own.filter_map(|label| match label {
        StackLabel::Frame(frame) if !step(labels, *frame).library => Some(*frame),
        _ => None,
    })
    .last()
}

fn step(labels: FrameLabels<'_>, frame: Frame) -> StackEntry {
    let function = labels.stacks.get_function(frame.function);
    StackEntry {
        text: labels.frame(frame, true),
        library: function.is_none_or(|function| function.is_of_library()),
    }
}

fn folded(steps: &[StackEntry]) -> String {
    if steps.len() <= MAX_WHOLE || steps.iter().all(|step| step.library) {
        let shown: Vec<&str> = steps.iter().take(MAX_WHOLE).map(|s| &*s.text).collect();
        let more = if steps.len() > MAX_WHOLE { " ← …" } else { "" };
        return one_line(&format!("{}{more}", shown.join(" ← ")));
    }
    let mut parts: Vec<String> = Vec::new();
    let (mut own, mut hidden) = (0, 0);
    let mut last_hidden = "";
    let mut rest = false;
    for (i, step) in steps.iter().enumerate() {
        if own == MAX_OWN {
            rest = true;
            break;
        }
        if step.library && i > 0 {
            hidden += 1;
            last_hidden = &step.text;
            continue;
        }
        flush(&mut parts, &mut hidden, last_hidden);
        own += usize::from(!step.library);
        parts.push(step.text.clone());
    }
    if hidden > 0 && own < MAX_OWN {
        rest = true;
    }
    let more = if rest { " ← …" } else { "" };
    format!("{}{more}", parts.join(" ← "))
}

fn flush(parts: &mut Vec<String>, hidden: &mut usize, last: &str) {
    match *hidden {
        0 => {}
        1 => parts.push(last.to_owned()),
        count => parts.push(format!("… {count} library frames")),
    }
    *hidden = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<StackEntry> {
        let step =
            |name: &str| StackEntry { text: name.to_owned(), library: name.starts_with('l') };
        text.split(' ').map(step).collect()
    }

    #[test]
    fn a_stack_always_includes_the_programs_line() {
        for (frames, text) in [
            ("l1 l2 l3 l4 l5 l6 l7 net main", "l1 ← … 6 library frames ← net ← main"),
            ("l1 l2 net l3 main l4 l5", "l1 ← l2 ← net ← l3 ← main ← …"),
            ("l1 l2 net l3 main l4", "l1 ← l2 ← net ← l3 ← main ← l4"),
            ("a b c d e f g", "a ← b ← c ← …"),
            ("l1 l2", "l1 ← l2"),
            ("l1 l2 l3 l4 l5 l6 l7", "l1 ← l2 ← l3 ← l4 ← l5 ← l6 ← …"),
        ] {
            assert_eq!(folded(&steps(frames)), text);
        }
    }
}
