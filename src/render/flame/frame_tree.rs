//! The frames of a picture, as a tree with sizes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::collapsed::{NameStyle, label_text, without_separator};
use crate::analysis::modules::{ModuleBytes, ModulePlace, nested_steps};
use crate::analysis::{FoldedProfile, FoldedStack, OwnerPart, OwnerStacks, Profile, StackLabel};
use crate::model::StackTable;
use crate::render::shared::{FrameLabels, one_line};

/// What a frame is, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FrameKind {
    /// Of the program; an owner.
    Own,
    Library,
    /// No line of code.
    Mark,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DrawnFrame {
    pub(super) name: String,
    /// `train.py:12`.
    pub(super) place: Option<String>,
    pub(super) kind: FrameKind,
}

impl DrawnFrame {
    pub(super) fn mark(name: &str) -> DrawnFrame {
        DrawnFrame { name: without_separator(name), place: None, kind: FrameKind::Mark }
    }

    fn of(labels: &FrameLabels<'_>, label: &StackLabel, style: NameStyle) -> DrawnFrame {
        let (frame, is_python) = match *label {
            StackLabel::Frame(frame) => (frame, true),
            StackLabel::Native(frame) => (frame, false),
            StackLabel::Owner(owner) => return DrawnFrame::of_owner(&labels.owner(owner)),
            _ => return DrawnFrame::mark(&label_text(labels, label, style)),
        };
        let (name, place) = match is_python {
            true => labels.frame_parts(frame, !style.functions_only),
            false => (labels.native(frame), None),
        };
        let function = labels.stacks.get_function(frame.function);
        let kind = match function.is_some_and(|it| is_python && !it.is_of_library()) {
            true => FrameKind::Own,
            false => FrameKind::Library,
        };
        let place = place.as_deref().map(without_separator);
        DrawnFrame { name: without_separator(&name), place, kind }
    }

    fn of_owner(name: &str) -> DrawnFrame {
        let kind = if name.starts_with('[') { FrameKind::Mark } else { FrameKind::Own };
        DrawnFrame { kind, ..DrawnFrame::mark(name) }
    }

    pub(super) fn text(&self) -> String {
        match &self.place {
            Some(place) => format!("{} ({place})", self.name),
            None => self.name.clone(),
        }
    }
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FrameSize {
    pub(super) bytes: u64,
    /// Of these, with known evidence: `proven`, `probable`, and the rest.
    pub(super) told: u64,
    pub(super) proven: u64,
    pub(super) probable: u64,
    /// In the other recording.
    pub(super) before: u64,
}

impl FrameSize {
    pub(super) fn of(bytes: u64) -> FrameSize {
        FrameSize { bytes, ..FrameSize::default() }
    }

    fn of_stack(stack: &FoldedStack) -> FrameSize {
        match stack.evidence {
            Some(evidence) => FrameSize {
                told: stack.bytes,
                proven: evidence.proven,
                probable: evidence.probable,
                ..FrameSize::of(stack.bytes)
            },
            None => FrameSize::of(stack.bytes),
        }
    }

    fn add(&mut self, other: FrameSize) {
        let pairs = [
            (&mut self.bytes, other.bytes),
            (&mut self.told, other.told),
            (&mut self.proven, other.proven),
            (&mut self.probable, other.probable),
            (&mut self.before, other.before),
        ];
        for (sum, part) in pairs {
            *sum = sum.saturating_add(part);
        }
    }

    /// As the size in the other recording.
    pub(super) fn earlier(self) -> FrameSize {
        FrameSize { before: self.bytes, ..FrameSize::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.before == 0
    }
}

#[derive(Debug)]
pub(super) struct DrawnStack {
    /// Outermost frame first.
    pub(super) path: Vec<DrawnFrame>,
    pub(super) size: FrameSize,
}

/// Of a moment's stacks.
pub(super) fn drawn_stacks(
    profile: &Profile,
    folded: &FoldedProfile,
    style: NameStyle,
) -> Vec<DrawnStack> {
    let labels = FrameLabels::new(profile, style.full_filenames);
    let stack = |stack: &FoldedStack| {
        let path = shown(profile.stacks(), &stack.path, style);
        let path = path.map(|label| DrawnFrame::of(&labels, label, style)).collect();
        DrawnStack { path, size: FrameSize::of_stack(stack) }
    };
    folded.stacks.iter().map(stack).filter(|stack| !stack.size.is_empty()).collect()
}

/// Without wrappers around a call that is in the path.
fn shown<'a>(
    stacks: &'a StackTable,
    path: &'a [StackLabel],
    style: NameStyle,
) -> impl Iterator<Item = &'a StackLabel> {
    let is_frame = |label: &StackLabel| matches!(label, StackLabel::Frame(_));
    let innermost = path.iter().rposition(is_frame).unwrap_or(0);
    let is_wrapper = move |label: &StackLabel| match label {
        StackLabel::Frame(frame) => {
            stacks.get_function(frame.function).is_some_and(|function| function.is_wrapper())
        }
        _ => false,
    };
    let shows = move |(at, label): &(usize, &StackLabel)| {
        style.all_frames || *at == innermost || !is_wrapper(label)
    };
    path.iter().enumerate().filter(shows).map(|(_, label)| label)
}

/// Of a moment's owners.
pub(super) fn drawn_owners(
    profile: &Profile,
    stacks: &OwnerStacks,
    style: NameStyle,
) -> Vec<DrawnStack> {
    let labels = FrameLabels::new(profile, style.full_filenames);
    let part = |part: &OwnerPart| match part {
        OwnerPart::Text(text) => DrawnFrame::of_owner(&one_line(text)),
        OwnerPart::AllocatedAt(label) => DrawnFrame::of(&labels, label, style),
    };
    let stack = |(path, bytes): &(Vec<OwnerPart>, u64)| DrawnStack {
        path: path.iter().map(part).collect(),
        size: FrameSize::of(*bytes),
    };
    stacks.paths.iter().map(stack).filter(|stack| !stack.size.is_empty()).collect()
}

/// Of modules: containers of alike ones hold their members.
pub(super) fn drawn_modules(memory: &ModuleBytes, depth: Option<usize>) -> Vec<DrawnStack> {
    let stack = |(place, bytes): &(ModulePlace, u64)| DrawnStack {
        path: nested_steps(place, depth).iter().map(|step| DrawnFrame::of_owner(step)).collect(),
        size: FrameSize::of(*bytes),
    };
    memory.rows.iter().map(stack).collect()
}

#[derive(Debug)]
pub(super) struct FrameNode {
    pub(super) frame: DrawnFrame,
    /// Of all stacks through it.
    pub(super) size: FrameSize,
    /// Of the stacks that end here.
    pub(super) own: FrameSize,
    children: BTreeMap<DrawnFrame, usize>,
}

/// The first node is the root.
#[derive(Debug)]
pub(super) struct FrameTree(Vec<FrameNode>);

impl FrameTree {
    /// `inverted`: what allocates is at the root.
    pub(super) fn new(stacks: &[DrawnStack], inverted: bool) -> FrameTree {
        let node = |frame| FrameNode {
            frame,
            size: FrameSize::default(),
            own: FrameSize::default(),
            children: BTreeMap::new(),
        };
        let mut nodes = vec![node(DrawnFrame::mark("all"))];
        for stack in stacks {
            let mut at = 0;
            nodes[0].size.add(stack.size);
            let mut path: Vec<&DrawnFrame> = stack.path.iter().collect();
            if inverted {
                path.reverse();
            }
            for frame in path {
                let next = nodes.len();
                at = *nodes[at].children.entry(frame.clone()).or_insert(next);
                if at == next {
                    nodes.push(node(frame.clone()));
                }
                nodes[at].size.add(stack.size);
            }
            nodes[at].own.add(stack.size);
        }
        FrameTree(nodes)
    }

    pub(super) fn node(&self, at: usize) -> &FrameNode {
        &self.0[at]
    }

    pub(super) fn nodes(&self) -> &[FrameNode] {
        &self.0
    }

    /// The largest first.
    pub(super) fn children(&self, at: usize) -> Vec<usize> {
        let mut children: Vec<(&DrawnFrame, usize)> =
            self.0[at].children.iter().map(|(frame, child)| (frame, *child)).collect();
        children.sort_by_key(|(frame, child)| (Reverse(self.0[*child].size.bytes), *frame));
        children.into_iter().map(|(_, child)| child).collect()
    }
}
