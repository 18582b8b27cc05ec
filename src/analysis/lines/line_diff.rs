//! Compares two moments line by line, even if the source changed.
//!
//! A line is the same if file, function and text are equal. Equal texts pair by distance from the
//! function's start, then by order; unknown texts by distance alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analysis::folded::{FoldedProfile, PseudoFrame, StackLabel};
use crate::analysis::profile::Profile;
use crate::model::Frame;

/// A moment of a recording, with its memory.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy)]
pub struct ComparedMoment<'a> {
    pub profile: &'a Profile,
    pub folded: &'a FoldedProfile,
}

/// What a row stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangedPlace {
    /// A line of a function.
    Line {
        /// The file's name in both recordings.
        file: String,
        /// The function.
        function: String,
        /// Line number in the first recording, if present.
        before: Option<u32>,
        /// Line number in the second, if present.
        after: Option<u32>,
        /// The line's text, if known.
        source: Option<String>,
    },
    /// A function: all its lines together.
    Function {
        /// The file's name in both recordings.
        file: String,
        /// The function.
        function: String,
    },
    /// A whole stack, innermost frame first.
    Stack(Vec<StackStep>),
    /// An owner: category, then path.
    Owner(Vec<String>),
    /// Bytes without a line, by mark.
    Without(String),
}

/// A frame of a compared stack; `library`: it is library code.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StackStep {
    pub text: String,
    pub library: bool,
}

/// A place with its live bytes at two moments.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChange {
    pub place: ChangedPlace,
    pub before: u64,
    pub after: u64,
}

impl MemoryChange {
    /// Bytes after minus before.
    pub fn difference(&self) -> i64 {
        self.after as i64 - self.before as i64
    }
}

#[derive(Debug, Clone)]
struct HoldingLine {
    line: u32,
    /// Lines from the function's start.
    distance: i64,
    source: Option<String>,
    bytes: u64,
}

pub(in crate::analysis) const UNKNOWN_FUNCTION: &str = "[unknown function]";

type SameLine<'a> = &'a dyn Fn(&HoldingLine, &HoldingLine) -> bool;
type FunctionLines = BTreeMap<(String, String), Vec<HoldingLine>>;

/// By line of the program, the greatest change first; library code counts for its caller. `file`
/// gives a name common to both recordings.
pub fn line_changes(
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    file: &dyn Fn(&Profile, &str) -> String,
) -> Vec<MemoryChange> {
    let (mut of_before, none_before) = by_function(before, file);
    let (mut of_after, none_after) = by_function(after, file);
    let mut changes = Vec::new();
    let names: Vec<_> = of_before.keys().chain(of_after.keys()).cloned().collect();
    for name in names {
        let before = of_before.remove(&name).unwrap_or_default();
        let after = of_after.remove(&name).unwrap_or_default();
        pair(&name, before, after, &mut changes);
    }
    let without = |(mark, bytes)| (ChangedPlace::Without(mark), bytes);
    changes
        .extend(joined(none_before.into_iter().map(without), none_after.into_iter().map(without)));
    ranked(changes)
}

pub(in crate::analysis) fn joined(
    before: impl Iterator<Item = (ChangedPlace, u64)>,
    after: impl Iterator<Item = (ChangedPlace, u64)>,
) -> Vec<MemoryChange> {
    let mut rows: BTreeMap<ChangedPlace, (u64, u64)> = BTreeMap::new();
    before.for_each(|(place, bytes)| rows.entry(place).or_default().0 += bytes);
    after.for_each(|(place, bytes)| rows.entry(place).or_default().1 += bytes);
    let row = |(place, (before, after))| MemoryChange { place, before, after };
    rows.into_iter().map(row).collect()
}

pub(in crate::analysis) fn ranked(mut changes: Vec<MemoryChange>) -> Vec<MemoryChange> {
    changes.retain(|change| change.before > 0 || change.after > 0);
    changes.sort_by(|a, b| {
        let rank =
            |c: &MemoryChange| Reverse((c.difference().unsigned_abs(), c.after.max(c.before)));
        (rank(a), &a.place).cmp(&(rank(b), &b.place))
    });
    changes
}

fn pair(
    name: &(String, String),
    mut before: Vec<HoldingLine>,
    mut after: Vec<HoldingLine>,
    changes: &mut Vec<MemoryChange>,
) {
    before.sort_by_key(|line| line.line);
    after.sort_by_key(|line| line.line);
    let mut change = |before: Option<&HoldingLine>, after: Option<&HoldingLine>| {
        let source = after.or(before).and_then(|line| line.source.clone());
        changes.push(MemoryChange {
            place: ChangedPlace::Line {
                file: name.0.clone(),
                function: name.1.clone(),
                before: before.map(|line| line.line),
                after: after.map(|line| line.line),
                source,
            },
            before: before.map_or(0, |line| line.bytes),
            after: after.map_or(0, |line| line.bytes),
        });
    };
    let knows_both = |a: &HoldingLine, b: &HoldingLine| a.source.is_some() && b.source.is_some();
    let rules: [SameLine<'_>; 3] = [
        &|a, b| knows_both(a, b) && a.source == b.source && a.distance == b.distance,
        &|a, b| knows_both(a, b) && a.source == b.source,
        &|a, b| !knows_both(a, b) && a.distance == b.distance,
    ];
    for is_same in rules {
        before.retain(|old| {
            let Some(at) = after.iter().position(|new| is_same(old, new)) else { return true };
            change(Some(old), Some(&after.remove(at)));
            false
        });
    }
    before.iter().for_each(|old| change(Some(old), None));
    after.iter().for_each(|new| change(None, Some(new)));
}

fn by_function(
    moment: ComparedMoment<'_>,
    file: &dyn Fn(&Profile, &str) -> String,
) -> (FunctionLines, BTreeMap<String, u64>) {
    let ComparedMoment { profile, folded } = moment;
    let mut lines: BTreeMap<Frame, u64> = BTreeMap::new();
    let mut none: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &folded.stacks {
        match charged(profile, &stack.path) {
            Some(frame) => *lines.entry(frame).or_default() += stack.bytes,
            None => *none.entry(mark_of(&stack.path)).or_default() += stack.bytes,
        }
    }
    let mut functions = FunctionLines::new();
    for (frame, bytes) in lines {
        let Some(function) = profile.stacks().get_function(frame.function) else {
            *none.entry(UNKNOWN_FUNCTION.to_owned()).or_default() += bytes;
            continue;
        };
        let name = (file(profile, &function.file), function.name.to_string());
        let distance = i64::from(frame.line) - i64::from(function.first_line);
        let source = profile.source_line(frame).map(str::to_owned);
        let all = functions.entry(name).or_default();
        match all.iter_mut().find(|known| known.line == frame.line && known.source == source) {
            Some(known) => known.bytes += bytes,
            None => all.push(HoldingLine { line: frame.line, distance, source, bytes }),
        }
    }
    (functions, none)
}

pub(in crate::analysis) fn mark_of(path: &[StackLabel]) -> String {
    let mark = path.iter().find_map(|label| match label {
        StackLabel::Pseudo(mark) => Some(*mark),
        _ => None,
    });
    mark.unwrap_or(PseudoFrame::NoPython).text().to_owned()
}

/// The innermost line of the program, else of a library.
pub(in crate::analysis) fn charged(profile: &Profile, path: &[StackLabel]) -> Option<Frame> {
    let frame = |label: &StackLabel| match label {
        StackLabel::Frame(frame) => Some(*frame),
        _ => None,
    };
    let mark = path.iter().position(|l| *l == StackLabel::Pseudo(PseudoFrame::BackwardOf));
    // Backward work belongs to the caller of backward(), else to the forward call.
    let (own, forward) = path.split_at(mark.unwrap_or(path.len()));
    let frames: Vec<Frame> = match own.iter().any(|label| frame(label).is_some()) {
        true => own.iter().filter_map(frame).collect(),
        false => forward.iter().filter_map(frame).collect(),
    };
    let is_own = |frame: &&Frame| {
        let function = profile.stacks().get_function(frame.function);
        function.is_some_and(|function| !function.is_of_library())
    };
    frames.iter().rev().find(is_own).or(frames.last()).copied()
}
